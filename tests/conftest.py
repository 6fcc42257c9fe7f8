"""How tests are run: Hypothesis profiles, workers, threads; and fixtures of several test files."""

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

# README's command draws the same examples each time; `.ci/run --nightly` draws others, and stores
# those that fail. Mutants meet the same examples as README's command, and nothing is shrunk.
settings.register_profile(
    "readme", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("nightly", settings.get_profile("readme"), derandomize=False)
settings.register_profile(
    "mutation", settings.get_profile("readme"), phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)  # fmt: skip
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "readme"))

# Tests in this process have small tensors, for which threads of torch wait longer than they
# compute. Processes that tests start have torch's own number.
torch.set_num_threads(1)

# Captured output is that of a pipe, whose lines wrap only at a width in the environment.
os.environ.pop("COLUMNS", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One worker more than cores: some tests wait for processes, disks and signals."""
    return min(len(os.sched_getaffinity(0)) + 1, 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let each worker run consecutive tests, so that fixtures of a module are made once."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - xdist may be absent

    return WorkStealingScheduling(config, log)


def pytest_collection_finish():
    """Leave imported modules and tests out of garbage collections, and start fewer of them.

    Collections took an eighth of the time of tests. The program does the same at its start.
    """
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_sessionfinish():
    """Let the interpreter free at its end what was left out."""
    gc.unfreeze()


@pytest.fixture(scope="module")
def uninitialised_is_nan():
    """Fill uninitialised torch memory with NaN, so that reading it changes a result."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture(scope="module")
def server():
    """An S3 server in this process."""
    from s3_server import Server  # noqa: PLC0415 - moto may be absent

    server = Server()
    yield server
    server.close()


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """An environment without AWS settings, for tests to set."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    from rlpost.io import stores  # noqa: PLC0415

    stores.object_store.cache_clear()
    yield monkeypatch
    stores.object_store.cache_clear()


@pytest.fixture
def s3(server, aws):
    """The server, with an empty bucket `lab`, and the environment that points to it."""
    server.reset()
    aws.setenv("AWS_ENDPOINT_URL", server.url)
    aws.setenv("AWS_ACCESS_KEY_ID", "key")
    aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield server
    assert server.uploads() == []


@pytest.fixture
def small_steps(monkeypatch):
    """Small parts and ranges, so that each loop has several iterations with little data."""
    from rlpost.io import outputs, ranges, transfers  # noqa: PLC0415

    monkeypatch.setattr(ranges, "REQUEST_BYTES", 9000)
    monkeypatch.setattr(transfers, "PART_BYTES", 20_000)
    monkeypatch.setattr(outputs, "READ_BYTES", 7000)


@pytest.fixture
def enriched(tmp_path):
    """An enriched file."""
    from runs import rollout, run, save  # noqa: PLC0415 - the whole program

    source = save(rollout(48), tmp_path / "in.parquet", rows=10)
    target = tmp_path / "out.parquet"
    assert run("advantages", source, target, "-q", "--kl-coef", "0.1").code == 0
    return target


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Run `rlpost advantages` without its work, and return what `api.advantages` got."""
    from runs import rollout, run, save  # noqa: PLC0415 - the whole program

    from rlpost import api  # noqa: PLC0415

    save(rollout(), tmp_path / "in.parquet")
    monkeypatch.chdir(tmp_path)
    calls = []

    def spy(inputs, output, recipe, options):
        calls.append((inputs, output, recipe, options))
        return {}

    monkeypatch.setattr(api, "advantages", spy)

    def ask(*words):
        ran = run("advantages", "in.parquet", "out.parquet", "-q", *words)
        assert ran == (0, "", "")
        return calls[-1]

    return ask
