"""Devices: which there are, and what happens when one is too small."""

from __future__ import annotations

import warnings

import pytest
import torch

from rlpost.errors import UnavailableError, UsageError
from rlpost.pipeline.accelerators import TorchDevices, devices_named
from rlpost.pipeline.device_choice import check_name


@pytest.mark.parametrize(
    ("name", "typed", "hint"),
    [
        ("tpu", "tpu", ""),
        ("meta", "meta", ""),
        ("", "''", ""),
        ("cuda:", "'cuda:'", ""),
        ("cuda:x", "cuda:x", ""),
        ("cuda:-1", "cuda:-1", ""),
        ("cuda:00", "cuda:00", ""),
        ("cuda:1000", "cuda:1000", ""),
        (":0", ":0", ""),
        ("cpu:0", "cpu:0", "; the CPU has no number: write cpu"),
        ("CUDA", "CUDA", "; did you mean cuda?"),
        ("rocm", "rocm", "; torch calls cards of NVIDIA and AMD cuda"),
        (
            "cuda:0,cuda:1",
            "cuda:0,cuda:1",
            "; for several cards write --device cuda and set CUDA_VISIBLE_DEVICES=0,1",
        ),
    ],
)
def test_a_name_that_is_no_device_is_an_error(name, typed, hint):
    with pytest.raises(UsageError) as caught:
        check_name(name)
    assert str(caught.value) == (
        f"--device {typed}: auto, cpu, cuda, cuda:N or another device of torch is needed, such as "
        f"xpu{hint}"
    )
    with pytest.raises(UsageError, match="--device "):
        devices_named(name)


def no_device():
    raise RuntimeError("Cannot access accelerator device when none is available.")  # torch 2.6


@pytest.mark.parametrize("current", [no_device, lambda: None])
def test_auto_is_the_cpu_without_another_device(current, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    assert devices_named("auto") == devices_named("cpu") == (torch.device("cpu"),)


def driver_too_old():
    warnings.warn(
        "CUDA initialization: The driver is too old. (Triggered at x.cpp:1)", stacklevel=1
    )
    return 0


@pytest.mark.parametrize(
    ("name", "build", "count", "texts"),
    [
        ("cuda", None, lambda: 0, ["built without CUDA", "pip install", "download.pytorch.org"]),
        ("cuda", "13.0", lambda: 0, ["no cuda device;", "check the driver with `nvidia-smi`"]),
        ("cuda", "13.0", driver_too_old, ["(CUDA initialization: The driver is too old)"]),
        ("cuda:2", "13.0", lambda: 2, ["finds 2 cuda devices, cuda:0 to cuda:1"]),
        ("mps", None, lambda: 0, ["computes no float64"]),
        ("mtia", None, lambda: 0, ["finds no mtia device; check its driver"]),
    ],
)  # fmt: skip
def test_a_missing_device_is_an_error_with_what_to_do(name, build, count, texts, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "device_count", count)
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UnavailableError) as caught:
        devices_named(name)
    for text in (f"--device {name}: ", *texts, "; --device cpu needs no GPU"):
        assert text in str(caught.value)


def test_hidden_cards_are_an_error_that_names_the_variable(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        UnavailableError, match="check CUDA_VISIBLE_DEVICES='', which is set, the driver"
    ):
        devices_named("cuda")


def test_auto_reports_why_torch_finds_no_card(monkeypatch, caplog):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", driver_too_old)
    caplog.set_level("WARNING", "rlpost")
    assert devices_named("auto") == (torch.device("cpu"),)
    assert "--device auto: CUDA initialization: The driver is too old; computing" in caplog.text


def test_chunks_fit_the_card_with_the_least_free_memory(monkeypatch):
    free = {0: 64 << 30, 1: 1 << 30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (free[card.index], 80 << 30))
    both = TorchDevices((torch.device("cuda", 0), torch.device("cuda", 1)))
    assert both.chunk_tokens(workers=4) == (1 << 30) // (2 * 2 * 512)
    assert both.chunk_tokens(workers=1) == (1 << 30) // (2 * 512)
    free[1] = 0
    assert both.chunk_tokens(workers=4) == 1 << 16
    free[1] = 80 << 30
    assert both.chunk_tokens(workers=4) == 1 << 21
