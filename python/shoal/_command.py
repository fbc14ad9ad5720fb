# SPDX-License-Identifier: Apache-2.0
"""Starts the command that lies beside this file, with PyTorch's libraries, which it needs, in reach."""

import importlib.util
import os
import pathlib
import sys

from shoal import _highs


def path():
    return pathlib.Path(__file__).with_name("bin") / "shoal"


def environment():
    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit("shoal: torch is not installed; install the version that shoal was built for")
    [folder] = torch.submodule_search_locations
    libraries = [str(pathlib.Path(folder) / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    highs = {_highs.VARIABLE: library} if (library := _highs.library()) else {}
    return {**highs, **os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}


def main():
    os.execve(path(), ["shoal", *sys.argv[1:]], environment())


if __name__ == "__main__":
    main()
