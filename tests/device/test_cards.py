"""Several cards: their names, which threads use them, and what happens if one does not work."""

import threading
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
import torch

import rlpost
from rlpost.analysis import doctor
from rlpost.errors import UnavailableError
from rlpost.pipeline.accelerators import TorchDevices, devices_named

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"


@pytest.fixture
def both(shadow):
    """The devices of both cards."""
    return tuple(torch.device(shadow.NAME, index) for index in range(2))


def test_a_kind_is_all_its_cards_and_a_number_is_one(both):
    assert devices_named("shadow") == devices_named("auto") == both
    assert devices_named("shadow:1") == both[1:]
    with pytest.raises(UnavailableError, match="finds 2 shadow devices, shadow:0 to shadow:1"):
        devices_named("shadow:2")


def test_threads_share_the_cards_evenly_and_use_streams_again(both):
    devices, together, here = TorchDevices(both), threading.Barrier(4, timeout=30), []

    def use():
        with devices.stream():
            together.wait()
            here.append(devices.here)

    for _ in range(2):
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(str, here)) == ["shadow:0"] * 4 + ["shadow:1"] * 4
    assert {card: len(streams) for card, streams in devices._free.items()} == dict.fromkeys(both, 2)


def test_a_run_on_two_cards_has_the_bytes_of_the_cpu(both, tmp_path, monkeypatch):
    used, stream = set(), TorchDevices.stream

    @contextmanager
    def seen(self):
        with stream(self):
            used.add(self.here)
            yield

    monkeypatch.setattr(TorchDevices, "stream", seen)
    recipe = rlpost.Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True)
    for device in ("cpu", "shadow"):
        name = "torch:cpu" if device == "cpu" else device
        options = rlpost.Options(device=name, workers=3, chunk_tokens=2000)
        rlpost.advantages(SAMPLE, tmp_path / f"{device}.parquet", recipe, options)
    assert used == {torch.device("cpu"), *both}
    left, right = (pl.read_parquet(tmp_path / f"{device}.parquet") for device in ("cpu", "shadow"))
    assert left.equals(right)


def test_a_card_that_fails_is_left_out_by_auto_and_an_error_by_name(shadow, both, caplog):
    caplog.set_level("WARNING", "rlpost")
    with shadow.limited(0, 0):
        assert devices_named("auto") == both[1:]
        assert "--device auto leaves out shadow:0: it fails (shadow:0 out of memory" in caplog.text
        with pytest.raises(
            UnavailableError, match=r"--device shadow: shadow:0 fails \(shadow:0 out"
        ):
            devices_named("shadow")
        assert devices_named("shadow:1") == both[1:]


@pytest.mark.usefixtures("shadow")
def test_cards_without_float64_are_not_used(monkeypatch, caplog):
    ones = torch.ones

    def in_float32(*sizes, dtype=None, **options):
        if dtype == torch.float64:
            raise TypeError("the framework does not support float64")
        return ones(*sizes, dtype=dtype, **options)

    monkeypatch.setattr(torch, "ones", in_float32)
    caplog.set_level("WARNING", "rlpost")
    assert devices_named("auto") == (torch.device("cpu"),)
    assert caplog.text == ""
    with pytest.raises(UnavailableError, match=r"shadow:0 computes no float64.*; --device cpu"):
        devices_named("shadow")


def test_the_doctor_tests_every_card(both, monkeypatch):
    monkeypatch.setattr(doctor, "TOKENS", 20_000)
    found = doctor.examine("auto")
    verdicts = {(one["device"], one["verdict"]) for one in found["self_test"]["results"]}
    assert verdicts == {(name, "identical") for name in ("cpu", *map(str, both))}
    assert found["ok"]
    devices, problems = doctor._chosen("shadow:1")
    assert [*devices.values()] == [None, "not chosen", None]
    assert problems == []
