# SPDX-License-Identifier: Apache-2.0
"""What a model reads that is no object it holds: files, context variables, caches, the order of a dictionary.
Each is asked again at each step, as text."""

import builtins
import gc
import io
import os
import stat
import sys
import threading
import weakref

from shoal._names import is_library
from shoal._replaced import replace

_caches = weakref.WeakKeyDictionary()
_SMALL = 1 << 16  # bytes of files that are compared whole; larger ones by size and time
_MOST = 256  # files and folders


def state_of_file(how_and_path):
    """`how` it is looked at: "read", "listed", or "asked" for, as by exists()."""
    how, _, path = how_and_path.partition(" ")
    try:
        if how == "listed":
            return repr(sorted(_listdir(path)))
        status = _stat(path)
        if stat.S_ISDIR(status.st_mode):
            return "a folder"
        if how == "read" and status.st_size <= _SMALL:
            with _open(path, "rb") as file:
                return repr(file.read())
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    except OSError as error:
        return type(error).__name__


def state_of_logger(logger):
    return f"{logger.getEffectiveLevel()} {logger.disabled} {logger.manager.disable}"


def state_of_cache(function):
    """Of a function that keeps its results: how often it was emptied, and what was added since."""
    misses, size = function.cache_info()[1::2]
    emptied, before = _caches.get(function, (0, 0))
    emptied += misses < before
    _caches[function] = (emptied, misses)
    return f"{emptied} {misses} {size}"


def state_of_module(name):
    return str(name in sys.modules)


def state_of_order(dictionary):
    return " ".join(str(id(key)) for key in dictionary)


def state_of_variable(variable):
    value = variable.get(None)
    return f"{value!r}" if type(value) in (int, float, str, bool, bytes) else f"{type(value)} {id(value)}"


def behind_proxy(proxy):
    """The dictionary that a types.MappingProxyType shows."""
    return next((each for each in gc.get_referents(proxy) if isinstance(each, dict)), {})


_open, _stat, _listdir = io.open, os.stat, os.listdir
_LIBRARY_FILES = (".py", ".pyc", ".pyi", ".so", ".dylib", ".pyd")
_SYSTEM = ("/proc/", "/sys/", "/dev/")


def watch_outside(ignores):
    """Until it is undone, notes files that this thread reads. Throws for those that it writes, and for
    threads that it starts."""
    from shoal._shoal import InvalidInput

    files = {}

    def note(how, path, writes=False):
        if not isinstance(path, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(path))
        if path.endswith(_LIBRARY_FILES) or path.startswith(_SYSTEM) or ignores(path):
            return
        if writes and _is_user():
            raise InvalidInput(
                f"capture: the model writes to the file {path} while it runs, and a captured step would not. "
                "Remedy: write it between steps, from the step's outputs; or, if it may stay as it is, "
                f'Trainer(…, ignores=["{path}"])'
            )
        if not writes and len(files) < _MOST:
            files[f"{how} {path}"] = None

    def opened(ordinary, file, mode="r", *arguments, **named):
        note("read", file, writes=any(each in mode for each in "wax+"))
        return ordinary(file, mode, *arguments, **named)

    def asked(ordinary, path, *arguments, **named):
        note("asked", path)
        return ordinary(path, *arguments, **named)

    def listed(ordinary, path="."):
        note("listed", path)
        return ordinary(path)

    def start(ordinary, thread):
        raise InvalidInput(
            f"capture: the model starts the thread {thread.name} while it runs, and what other threads "
            "compute is not recorded. Remedy: compute in the thread that calls step(), or start the thread "
            "between steps"
        )

    undo = replace(
        {
            (builtins, "open"): opened,
            (io, "open"): opened,
            (os, "stat"): asked,
            (os, "listdir"): listed,
            (os, "scandir"): listed,
            (threading.Thread, "start"): start,
        }
    )
    return undo, files


def _is_user():
    """Whether it is the user's code that asks, by itself or through Python's own library."""
    frame = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if "logging" in file or "importlib" in file:
            return False
        if not is_library(file):
            return True
        if "site-packages" in file:
            return False
        frame = frame.f_back
    return False
