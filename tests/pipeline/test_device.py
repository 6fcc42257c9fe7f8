"""Devices: their names, and what happens if one is missing or too small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rlpost
from rlpost.errors import NotEnoughMemoryError, UnavailableError, UsageError
from rlpost.io.clock import Clock
from rlpost.pipeline import run
from rlpost.pipeline import torch_device as torch_devices
from rlpost.pipeline.torch_device import torch_device

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"


@pytest.mark.parametrize(
    "name",
    ["tpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:00", ":0", "cpu:0", "CUDA", "cuda:0,cuda:1"],
)
def test_a_name_that_is_no_device_is_an_error(name):
    with pytest.raises(UsageError) as caught:
        torch_device(name)
    typed = name or "''"
    assert str(caught.value).startswith(
        f"--device {typed}: auto, cpu, cuda, cuda:N or another device of torch is needed"
    )


def too_old(*_, **__):
    raise RuntimeError("The NVIDIA driver on your system is too old.\nmore lines")


def without_float64(*_, dtype, **__):
    raise TypeError(f"no {dtype}")


@pytest.mark.parametrize(
    ("ones", "reason"),
    [
        (too_old, "The NVIDIA driver on your system is too old"),
        (without_float64, "no torch.float64"),
    ],
)
def test_a_device_that_does_not_compute_is_an_error_with_what_to_do(ones, reason, monkeypatch):
    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(UnavailableError) as caught:
        torch_device("cuda:1")
    expected = f"--device cuda:1: torch {torch.__version__}: {reason}; --device cpu needs no GPU"
    assert str(caught.value).startswith(expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:1000", "xpu", "mps", "mtia", "meta"])
def test_a_missing_device_is_an_error(name):
    with pytest.raises(UnavailableError, match=f"^--device {name}: torch .*; --device cpu"):
        torch_device(name)


def test_auto_is_the_cpu_for_little_data_and_without_a_card(monkeypatch):
    def name_for(token_bytes):
        return run.device_for("auto", token_bytes, Clock()).name

    large = run.LEAST_BYTES
    monkeypatch.setattr(torch_devices, "torch_device", torch.device)
    monkeypatch.setattr(run, "_DRIVERS", ("/",))
    assert name_for(large - 1) == "cpu"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert name_for(large) == "cpu"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for kind, name in (("cuda", "cuda"), ("mps", "cpu")):
        there = torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda there=there: there)
        assert name_for(large) == name
    monkeypatch.setattr(run, "_DRIVERS", ("/no/driver",))
    assert name_for(large) == "cpu"


def test_a_chunk_that_does_not_fit_is_an_error_with_what_to_do(tmp_path, monkeypatch):
    def batch(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run.Decoder, "batch", batch)
    with pytest.raises(NotEnoughMemoryError) as caught:
        rlpost.advantages(
            SAMPLE, tmp_path / "out.parquet", options=rlpost.Options(device="torch:cpu")
        )
    assert f"{SAMPLE}, row 0: this chunk does not fit into the memory of cpu" in str(caught.value)
    assert "smaller chunks need less: --chunk-tokens" in str(caught.value)
    assert not list(tmp_path.iterdir())
