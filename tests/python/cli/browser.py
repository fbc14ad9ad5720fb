# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium, without a window: opens a page and takes what it posts."""

import contextlib
import functools
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

BROWSER = "chromium-headless-shell"

needed = pytest.mark.skipif(
    shutil.which(BROWSER) is None, reason=f"no {BROWSER}: tools/setup.sh --tests installs it"
)


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, files, answers, **keywords):
        self.files, self.answers = files, answers
        super().__init__(*arguments, **keywords)

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


def answer_of(files, folder, query="", seconds=60):
    """What the page at / posts to /answers. `files` are served by path, and others from the folder."""
    answers = queue.Queue()
    handler = functools.partial(Handler, files=files, answers=answers, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/?{query}"
        # A page of our own, from here alone; its sandbox would want a user that is not root.
        words = [shutil.which(BROWSER), "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--enable-logging=stderr", "--remote-debugging-port=0", page]
        with tempfile.TemporaryFile("w+") as said, processes(words, said):
            try:
                return answers.get(timeout=seconds)
            except queue.Empty:
                said.seek(0)
                raise AssertionError(f"no answer in {seconds} s; {said.read()[-3000:]}") from None
            finally:
                server.shutdown()
