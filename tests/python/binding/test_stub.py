# SPDX-License-Identifier: Apache-2.0
import ast

from built import ROOT

import shoal


def test_the_stub_names_what_there_is_and_no_more():
    stub = ast.parse((ROOT / "python/shoal/__init__.pyi").read_text())
    names = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert set(names) == set(shoal.__all__)
    for name, node in names.items():
        real = getattr(shoal, name)
        assert real.__doc__, f"{name} has no docstring"
        if isinstance(node, ast.FunctionDef) or issubclass(real, Exception):
            continue
        declared = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        public = {member for member in vars(real) if not member.startswith("_")}
        assert {member for member in declared if not member.startswith("_")} == public, name
        assert declared <= set(dir(real)), name
