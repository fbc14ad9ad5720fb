#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole C++ interface on one page, from the headers of shoal/shoal.h and those whose types they use.

    tools/interface.py            the page, as Markdown
    tools/interface.py --gaps     what has no comment, a line each; exits with 1 if there is any

A declaration is spoken of by the comment above it, or above the lines that it stands among without a blank
one, or behind it. Constructors, destructors, operators, other names of types, and what answers without being
asked anything (`int size() const`) need none.
"""

import pathlib
import re
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
TYPE = re.compile(r"^(?:template <.*?>\s*)?(struct|class|enum class|enum|using)\s+(\w+)")
ANSWER = re.compile(r"\(\) const( noexcept)?( = 0)?;$")


@dataclass
class Declaration:
    text: str  # without the body of a function; with those members of a type that are for all
    above: str = ""  # comments
    behind: str = ""
    members: list = field(default_factory=list)
    follows: bool = False  # on the line below another one's

    @property
    def head(self):
        """Without what stands in angle brackets, and a default."""
        head = self.text
        while (shorter := re.sub(r"<[^<>]*>", "", head)) != head:
            head = shorter
        return head.split("=")[0]

    @property
    def name(self):
        kind, head = TYPE.match(self.text), self.head
        if kind and kind[2] != "std":  # another's, for a type of ours
            return kind[2]
        if kind or "operator" in self.text:
            return "operator"
        found = re.search(r"(~?\w+)\s*\(", head) or re.search(r"(\w+)\s*(?:\{.*)?;?$", head, re.DOTALL)
        return found[1] if found else self.text.split("\n")[0]

    @property
    def is_function(self):
        return not TYPE.match(self.text) and ("(" in self.head or "operator" in self.text)


def end_of_group(text, at):
    """Behind the bracket that closes the one at `at`."""
    pairs = {"{": "}", "(": ")"}
    close = pairs[text[at]]
    opening, depth = text[at], 0
    while True:
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif text[at] in "\"'" and not (text[at] == "'" and text[at - 1].isalnum()):
            quote, at = text[at], at + 1
            while text[at] != quote:
                at += 2 if text[at] == "\\" else 1
        depth += (text[at] == opening) - (text[at] == close)
        at += 1
        if depth == 0:
            return at


def declarations(text, owner=""):
    """Of a namespace, or of a type named `owner`: of these only what is public."""
    found, at, comment, is_public, fresh = [], 0, [], not owner.startswith("class "), False
    while at < len(text):
        line = text[at : text.find("\n", at) if "\n" in text[at:] else len(text)]
        bare = line.strip()
        if not bare or bare.startswith("#"):
            comment, fresh = [], False
            at += len(line) + 1
        elif bare.startswith("//"):
            comment.append(bare)
            at += len(line) + 1
        elif bare in ("public:", "private:", "protected:"):
            is_public, comment, fresh = bare == "public:", [], False
            at += len(line) + 1
        elif opened := re.match(r"\s*namespace [\w:]+ \{", text[at:]):
            begin = at + opened.end() - 1
            end = end_of_group(text, begin)
            found += declarations(text[begin + 1 : end - 1])
            comment, fresh, at = [], False, text.find("\n", end) + 1 or len(text)
        else:
            declared, at = declaration(text, at)
            declared.above = "\n".join(comment)
            declared.follows = fresh and not comment
            if is_public and not re.fullmatch(r"(class|struct|enum class) [\w:]+;", declared.text):
                found.append(declared)
            comment, fresh = [], True
    return found


def declaration(text, begin):
    at, body = begin, None
    while text[at] != ";":
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif text[at] == "(":
            at = end_of_group(text, at)
        elif text[at] == "{":
            end = end_of_group(text, at)
            head = text[begin:at].rstrip()
            if TYPE.match(head.lstrip()) and "=" not in head:
                body = (at, end)
            elif Declaration(head).is_function:
                stop = text.find("\n", end)
                stop = len(text) if stop < 0 else stop
                opening = re.match(r" *(//.*)?", text[at + 1 :])[1] or ""
                return Declaration(shape(head + ";"), behind=text[end:stop].strip() or opening), stop + 1
            at = end
        else:
            at += 1
    stop = text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    behind = text[at + 1 : stop].strip()
    if body is None:
        return Declaration(shape(text[begin : at + 1]), behind=behind), stop + 1
    head, inside = shape(text[begin : body[0]]), text[body[0] + 1 : body[1] - 1]
    if spoken := re.match(r" *//.*", inside):  # of the type
        inside, behind = inside[spoken.end() :], spoken[0].strip()
    if head.startswith("enum"):
        return Declaration(shape(f"{head} {{{inside}}};"), behind=behind), stop + 1
    members = declarations(inside, head)
    lines = page_of(members)
    indented = re.sub(r"^(?=.)", "  ", lines, flags=re.MULTILINE)
    return Declaration(
        f"{head} {{\n{indented}\n}};" if members else f"{head} {{}};", behind=behind, members=members
    ), stop + 1


def shape(text):
    """Without the indentation of its first line, and without what a constructor begins its members with."""
    text = re.sub(r"\)\s*:\s+\w+.*;$", ");", text.strip("\n"), flags=re.DOTALL) if "(" in text else text
    margin = re.match(r" *", text.strip("\n"))[0]
    return re.sub(rf"^{margin}", "", text.strip("\n"), flags=re.MULTILINE).strip()


def page_of(declared):
    text = ""
    for each in declared:
        text += ("\n" if each.follows else "\n\n") if text else ""
        text += f"{each.above}\n" if each.above else ""
        first, *rest = each.text.split("\n")
        if each.behind:  # a type's stands behind its first line
            first += f"  {each.behind}"
        text += "\n".join([first, *rest])
    return text


def gaps_of(declared, file, where=""):
    """Names of what nothing is said of. A type that is named as its file is what the file is about."""
    said = False
    for each in declared:
        said = bool(each.above) or (each.follows and said)
        is_made = each.name in ("operator", where, f"~{where}")
        kind = TYPE.match(each.text)
        is_told = said or each.behind or is_made or (kind and each.name.lower() == file.replace("_", ""))
        wants = (
            not ANSWER.search(each.text) if each.is_function else kind and kind[1] != "using" and not where
        )
        if wants and not is_told:
            yield f"{where}::{each.name}" if where else each.name
        yield from gaps_of(each.members, file, kind[2] if kind else where)


def headers():
    """shoal.h's, and those whose types these mention, as {path: (what the file is about, declarations)}."""

    def includes(path):
        return re.findall(r'^#include "(shoal/[^"]+)"', (ROOT / path).read_text(), re.MULTILINE)

    found = {}

    def read(paths):
        for path in paths:
            text = (ROOT / path).read_text()
            about = re.match(r"// SPDX.*\n((?://.*\n)*)", text)[1]
            found[path] = (
                about,
                declarations(re.sub(r"#define (?:.*\\\n)*.*", "", text.split("#pragma once")[1])),
            )

    read(["shoal/shoal.h", *includes("shoal/shoal.h")])
    words = set(re.findall(r"\w+", " ".join(page_of(declared) for _, declared in found.values())))
    named = {path for each in found for path in includes(each)} - set(found)
    read(
        path
        for path in sorted(named)
        if words & {kind[2] for line in (ROOT / path).read_text().splitlines() if (kind := TYPE.match(line))}
    )
    del found["shoal/shoal.h"]  # it declares nothing itself
    return found


def main():
    found = headers()
    if "--gaps" in sys.argv:
        gaps = [
            f"{path}: {name}"
            for path, (_, all_of) in found.items()
            for name in gaps_of(all_of, pathlib.Path(path).stem)
        ]
        sys.exit("\n".join(gaps) if gaps else 0)
    print('# The C++ interface\n\n`#include "shoal/shoal.h"` declares all of this.')
    for path, (about, all_of) in found.items():
        print(f"\n## {path}\n\n```cpp\n{about}\n{page_of(all_of)}\n```")


if __name__ == "__main__":
    main()
