#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole C++ interface on one page, docs/cpp.md, from the comments of the public headers.

    .venv/bin/python tools/cpp_interface.py            writes the page
    .venv/bin/python tools/cpp_interface.py --check    prints a line for each fault, and then exits with 1

Faults are a page that is not what the headers say, a declaration that nothing is said of, a type that one of
them takes or gives and that stands in no public header, and a name or a header in docs/ that there is not.

A declaration is spoken of by the comment above it, or behind it, or above the lines that it stands among
without a blank one. A field may also be named in its type's comment, or between backticks in one that stands
by itself in the same header. Destructors, friends, overrides, and what is defaulted or deleted need none.
"""

import pathlib
import re
import sys

import cpp_declarations

# The public headers, and why.
PUBLIC = [
    (
        "Training",
        "a Trainer, what it takes and what it gives",
        """train/trainer train/batch train/padding train/without_trace compile/optimizer train/loss_scale
        train/training_state train/model_view""",
    ),
    (
        "Models",
        "what a model's code may say: that it has no memory yet, and what is a stage or split",
        "capture/deferred capture/scopes",
    ),
    (
        "Several ranks",
        "what a trainer of one rank among several is given: [parallelism.md](parallelism.md), "
        "[pipelines.md](pipelines.md)",
        """world/world train/parallelism compile/plan schedule/schedule sharding/mesh sharding/layout
        rewrite/precision rewrite/recompute rewrite/offload rewrite/table_spec planner/rates""",
    ),
    (
        "Jobs",
        "how a process becomes a rank, and ranks find each other: [launcher.md](launcher.md)",
        """elastic/join elastic/place elastic/flight rendezvous/store rendezvous/memory_store
        rendezvous/host_store rendezvous/key""",
    ),
    (
        "Communication",
        "what ranks say to each other: [communication.md](communication.md)",
        """collectives/collectives comm/communicator comm/ranks comm/inproc/inproc comm/shm/shm comm_c10d/gloo
        comm_c10d/nccl comm_c10d/of_hosts comm/hierarchy/hierarchy comm/record/record comm/call comm/pool
        comm/hosts comm/located comm/streams""",
    ),
    (
        "Tables",
        "rows in tables, in a process or on servers: [parameter_server.md](parameter_server.md)",
        """train/tables ps/definition ps/row_optimizer ps/initial ps/numbers ps/table ps/cold_store ps/save
        ps/tables ps/client ps/server ps/shard_map ps/map_keeper ps/exchange""",
    ),
    (
        "Samples",
        "files of search and recommendation, and how good predictions are: [samples.md](samples.md)",
        """data/sample_reader data/line_parser data/criteo data/multi_slot data/slot_batch data/click_metrics
        data/click_world""",
    ),
    (
        "Graphs",
        "what Trainer::graph, program and placed return, and capture without a trainer",
        "capture/capture ir/graph ir/text ir/scopes program/program program/streams rewrite/place",
    ),
    ("Watching", "traces of steps, and curves", "observe/trace observe/chrome_trace observe/tensorboard"),
    ("Everywhere", "what the others are made with", "base/error base/dtype base/id base/file_system"),
]
HEADERS = [f"shoal/{name}.h" for _, _, names in PUBLIC for name in names.split()]
# What these headers declare for the library itself.
INSIDE = {"shoal::train"}
# Documents of how the library is made; all others are for who uses it.
OF_THE_INSIDE = {"adding.md", "architecture.md"}


def faults_of(path, header, declared, owner=None):
    """What nothing is said of."""
    said, last = False, None
    for each in declared:
        adjacent = last is not None and header.above(each.first) == each.first and each.first == last + 1
        said = bool(each.above) or (adjacent and said)
        name = each.name.split("::")[-1]
        named = each.is_field and (
            (owner is not None and re.search(rf"\b{name}\b", owner.above + owner.text))
            or any(f"`{name}`" in text for _, text in header.free)
        )
        about_it = each.is_type and name.lower() == pathlib.Path(path).stem.replace("_", "")
        if not (said or each.said or named or each.needs_none or about_it):
            yield f"{path}:{each.first + 1}: {each.name} has no comment"
        last = each.last
        yield from faults_of(path, header, each.members, each)


def all_of(declared):
    for each in declared:
        yield each
        yield from all_of(each.members)


def page_of(header, declared):
    """Declarations as they stand, without bodies and what is private."""
    text, last = "", None
    for each in declared:
        if last is not None:
            text += "\n" if header.above(each.first) == last + 1 else "\n\n"
        last = each.last
        margin = " " * header.indentation(each.first)
        lines = [each.above] if each.above else []
        text += re.sub(rf"^{margin}", "", "\n".join([*lines, margin + each.text]), flags=re.MULTILINE)
        if each.is_type:
            members = re.sub(r"^(?=.)", "  ", page_of(header, each.members), flags=re.MULTILINE)
            text += f"\n{members}\n}};" if members else "};"
    return text


def section(path, header, declared):
    text, space, last = f"\n### {path}\n\n```cpp\n{header.about}", None, None
    items = [*header.free, *((each.first, each) for each in declared)]  # comments by themselves are text
    for line, each in sorted(items, key=lambda item: item[0]):
        here = next((other.space for other in declared if other.first >= line), "")
        if here and here != space:
            space = here
            text += f"\n// In namespace {space}.\n"
        if isinstance(each, str):
            text += f"\n{each}\n"
            continue
        text += "" if last is not None and header.above(line) == last + 1 else "\n"
        text += page_of(header, [each]) + "\n"
        last = each.last
    return text + "```\n"


def page(found):
    text = """# The C++ interface

All that a program may use, from the comments of the headers; `tools/cpp_interface.py` writes this page.
`#include "shoal/shoal.h"` has what training takes; other headers are included by their names. What is thrown
is an [`Error`](#shoalbaseerrorh), and a comment names its kind: InvalidInput, Infeasible, PeerLost, Timeout
or Corrupt. Any function may throw Internal, which is a fault of Shoal's own.
"""
    for title, why, _ in PUBLIC:
        text += f"\n- [{title}](#{title.lower().replace(' ', '-')}): {why}"
    text += "\n"
    for title, why, names in PUBLIC:
        text += f"\n## {title}\n\n{why[0].upper()}{why[1:]}.\n"
        for path in (f"shoal/{name}.h" for name in names.split()):
            text += section(path, *found[path])
    return text


def strangers_of(root, found):
    """Headers of shoal.h, and of types that a public declaration names, that are not public."""
    for path in re.findall(r'^#include "(.*)"', (root / "shoal/shoal.h").read_text(), re.MULTILINE):
        if path not in found:
            yield f"shoal/shoal.h: {path} is not public"
    theirs = {each.name for _, declared in found.values() for each in all_of(declared)}
    for path, (_, declared) in found.items():
        for each in all_of(declared):
            for name, where in sorted(each.uses.items()):
                if where not in found and name not in theirs:
                    yield f"{path}:{each.first + 1}: {each.name} names {name}, and {where} is not public"


def unknown_in(root, found):
    """Names and headers in documents that there are not."""
    declared = [each for _, those in found.values() for each in all_of(those)]
    names = {name for each in declared for name in (each.name, *each.more)}
    names |= {"::".join(name.split("::")[at:]) for name in names for at in range(1, name.count("::") + 1)}
    own = (root / "shoal/ir/own_ops.cpp").read_text()
    first = {name.split("::")[-2] for name in names if "::" in name} | {"shoal"}
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if path.name == "cpp.md":
            continue
        code = None  # the language of the block that a line is in
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if fence := re.match(r"```(\w*)", line):
                code = (fence[1] or "text") if code is None else None
            where = f"{path.relative_to(root)}:{number}"
            for header in re.findall(r"(?<![\w./<])((?:[a-z_0-9]+/)+\w+\.h)\b", line):
                if not any((root / above / header).exists() for above in (".", "shoal")):
                    yield f"{where}: there is no {header}"
            if path.name in OF_THE_INSIDE:
                continue
            for name in re.findall(r"[({,]\s*\.(\w+) = ", line if code == "cpp" else ""):
                if name not in names:
                    yield f"{where}: {name} is a field of no public type"
            for name in re.findall(r"(?<![\w:])(?:[A-Za-z_]\w*::)+[A-Za-z_]\w*", line):
                if name.split("::")[0] in first and name not in names and f'"{name}"' not in own:
                    yield f"{where}: {name} is in no public header"


def main():
    arguments = [each for each in sys.argv[1:] if each != "--check"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parents[1]).resolve()
    found = cpp_declarations.read(root, HEADERS, INSIDE)
    text, to = page(found), root / "docs" / "cpp.md"
    if "--check" not in sys.argv:
        to.write_text(text)
        return
    faults = []
    if not to.exists() or to.read_text() != text:
        faults.append("docs/cpp.md: not what the headers say; run tools/cpp_interface.py")
    for path, (header, declared) in found.items():
        faults += faults_of(path, header, declared)
    faults += [*strangers_of(root, found), *unknown_in(root, found)]
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
