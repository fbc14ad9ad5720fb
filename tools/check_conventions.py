#!/usr/bin/env python3
"""Checks conventions that a search can hold. Prints a line for each fault, and then exits with 1."""

import pathlib
import re
import sys

FOLDERS = ["bench", "cmake", "examples", "models", "python", "shoal", "tests", "tools"]

# What is forbidden, in which files, but not in those, and why.
RULES = [
    (
        r"sleep_for|sleep_until|usleep\(|time\.sleep",
        r"(_test\.cpp$|^tests/)",
        r"^tests/python/test_checks\.py$",
        "no sleeping in a test",
    ),
    (
        r"\bgetenv\b",
        r"^(shoal|models)/",
        r"^shoal/(cli|train)/",
        "environment variables are read in cli and train",
    ),
    # LibTorch holds its modules by shared_ptr. Of ours only the aliases of a captured tensor share a life:
    # views of it, wherever the model keeps them, and the regions of memory that stand for it. And what ranks
    # that are threads of one process share: a group, pages, and what a progress thread and its works have in
    # common. And the tape that all tensors of a deferred model are made of, and the file that offloaded
    # ones lie in. And a part of tables, and a frame, that coroutines of a server's loop work on: any of
    # them may be the last, when the part has gone to another server. And pages that a client shares with one.
    (
        r"shared_ptr<(?!torch::nn::)",
        r"^(shoal|models)/(?!.*_test\.)",
        r"^shoal/(capture/(deferred|recorded_tensor|recorder)\.|comm/(inproc/|pool\.|shm/|test_ranks\.)|ps/(loop|payloads_beside)|runtime/file_memory\.)",
        "no shared_ptr: say who owns it",
    ),
    (
        r"(?i)rewrite|recompute|offload|bucket|partition|\bzero\b",
        r"^shoal/(cost|simulate)/",
        r"^$",
        "what plays programs names no rewrite",
    ),
    (
        r"using namespace",
        r"^(shoal|models)/(?!.*(_test|/main)\.cpp)",
        r"^$",
        "no using namespace but in tests and main",
    ),
    (
        r"\b(TODO|FIXME|XXX)\b(?!.*#\d)",
        r"\.(cpp|h|py|sh|cmake)$",
        r"^tools/check_conventions\.py$",
        "no open ends",
    ),
]

MOST_LINES = 400
# Longer, and say nothing yet: who splits one, or says why, takes its name out.
LONG = {
    "shoal/rewrite/place.cpp",
    "shoal/runtime/executor_test.cpp",
    "shoal/runtime/kernels.cpp",
    "shoal/train/trainer.cpp",
}


def header_of(lines):
    """The comment or docstring at the top of a file, without the lines of code after it."""
    text = "\n".join(lines)
    return re.match(r'(?:\s*(?:(?://|#(?!include|pragma)).*|"""[\s\S]*?""")(?:\n|$))*', text)[0]


def faults(root):
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*")):
        name = str(path.relative_to(root))
        if path.suffix not in {".h", ".cpp", ".py", ".sh", ".cmake"}:
            continue
        lines = path.read_text().splitlines()
        if path.suffix in {".h", ".cpp"} and lines[:1] != ["// SPDX-License-Identifier: Apache-2.0"]:
            yield f"{name}:1: the first line is the licence's"
        says_why = re.search(rf"Above {MOST_LINES} lines: \S", header_of(lines))
        if len(lines) > MOST_LINES and not says_why and name not in LONG:
            remedy = f'split it, or say in its header "Above {MOST_LINES} lines: why"'
            yield f"{name}:1: {len(lines)} lines: {remedy}"
        if path.suffix == ".h" and "#pragma once" not in lines:
            yield f"{name}:1: a header has #pragma once"
        for pattern, where, but_not, why in RULES:
            if re.search(where, name) and not (re.search(but_not, name)):
                yield from (
                    f"{name}:{i}: {why}" for i, line in enumerate(lines, 1) if re.search(pattern, line)
                )


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(faults(root))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
