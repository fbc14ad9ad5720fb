# SPDX-License-Identifier: Apache-2.0
"""Functions that are others while a thread records a model, and the ordinary ones for every other thread."""

import functools
import threading

_lock = threading.Lock()
_here = threading.local()  # .functions: by owner and name, of the thread that records
_ordinary = {}  # by owner and name: (what its place held, the stand-in), while any thread records
_recording = 0  # threads


def replace(functions):
    """Until what it returns is called, the function `name` of `owner` is `function(ordinary, *arguments)` for
    this thread, for functions of {(owner, name): function}. Other threads that record may name the same ones.
    """
    global _recording
    before = getattr(_here, "functions", {})
    with _lock:
        _recording += 1
        for owner, name in functions:
            if (owner, name) not in _ordinary:
                stand_in = _stand_in(owner, name, getattr(owner, name))
                _ordinary[owner, name] = vars(owner).get(name), stand_in
                setattr(owner, name, stand_in)
    _here.functions = before | functions

    def undo():
        global _recording
        _here.functions = before
        with _lock:
            _recording -= 1
            while not _recording and _ordinary:
                (owner, name), (held, stand_in) = _ordinary.popitem()
                if vars(owner).get(name) is not stand_in:
                    continue  # somebody else's by now
                if held is None:
                    delattr(owner, name)  # it is inherited
                else:
                    setattr(owner, name, held)

    return undo


def _stand_in(owner, name, ordinary):
    @functools.wraps(ordinary)
    def call(*arguments, **named):
        mine = getattr(_here, "functions", {}).get((owner, name))
        return ordinary(*arguments, **named) if mine is None else mine(ordinary, *arguments, **named)

    return call
