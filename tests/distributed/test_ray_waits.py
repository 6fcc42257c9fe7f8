"""Waits on Ray: a cluster that does not start, tasks that do not finish, memory that runs out.

And signals while a cluster starts.
"""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
from distributed_runs import steps_table, write_files
from signal_sweep import MARK, marked

from rlpost.errors import UnavailableError

if find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'rlpost[ray]'", allow_module_level=True)

from rlpost.distributed import ray as on_ray

pytestmark = pytest.mark.nightly

RETRIES = "RAY_task_oom_retries"


@pytest.fixture
def environment(monkeypatch):
    for name in ("RAY_ADDRESS", *on_ray._OWN_CLUSTER):
        monkeypatch.delenv(name, raising=False)
    with mock.patch.dict(os.environ):
        yield


@pytest.mark.usefixtures("environment")
def test_a_cluster_that_does_not_start_in_time_is_unavailable():
    error = Exception("The current node timed out during startup.\nmore")  # Ray's class for it
    with (
        mock.patch("ray.init", side_effect=error),
        pytest.raises(UnavailableError) as raised,
        on_ray.connected(None),
    ):
        pass
    text = str(raised.value)
    assert text.startswith("--engine ray: no Ray cluster: The current node timed out")
    assert "run again when this machine is less busy" in text
    assert "more" not in text


def test_tasks_that_never_have_memory_end_the_run(tmp_path):
    """Ray retries them without end by itself; here the pauses between retries are short."""
    write_files(steps_table(20), tmp_path / "in", 1)
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", "in", "out", "--engine", "ray"]
    names = ("RAY_ADDRESS", RETRIES)
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"RAY_memory_usage_threshold": "0.001", "RAY_task_oom_retry_delay_base_ms": "10"}
    ran = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    assert ran.returncode == UnavailableError.exit_code, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert "(OutOfMemoryError)" in last
    assert "--workers N" in last
    assert not (tmp_path / "out").exists()


HANDLERS = """
import os, sys
from rlpost import api
from rlpost.io import shutdown
if sys.argv[1] == "program":
    shutdown.install_handlers()
with api._without_ray_signal_handlers():
    import ray
from ray._private.ray_constants import RAY_DISABLE_FAILURE_SIGNAL_HANDLER as disabled
print(disabled, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER" in os.environ)
"""


@pytest.mark.parametrize(
    ("process", "disabled"), [("program", "True False"), ("library", "False False")]
)
def test_ray_installs_no_handlers_of_its_own_in_the_program(process, disabled):
    argv = [sys.executable, "-c", HANDLERS, process]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == disabled, ran.stderr


@pytest.mark.parametrize("process", ["gcs_server", "raylet/raylet"])
def test_a_signal_while_a_cluster_starts_ends_all_of_it(tmp_path, process):
    write_files(steps_table(20), tmp_path / "in", 1)
    mark = os.urandom(8).hex()
    environment = {**os.environ, MARK: mark}
    environment.pop("RAY_ADDRESS", None)
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", "in", "out", "--engine", "ray"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as run:
        while not any(process in command for command in marked(mark)):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=30)
    assert run.returncode == 143, err
    assert b"Traceback" not in err
    assert not (tmp_path / "out").exists()
    end = time.monotonic() + 90  # agents of Ray look for their parent now and then
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.1)
    assert marked(mark) == []
