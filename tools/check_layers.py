#!/usr/bin/env python3
"""Checks that each module includes only what stands below it, and torch's headers only where they may be.

Prints a line for each include that goes the wrong way, and then exits with 1. CMake's targets hold the same
table, but with one include root a compiler alone does not see a header-only step upwards.
"""

import pathlib
import re
import sys

LAYERS = {
    "models": [],
    "base": [],
    "observe": ["base"],
    "ir": ["base"],
    "rendezvous": ["base", "observe"],
    "comm": ["base", "observe", "rendezvous"],
    "ps": ["base", "rendezvous", "comm"],
    "elastic": ["base", "observe", "rendezvous", "comm"],
    "sharding": ["base", "ir"],
    "rewrite": ["base", "ir", "sharding"],
    "program": ["base", "ir", "schedule"],
    "schedule": ["base"],
    "cost": ["base", "ir", "sharding", "program"],
    "simulate": ["base", "observe", "schedule", "ir", "sharding", "program", "cost"],
    "planner": ["base", "ir", "sharding", "rewrite"],
    "compile": ["base", "ir", "sharding", "rewrite", "planner", "program", "schedule"],
    "checkpoint": ["base"],
    "data": ["base", "observe"],
    "aten": ["base", "ir"],
    "comm_c10d": ["base", "rendezvous", "comm", "aten"],
    "collectives": ["base", "rendezvous", "comm", "aten"],
    "capture": ["base", "ir", "aten"],
    "runtime": ["base", "observe", "ir", "rendezvous", "comm", "ps", "sharding", "program", "aten"],
    "train": [
        "base",
        "observe",
        "ir",
        "rendezvous",
        "comm",
        "elastic",
        "ps",
        "sharding",
        "rewrite",
        "planner",
        "program",
        "schedule",
        "compile",
        "checkpoint",
        "data",
        "aten",
        "capture",
        "runtime",
    ],
    "world": [
        "base",
        "rendezvous",
        "comm",
        "ps",
        "elastic",
        "sharding",
        "compile",
        "aten",
        "comm_c10d",
        "train",
    ],
    "python": [
        "base",
        "aten",
        "ir",
        "comm",
        "collectives",
        "ps",
        "elastic",
        "sharding",
        "rewrite",
        "planner",
        "compile",
        "comm_c10d",
        "capture",
        "train",
        "world",
    ],
    "cli": [
        "base",
        "observe",
        "ir",
        "rendezvous",
        "comm",
        "ps",
        "elastic",
        "sharding",
        "rewrite",
        "planner",
        "program",
        "schedule",
        "cost",
        "simulate",
        "compile",
        "checkpoint",
        "data",
        "comm_c10d",
    ]
    + ["capture", "runtime", "train", "world", "models"],
}
TORCH = {
    "aten",
    "comm_c10d",
    "collectives",
    "capture",
    "runtime",
    "train",
    "world",
    "python",
    "cli",
    "models",
}


def folder_of(module):
    return pathlib.Path("models" if module == "models" else f"shoal/{module}")


def faults(root):
    known = {f"shoal/{path.name}" for path in (root / "shoal").iterdir() if path.is_dir()}
    for folder in sorted(known - {str(folder_of(module)) for module in LAYERS}):
        yield f"{folder}: not in the table of tools/check_layers.py"
    for module, below in LAYERS.items():
        for path in sorted((root / folder_of(module)).rglob("*")):
            if path.suffix not in {".h", ".cpp"}:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                hit = re.match(r'#include ["<](?:shoal/)?(\w+)[/.]', line)
                where = f"{path.relative_to(root)}:{number}"
                if hit and hit[1] == "models" and module in TORCH and path.name.endswith("_test.cpp"):
                    continue  # what a torch module is tested on
                if hit and hit[1] in LAYERS and hit[1] not in [module, *below]:
                    yield f"{where}: {module} may not include {hit[1]}"
                if hit and hit[1] in {"ATen", "c10", "torch"} and module not in TORCH:
                    yield f"{where}: {module} is torch-free"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(faults(root))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
