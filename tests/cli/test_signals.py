"""Signals: from the first line of the program to its end they give its exit codes."""

import signal

import pytest
from processes import python
from runs import rollout, save

BUILT_IN = {"__future__", "_signal", "atexit", "gc", "os", "sys", "time"}
"""Modules that take no time to import, or that every interpreter has imported when it starts."""
MODULES = """
import sys
at_start = {*sys.modules}
import rlpost.cli.main
print(*{*sys.modules} - at_start)
"""
AT_IMPORT = """
import os, sys

class Sender:
    module = sys.argv.pop()

    @staticmethod
    def find_spec(name, *_):
        if name == Sender.module:
            Sender.module = None
            try:
                os.kill(os.getpid(), {number})
            except BaseException:  # torch calls Python from C++ that aborts the process then
                os._exit(99)

sys.meta_path.insert(0, Sender)
from rlpost.cli.main import leave
leave()
"""
BUG_THEN_SIGNAL = """
import builtins, os, sys
import rlpost.cli.app as app
from rlpost.cli.main import leave

class Late:
    kill, own = os.kill, os.getpid()
    def __del__(self):
        self.kill(self.own, 15)

def bug(started):
    raise LookupError("a bug")

app.main, builtins.late = bug, Late()
leave()
"""


def test_nothing_slow_is_imported_before_signals_are_handled():
    modules = {*python(MODULES).stdout.split()} - BUILT_IN
    assert {name for name in modules if not name.startswith("rlpost")} == set()
    assert modules == {"rlpost", "rlpost._version", "rlpost.cli", "rlpost.cli.main"}


@pytest.mark.parametrize(
    "module",
    [
        "typer",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("rlpost.io.shutdown", "signal", "threading", "rlpost.cli.app",
                         "pyarrow", "numpy", "rlpost.api", "rlpost.pipeline.run")
        ),
    ],
)  # fmt: skip
def test_a_signal_at_any_import_gives_its_exit_code(tmp_path, module):
    source = save(rollout(), tmp_path / "in.parquet")
    out = tmp_path / "out"
    out.mkdir()
    ran = python(
        AT_IMPORT.format(number=int(signal.SIGTERM)),
        "advantages", source, out / "o.parquet", "-q", module,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (143, ""), ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(out.iterdir()) == []


def test_a_signal_after_a_bug_does_not_change_its_exit_code():
    """The interpreter removes handlers before it frees modules; the program ends without it."""
    ran = python(BUG_THEN_SIGNAL, "--version")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "LookupError: a bug"
