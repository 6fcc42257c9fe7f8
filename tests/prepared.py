"""Processes that have imported libraries: forked from one that did, each starts at once.

Started anew, a process spends two seconds on imports. Here it only runs its program; otherwise it
is a process of its own, with its own arguments, streams, environment and folder, as with
`subprocess.Popen`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SERVE = '''
import rlpost.cli.commands.advantages, rlpost.render.summary
import rlpost.formats.inputs, rlpost.pipeline.output.files, rlpost.pipeline.run

def serve(number):
    """Return, in a forked process for each request, the program that it asks for."""
    import json, os, socket, sys

    requests = socket.socket(fileno=number)
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:  # it ends when all others have ended
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    requests.close()
    request, (status, *streams) = json.loads(data), files
    pid = os.fork()
    if pid:  # this process waits for the other one
        for file in streams:
            os.close(file)
        os.write(status, pid.to_bytes(4, "little"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, code.to_bytes(4, "little", signed=True))
        os._exit(0)
    os.close(status)
    for place, file in enumerate(streams):
        os.dup2(file, place)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout = open(0, encoding=encoding), open(1, "w", encoding=encoding)
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    return request["program"]

exec(serve(int(sys.argv.pop(1))))
'''
PROGRAM = "from rlpost.cli.main import leave\nleave()\n"


class Started:
    """A process that was started, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, status, streams, *, text):
        self._status, self.returncode = status, None
        self.pid = int.from_bytes(os.read(status, 4), "little")
        modes = ("w", "r", "r") if text else ("wb", "rb", "rb")
        self.stdin, self.stdout, self.stderr = (
            file if file is None else open(file, mode)  # noqa: SIM115, PTH123
            for file, mode in zip(streams, modes, strict=True)
        )

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int.from_bytes(os.read(self._status, 4), "little", signed=True)
            os.close(self._status)
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Close stdin; return what the process writes to its end."""
        if self.stdin:
            self.stdin.close()
        with ThreadPoolExecutor(2) as readers:
            ends = [readers.submit(one.read) for one in (self.stdout, self.stderr)]
            try:
                out, err = (end.result(timeout) for end in ends)
                self.wait(timeout)
            except TimeoutError:
                self.kill()
                raise
        self.stdout.close()
        self.stderr.close()
        return out, err


class Prepared:
    """A process that has run `preamble`, and starts programs in forks of itself."""

    def __init__(self, preamble, *words):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-c", preamble + SERVE, *words, str(theirs.fileno())]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, *words, program=PROGRAM, stdin=None, cwd=None, env=None, text=True):
        """Start a program with these words as its arguments."""
        request = {
            "argv": ["rlpost", *map(str, words)],
            "program": program,
            "cwd": str(cwd or os.getcwd()),  # noqa: PTH109
            "env": dict(os.environ if env is None else env),
        }
        status, status_end = os.pipe()
        given, ours = (
            os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        )
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        theirs = [status_end, given, out_end, err_end]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for file in theirs:
            os.close(file)
        return Started(status, (ours, out, err), text=text)

    def close(self):
        self._socket.close()
        self._process.wait(30)
