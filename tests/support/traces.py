"""Traces of what a program opens, imports and requests: a package, a tokenizer, a server."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from s3_server import QuietServer

if TYPE_CHECKING:
    from pathlib import Path

_COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from rlpost.cli.app import main

answers = []
for words in json.load(sys.stdin):
    sys.argv, code = ["rlpost", *words], 0
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
_ESTIMATE = '''
def estimate(rewards, offsets):
    """r - mean"""
    return rewards - rewards.mean()
'''
_OPENED, _NONBLOCK = 0x20, 0o4000  # IN_OPEN, IN_NONBLOCK


class Package:
    """An installed package with an estimator, in a folder for PYTHONPATH; its import is recorded.

    Args:
        folder: gets a module and its dist-info.
        name: of the package, and of the estimator.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.trace = folder, folder / "imported"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rlpost.estimators]\n{name} = {name}:estimate\n")
        (folder / f"{name}.py").write_text(
            f"open({str(self.trace)!r}, 'a').write('x')\n{_ESTIMATE}"
        )

    def imported(self) -> bool:
        """Return whether the package was imported since the last call."""
        found = self.trace.exists()
        self.trace.unlink(missing_ok=True)
        return found

    def run(self, *commands: tuple[object, ...], **environment: str) -> list[tuple[int, str, str]]:
        """Run commands in one new process; return the exit code and the texts of each."""
        paths = os.pathsep.join([str(self.folder), *sys.path])
        ran = subprocess.run(
            [sys.executable, "-c", _COMMANDS],
            input=json.dumps([[*map(str, words)] for words in commands]),
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": paths, **environment},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return [tuple(one) for one in json.loads(ran.stdout)]


class Opens:
    """Records whether any process opens a file; Linux only."""

    def __init__(self, file: Path) -> None:
        libc = ctypes.CDLL(None)
        self._queue = libc.inotify_init1(_NONBLOCK)
        libc.inotify_add_watch(self._queue, os.fsencode(file), _OPENED)

    def opened(self) -> bool:
        """Return whether the file was opened since the last call."""
        try:
            return bool(os.read(self._queue, 1 << 16))
        except BlockingIOError:
            return False


class Hub:
    """A server in place of the Hugging Face Hub, which records requests, and has nothing."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                requests.append(f"{self.path} {self.headers['Authorization']}")
                self.send_error(404)

            do_HEAD = do_GET  # noqa: N815 - the name of the server's method

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
