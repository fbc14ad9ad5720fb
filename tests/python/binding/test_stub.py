# SPDX-License-Identifier: Apache-2.0
import ast
import re

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


def arguments_of(function):
    given = function.args
    return [argument.arg for argument in given.posonlyargs + given.args + given.kwonlyargs]


def test_the_stub_has_the_arguments_that_there_are():
    stub = ast.parse((ROOT / "python/shoal/__init__.pyi").read_text())
    compared = set()
    for node in stub.body:
        functions = [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", [])
        for function in [each for each in functions if isinstance(each, ast.FunctionDef)]:
            real = getattr(shoal, node.name)
            real = real if function is node else getattr(real, function.name)
            begin = f"{function.name}("  # pybind11 says arguments in the first line
            signature = (getattr(real, "__doc__", None) or "").split("\n")[0]
            if not signature.startswith(begin) or "*args" in signature:
                continue
            assert arguments_of(function) == re.findall(r"[(,] ?(\w+): ", signature), function.name
            compared.add(f"{node.name}.{function.name}")
    assert compared >= {"Trainer.__init__", "Trainer.step", "Parallelism.__init__", "samples_of.samples_of"}


def without_a_word(body, where):
    """Public classes and functions without a docstring; that of a class speaks for its __init__."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{where}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from without_a_word(node.body, f"{where}{node.name}.")


def test_everything_public_is_spoken_of():
    gaps = []
    for path in ["__init__.pyi", "accelerate.py", "collectives.py", "hugging_face.py", "lightning.py"]:
        tree = ast.parse((ROOT / "python/shoal" / path).read_text())
        gaps += without_a_word(tree.body, f"{path}: ")
    assert gaps == []
