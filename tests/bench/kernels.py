"""Kernels and transfers on a device, each as a share of what its memory or its bus can do."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlpost.io.clock import Clock
from rlpost.kernels.arrays import like, on_host
from rlpost.kernels.arrays.torch_arrays import owners, with_host
from rlpost.kernels.corrections import importance_weights, log_weights
from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import token_moments
from rlpost.kernels.scans import reverse_scan, reverse_scan_each
from rlpost.kernels.segments import (
    count_true,
    lengths,
    offsets_of,
    positions_of,
    segment_max,
    segment_sum,
    spread,
)
from rlpost.pipeline.data import Batch
from rlpost.pipeline.device_transfers import DeviceTransfers
from rlpost.pipeline.stages.tokens import whiten
from tests.bench.inputs import LOG_STD, MAX_TOKENS, MEAN_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Json = dict[str, Any]
ROUNDS = 7
_LEAST_SECONDS = 0.01  # of the calls of one round
_SLOW_SECONDS = 0.3  # a slower call is timed once more only
_TURN, _OBSERVED = 80, 16  # of 80 tokens of a response with tools, the last 16 are observations


@dataclass(frozen=True)
class Data:
    """Ragged columns on a device."""

    offsets: Tensor
    mask: Tensor
    """[T] bool: all tokens but the observations of tools."""
    old: Tensor
    ref: Tensor
    values: Tensor
    single: Tensor
    """[T] float32, as files store it; the other columns are float64."""
    decays: Tensor
    """[N] a decay for each response."""

    @classmethod
    def of(cls, tokens: int, device: torch.device) -> Data:
        """Return responses with log-normal lengths, about `tokens` tokens in total."""
        rng = np.random.default_rng(0)
        location = np.log(MEAN_TOKENS) - LOG_STD**2 / 2
        count = max(4, tokens // MEAN_TOKENS)
        sizes = np.clip(rng.lognormal(location, LOG_STD, count), 4, MAX_TOKENS).astype(np.int64)
        offsets = offsets_of(sizes)
        total = int(offsets[-1])
        position = np.arange(total) - spread(offsets[:-1], offsets)
        columns = (torch.from_numpy(rng.standard_normal(total, dtype=np.float32)) for _ in range(3))
        old, ref, values = ((column * 0.1).to(device).to(torch.float64) for column in columns)
        return cls(
            offsets=like(offsets, old),
            mask=like(position % _TURN < _TURN - _OBSERVED, old),
            old=old,
            ref=ref,
            values=values,
            single=values.to(torch.float32),
            decays=torch.linspace(0.5, 1.0, count, dtype=torch.float64).to(device),
        )

    @property
    def batch(self) -> Batch:
        """The batch that whitening gets: two batches of responses alternate in it."""
        rows = torch.zeros_like(self.decays)
        rows[::2] = 1.0
        numbers = {"advantages:mean": rows, "advantages:scale": rows + 1}
        return Batch(self.offsets, self.mask, {"advantages": self.values}, numbers, full=True)


@dataclass(frozen=True)
class Kernel:
    """A function of the data, and the fewest bytes that it must move."""

    name: str
    least: float
    """Bytes a token: each input read once, each output written once, at the width it has now."""
    run: Callable[[Data], object]


def _kl(estimator: str) -> Callable[[Data], Tensor]:
    return lambda data: token_kl(data.old, data.ref, estimator=estimator)


def _weights(level: str) -> Callable[[Data], object]:
    return lambda data: importance_weights(
        log_weights(data.old, data.ref, data.mask, data.offsets, level=level), cap=2.0
    )


def _owners(data: Data) -> Tensor:
    # A tensor of offsets remembers its owners, so this one is new.
    return owners(with_host(data.offsets.clone(), lambda: on_host(data.offsets)))


KERNELS = (
    Kernel("float32 to float64", 12, lambda data: data.single.to(torch.float64)),
    Kernel("float64 to float32", 12, lambda data: data.values.to(torch.float32)),
    Kernel("owners", 4, _owners),
    Kernel("spread", 8, lambda data: spread(data.decays, data.offsets)),
    Kernel("segment sum", 8, lambda data: segment_sum(data.values, data.offsets)),
    Kernel("segment max", 8, lambda data: segment_max(data.values, data.offsets)),
    Kernel("count of policy tokens", 1, lambda data: count_true(data.mask, data.offsets)),
    Kernel("positions of policy tokens", 9, lambda data: positions_of(data.mask)),
    Kernel("moments", 8, lambda data: token_moments(data.values, None, data.offsets)),
    Kernel(
        "moments with a mask", 9, lambda data: token_moments(data.values, data.mask, data.offsets)
    ),
    Kernel("KL k1", 24, _kl("k1")),
    Kernel("KL k3", 24, _kl("k3")),
    Kernel("scan", 16, lambda data: reverse_scan(data.values, data.offsets, 0.95)),
    Kernel(
        "scan, a decay a token",
        24,
        lambda data: reverse_scan_each(
            data.values, data.offsets, spread(data.decays, data.offsets)
        ),
    ),
    Kernel("whitening", 16, lambda data: whiten(data.batch, column="advantages")),
    Kernel("weights of tokens", 26, _weights("token")),
    Kernel("weights of responses", 27, _weights("sequence")),
    Kernel("weights of segments", 27, _weights("segment")),
)


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call: the median of rounds, each of some calls and one wait."""

    def timed(calls: int) -> float:
        synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronise(device)
        return (time.perf_counter() - start) / calls

    timed(1)  # loads code, and lets torch's allocators reserve memory
    once = timed(1)
    calls = max(1, int(_LEAST_SECONDS / max(once, 1e-7)))
    rounds = ROUNDS if once < _SLOW_SECONDS else 1
    return statistics.median(timed(calls) for _ in range(rounds))


def copy_speed(tokens: int, device: torch.device) -> float:
    """Return GB/s of a copy within the device's memory, bytes read plus bytes written."""
    source = torch.ones(tokens, dtype=torch.float64, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device) / 1e9


def kernels(tokens: int, device: torch.device) -> Json:
    """Return the speed of each kernel: M tokens/s, GB/s, and the share of the speed of a copy."""
    data, copied = Data.of(tokens, device), copy_speed(tokens, device)
    total = len(data.values)
    rows = {}
    for kernel in KERNELS:
        seconds = seconds_of(lambda run=kernel.run: run(data), device)
        speed = total * kernel.least / seconds / 1e9
        rows[kernel.name] = {
            "least_bytes_per_token": kernel.least,
            "milliseconds": seconds * 1e3,
            "million_tokens_per_second": total / seconds / 1e6,
            "gb_per_second": speed,
            "share_of_copy": speed / copied,
        }
    responses = int(lengths(data.offsets).numel())
    return {"tokens": total, "responses": responses, "copy_gb_per_second": copied, "kernels": rows}


def host_buffer(size: int, device: torch.device) -> Tensor:
    """Return bytes on the host, in memory that a card copies from without the CPU."""
    return torch.ones(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


TRANSFERS = {
    "to_device": ("to_device", "to the device, pinned"),
    "to_host": ("to_host", "to the host, pinned"),
    "both": ("to_device", "both ways at once, pinned"),
    "plain": ("to_device", "to the device, not pinned"),
    "send": ("to_device", "four columns, packed and sent"),
    "send_staged": ("to_device", "the same, but packed before"),
    "fetch": ("to_host", "two columns, packed and fetched"),
}
"""Copies between host and device: what each is a share of, and what it does."""


def transfers(size: int, device: torch.device) -> Json:
    """Return GB/s of copies of `size` bytes to the device and from it, by name in TRANSFERS."""
    calls = _copies(size, device)
    if device.type != "cpu":
        calls |= _packed(size, device)
    speeds = {name: moved / seconds_of(call, device) / 1e9 for name, (moved, call) in calls.items()}
    return {"bytes": size, "speeds": speeds}


def _copies(size: int, device: torch.device) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return copies by torch alone, each with its bytes."""
    pinned, back = host_buffer(size, device), host_buffer(size, device)
    plain = torch.ones(size, dtype=torch.uint8)
    there, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))

    def to_device() -> None:
        there.copy_(pinned, non_blocking=True)

    def to_host() -> None:
        back.copy_(other, non_blocking=True)

    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "to_device": (size, to_device),
        "to_host": (size, to_host),
        "plain": (size, lambda: there.copy_(plain)),
    }
    if device.type == "cuda":
        streams = torch.cuda.Stream(device), torch.cuda.Stream(device)

        def both() -> None:
            for stream, copy in zip(streams, (to_device, to_host), strict=True):
                with torch.cuda.stream(stream):
                    copy()

        calls["both"] = (2 * size, both)
    return calls


def _packed(size: int, device: torch.device) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return the transfers of a chunk of four float32 columns, and of two columns of results."""
    ways, column = DeviceTransfers(Clock()), np.ones(size // 16, np.float32)
    columns = {f"column {index}": column.copy() for index in range(4)}
    results = {
        name: torch.from_numpy(columns[name]).to(device) for name in ("column 0", "column 1")
    }
    offsets = np.array([0, len(column)])
    parts = {name: [one] for name, one in columns.items()}
    staged = ways.stage(offsets, np.ones(len(column), np.bool_), parts, device, full=True)
    return {
        "send": (16 * len(column), lambda: ways.send(columns, device)),
        "send_staged": (16 * len(column), staged.sent),
        "fetch": (8 * len(column), lambda: ways.fetch(results)),
    }
