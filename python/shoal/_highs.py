# SPDX-License-Identifier: Apache-2.0
"""Where HiGHS's library is, which finds placements: in the package highspy, if that is installed."""

import importlib.util
import pathlib

VARIABLE = "SHOAL_HIGHS_LIBRARY"  # tells the command


def library():
    """Its path, or None."""
    package = importlib.util.find_spec("highspy")
    if package is None or not package.submodule_search_locations:
        return None
    path = pathlib.Path(package.submodule_search_locations[0]) / "libhighs.so.1"
    return str(path) if path.exists() else None
