"""A process that has imported rlpost from one tree, and forks one for each command.

It runs as a program, with PYTHONPATH at the tree. It reads a JSON line for each command and
answers with one. Torch is imported once, not for every command. The command itself runs through
the entry point of the tree, in a process of its own: nothing is left of one for the next.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import random
import signal
import sys
import time
import traceback
from pathlib import Path

LONGEST = 240  # seconds of a command
WITHOUT = ("ray", "browse", "__main__")  # imported where they are used: they start other things


def main() -> None:
    """Import everything, then serve until stdin ends."""
    tree, entry = Path(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is no answer
    import rlpost

    if tree.resolve() not in Path(rlpost.__file__).resolve().parents:
        raise SystemExit(f"rlpost came from {rlpost.__file__}, not from {tree}")
    for module in pkgutil.walk_packages(rlpost.__path__, "rlpost.", onerror=lambda _: None):
        if not any(part in WITHOUT for part in module.name.split(".")):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(served(request, entry)) + "\n")
        answers.flush()


def served(request: dict, entry: str) -> dict:
    """Fork, let the child run, and see it end."""
    begun = time.monotonic()
    pid = os.fork()
    if not pid:
        live(request, entry)

    def late(*_: object) -> None:
        os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}


def live(request: dict, entry: str) -> None:
    """What the child does; it does not return."""
    code = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.chdir(request["folder"])
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ |= request["env"]
        random.seed(os.getpid())
        if request["function"]:
            called(request["file"], request["function"])
            code = 0
        else:
            sys.argv = ["rlpost", *request["words"]]
            module, _, name = entry.partition(":")
            getattr(importlib.import_module(module), name)()
            code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - it is shown, as the interpreter would
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def called(file: str, name: str) -> None:
    """Run a function of a file."""
    spec = importlib.util.spec_from_file_location("python_cases", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)()


if __name__ == "__main__":
    main()
