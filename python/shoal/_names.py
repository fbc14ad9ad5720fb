# SPDX-License-Identifier: Apache-2.0
"""Which globals a function's code reads, by its bytecode: attributes of the same name are told apart."""

import dis
import functools
import os
import site
import sys
import sysconfig
import types

# Where code lies that nobody changes while a program runs.
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        *site.getsitepackages(),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    }
)


@functools.lru_cache(maxsize=65536)
def globals_read(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Chains of names: ("alpha",), or ("config", "alpha") for an attribute of a global. Code inside
    of this code counts, and globals()["alpha"]."""
    chains = _chains(code, ("LOAD_GLOBAL", "LOAD_NAME"))
    for each in _codes(code):
        if "globals" in each.co_names:
            texts = (text for text in each.co_consts if isinstance(text, str) and text.isidentifier())
            chains += tuple((text,) for text in texts)
    return chains


@functools.lru_cache(maxsize=65536)
def closure_read(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The same of what the code closes over."""
    return _chains(code, ("LOAD_DEREF", "LOAD_CLASSDEREF"))


@functools.lru_cache(maxsize=65536)
def imported(code: types.CodeType) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Modules that the code imports while it runs, and the names that it may read of them."""
    return tuple(
        (instruction.argval, each.co_names)
        for each in _codes(code)
        for instruction in dis.get_instructions(each)
        if instruction.opname == "IMPORT_NAME"
    )


@functools.lru_cache(maxsize=65536)
def reads_environment(code: types.CodeType) -> bool:
    return any(name in each.co_names for each in _codes(code) for name in ("getenv", "environ"))


def _codes(code):
    """With those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _chains(code, starts):
    chains = set()
    chain = []
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in starts:
            chain = [instruction.argval]
            chains.add(tuple(chain))
        elif chain and name in ("LOAD_ATTR", "LOAD_METHOD") and len(chain) < 4:
            chain.append(instruction.argval)
            chains.add(tuple(chain))
        elif name not in ("EXTENDED_ARG", "CACHE", "PUSH_NULL"):
            chain = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            chains.update(_chains(constant, starts))
    return tuple(sorted(chains))


@functools.lru_cache(maxsize=65536)
def is_library(file: str) -> bool:
    """Whether code of this file is a library's, not the user's."""
    return file.startswith("<frozen") or os.path.realpath(file).startswith(_LIBRARIES)


@functools.lru_cache(maxsize=65536)
def is_library_module(name: str) -> bool:
    """The same for a module by its name, as classes and functions have it in __module__."""
    if not isinstance(name, str):  # of some that are written in C
        return True
    root = name.partition(".")[0]
    if (
        root in ("builtins", "torch", "numpy", "shoal")
        or root in sys.stdlib_module_names
        and root != "__main__"
    ):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and is_library(file)
