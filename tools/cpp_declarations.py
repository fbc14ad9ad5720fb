# SPDX-License-Identifier: Apache-2.0
"""What headers declare, by libclang, and the comments that speak of it, by their lines."""

import functools
import importlib.util
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field

from clang import cindex
from clang.cindex import CursorKind

TYPES = {
    CursorKind.CLASS_DECL,
    CursorKind.STRUCT_DECL,
    CursorKind.CLASS_TEMPLATE,
    CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION,
}
FUNCTIONS = {
    CursorKind.FUNCTION_DECL,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.DESTRUCTOR,
    CursorKind.CONVERSION_FUNCTION,
}
OTHERS = {
    CursorKind.ENUM_DECL,
    CursorKind.FIELD_DECL,
    CursorKind.VAR_DECL,
    CursorKind.TYPE_ALIAS_DECL,
    CursorKind.TYPE_ALIAS_TEMPLATE_DECL,
    CursorKind.USING_DECLARATION,
}


@dataclass
class Declaration:
    name: str  # with its namespace and class
    first: int  # lines of the header, from 0
    last: int
    text: str  # as it stands on the page, with the comment behind it
    above: str = ""  # the comment
    is_type: bool = False
    is_field: bool = False
    needs_none: bool = False
    space: str = ""  # its namespace
    members: list = field(default_factory=list)
    uses: dict = field(default_factory=dict)  # types: {name: header}
    more: list = field(default_factory=list)  # names: of enumerators, and of fields in the same line

    @property
    def said(self):
        first = self.text.split("\n")[0] if self.is_type else self.text
        return bool(self.above) or "//" in re.sub(r'"(\\.|[^"\\])*"', "", first)


def end_of_group(text, at):
    """Behind the bracket that closes the one at `at`; comments and literals have none."""
    pairs = {"{": "}", "(": ")"}
    opening, close, depth = text[at], pairs[text[at]], 0
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


class Header:
    """The text of one, and where comments stand in it."""

    def __init__(self, path, text):
        self.path, self.text, self.lines = path, text, text.split("\n")
        self.begins = [0]
        for line in self.lines:
            self.begins.append(self.begins[-1] + len(line) + 1)
        about = re.match(r"// SPDX.*\n((?://.*\n)*)", text)
        self.about = about[1] if about else ""  # what the file is about
        self.free = list(self.alone(text.count("\n", 0, text.find("#pragma once")) + 1))

    def indentation(self, line):
        return len(self.lines[line]) - len(self.lines[line].lstrip())

    def is_comment(self, line):
        return 0 <= line < len(self.lines) and self.lines[line].lstrip().startswith("//")

    def alone(self, line):
        """Comments with a blank line behind them, which speak of no declaration: (line, text)."""
        while line < len(self.lines):
            begin = line
            while self.is_comment(line) and not self.indentation(line):
                line += 1
            if line > begin and not self.lines[line].strip():
                yield begin, "\n".join(self.lines[begin:line])
            line = max(line, begin + 1)

    def above(self, line):
        """The first line of the comment above a declaration; that of the declaration where there is none."""
        begin = line
        while self.is_comment(begin - 1) and self.indentation(begin - 1) == self.indentation(line):
            begin -= 1
        return begin

    def behind(self, last):
        """The last line of a comment that begins on this line behind a declaration and goes on below."""
        more = last
        while self.is_comment(more + 1) and self.indentation(more + 1) > self.indentation(last):
            more += 1
        return more

    def declaration(self, cursor, name, space):
        first = cursor.extent.start.line - 1
        begin = self.begins[first] + self.indentation(first)
        made = Declaration(name, first, first, "", space=space)
        made.above = "\n".join(self.lines[self.above(first) : first])
        made.is_type = cursor.kind in TYPES
        made.is_field = cursor.kind in (CursorKind.FIELD_DECL, CursorKind.VAR_DECL)
        if made.is_type:
            made.last = cursor.extent.end.line - 1
            made.text = self.text[begin : self.text.index("\n", self.text.index("{", begin))]
            return made
        text, end, body = self.signature(begin) if cursor.kind in FUNCTIONS else self.statement(begin)
        made.last = self.text.count("\n", 0, end - 1)
        behind = self.text[end : self.text.find("\n", end)].rstrip()
        if body is not None:
            # Its comment is behind the bracket that closes the body, or the one that opens it.
            behind = behind or re.match(r" *(//.*)?", self.text[body + 1 :])[0]
            behind = "  " + behind.lstrip() if behind.strip() else ""
        more = self.behind(made.last)
        made.text = "\n".join([text + behind, *self.lines[made.last + 1 : more + 1]])
        made.last = more
        made.needs_none = (
            cursor.kind in (CursorKind.DESTRUCTOR, CursorKind.USING_DECLARATION)
            or bool(re.search(r"= (default|delete);|\boverride\b|&&( \w+)?\) noexcept;", text))
            or cursor.spelling == "operator="
        )
        return made

    def statement(self, begin):
        end = begin
        while self.text[end] != ";":
            end = end_of_group(self.text, end) if self.text[end] in "({" else end + 1
        return self.text[begin : end + 1], end + 1, None

    def signature(self, begin):
        """Of a function, without what members begin with; where all of it ends; and where its body begins."""
        text, at, stop = self.text, begin, None
        while text[at] != ";":
            if text.startswith("//", at):
                at = text.index("\n", at)
            elif text[at] == "(":
                at = end_of_group(text, at)
            elif text[at] == "{":
                end = end_of_group(text, at)
                is_body = re.search(r"[)>}]$|\b(const|noexcept|override)$", text[begin:at].rstrip())
                if is_body and not re.match(r"\s*[,{]", text[end:]):  # and no member that is begun
                    signature = re.sub(r" *// NOLINT.*", "", text[begin : stop or at])
                    return signature.rstrip() + ";", end, at
                at = end
            elif text[at] == ":" and ":" not in (text[at - 1], text[at + 1]) and stop is None:
                stop = at
                at += 1
            else:
                at += 1
        return text[begin : at + 1], at + 1, None


def declarations_of(header, cursors, prefix, known):
    """Of a namespace or a type, in the order in which they stand; `known` takes a cursor's header."""
    found, seen = [], set()
    for cursor in cursors:
        is_type = cursor.kind in TYPES
        if known(cursor) != header.path or cursor.kind not in TYPES | FUNCTIONS | OTHERS:
            continue
        if (is_type or cursor.kind == CursorKind.ENUM_DECL) and not cursor.is_definition():
            continue
        if cursor.access_specifier.name in ("PRIVATE", "PROTECTED"):
            continue
        if cursor.extent.start.offset in seen:
            found[-1].more.append(f"{prefix}::{cursor.spelling}")
            continue
        seen.add(cursor.extent.start.offset)
        name = cursor.spelling.split("<")[0] if cursor.kind == CursorKind.CONSTRUCTOR else cursor.spelling
        space = prefix if cursor.semantic_parent.kind == CursorKind.NAMESPACE else ""
        made = header.declaration(cursor, f"{prefix}::{name}" if prefix else name, space)
        if is_type:
            made.members = declarations_of(header, cursor.get_children(), made.name, known)
        elif cursor.kind == CursorKind.ENUM_DECL:
            made.more = [f"{made.name}::{each.spelling}" for each in cursor.get_children()]
        else:
            for each in cursor.walk_preorder():
                to = each.referenced if each.kind in (CursorKind.TYPE_REF, CursorKind.TEMPLATE_REF) else None
                if to is not None and (where := known(to)):
                    made.uses[full_name(to)] = where
        found.append(made)
    return found


def full_name(cursor):
    names = []
    while cursor is not None and cursor.kind != CursorKind.TRANSLATION_UNIT:
        names.append(cursor.spelling)
        cursor = cursor.semantic_parent
    return "::".join(reversed(names))


def parse(root, headers):
    """A translation unit that includes them all."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "include"
    own = subprocess.run(["g++", "-print-file-name=include"], capture_output=True, text=True, check=True)
    arguments = ["-std=c++20", f"-I{root}", f"-isystem{torch}", f"-isystem{torch}/torch/csrc/api/include"]
    text = "".join(f'#include "{path}"\n' for path in headers)
    includes = str(root / "interface.cpp")
    unit = cindex.Index.create().parse(
        includes,
        args=[*arguments, f"-idirafter{own.stdout.strip()}"],
        unsaved_files=[(includes, text)],
        options=cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES,
    )
    wrong = [str(each) for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Error]
    if wrong:
        sys.exit("\n".join(wrong))
    return unit


def read(root, headers, inside):
    """{path: (Header, its declarations)}, without those of the namespaces `inside`."""
    root = pathlib.Path(root).resolve()

    @functools.cache
    def header_of(name):
        path = pathlib.Path(name).resolve()
        return str(path.relative_to(root)) if path.is_relative_to(root / "shoal") else None

    def known(cursor):
        return header_of(cursor.location.file.name) if cursor.location.file else None

    found = {path: (Header(path, (root / path).read_text()), []) for path in headers}

    def walk(cursor, prefix):
        for each in cursor.get_children():
            if each.kind == CursorKind.NAMESPACE and (prefix or each.spelling == "shoal"):
                here = f"{prefix}::{each.spelling}" if prefix else each.spelling
                path = known(each)
                if path in found and here not in inside:
                    found[path][1].extend(declarations_of(found[path][0], each.get_children(), here, known))
                if path is not None:
                    walk(each, here)

    walk(parse(root, headers).cursor, "")
    for header, declared in found.values():
        for number, line in enumerate(header.lines):
            if macro := re.match(r"#define (\w+)(\(.*?\))?", line):
                above = "\n".join(header.lines[header.above(number) : number])
                declared.append(Declaration(macro[1], number, number, macro[0], above))
        declared.sort(key=lambda each: each.first)
    return found
