"""An installation and its machine: versions, memory, devices, and a self-test."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from rlpost._version import __version__
from rlpost.analysis.verify import ColumnDifference
from rlpost.errors import UnavailableError
from rlpost.io.system import cores, cpu_model, memory
from rlpost.pipeline.device import AUTO, CPU, TORCH_CPU
from rlpost.pipeline.options import Options
from rlpost.pipeline.run import enrich
from rlpost.pipeline.torch_device import accelerator, torch_device
from rlpost.recipe.flags import PREFIX
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Json = dict[str, Any]
TOKENS = 100_000
"""List elements of the self-test's table."""
_GROUPS, _GROUP = 64, 8
_OTHER_CHUNKS = Options(CPU, chunk_tokens=30_000, workers=1)
LIBRARIES = (
    *("torch", "pyarrow", "polars", "numpy", "pydantic", "typer", "rich", "fsspec", "msgspec"),
    *("ray", "obstore", "botocore", "huggingface-hub", "textual"),
)
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS")
RECIPES = {
    "grpo": Recipe(estimator="grpo"),
    "gae, KL, whitening": Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True),
}
_SAME_BITS = ("grpo",)
"""Recipes whose results are the same bits on every device: no sum over tokens is in them."""


def examine(device: str) -> Json:
    """Return the facts about an installation and its machine, and the results of a self-test.

    The self-test runs `RECIPES` on a table in memory: on the CPU in chunks of two sizes, and on
    each other device. The CPU's results are the reference.

    Args:
        device: what is tested beside the CPU: a name of --device; `auto` is all devices.

    Returns:
        `problems` lists what is wrong; `ok` is true if there is nothing.

    Raises:
        UsageError: torch has no such device.
    """
    devices, problems = _chosen(device)
    tests = [*_self_test(devices)]
    failed = [test for test in tests if test["problem"] is not None]
    problems += [f"{test['device']}, {test['recipe']}: {test['problem']}" for test in failed]
    names = [*_VARIABLES, *sorted(name for name in os.environ if name.startswith(PREFIX))]
    return {
        "rlpost": __version__,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "builds": _builds(),
        "system": platform.platform(),
        "cores": {"usable": cores(), "all": os.cpu_count()},
        "memory": memory()._asdict(),
        "devices": [*map(_facts, devices)],
        # The value of an option may be private, such as a path or a URL.
        "environment": {
            name: os.environ[name] if name in _VARIABLES else None
            for name in names
            if name in os.environ
        },
        "self_test": {"tokens": TOKENS, "results": tests},
        "problems": problems,
        "ok": not problems,
    }


def _chosen(name: str) -> tuple[list[str], list[str]]:
    """Return the CPU and the other devices that are tested, and the problems."""
    kind = accelerator() if name == AUTO else None
    cards = [f"{kind}:{n}" for n in range(torch.accelerator.device_count())] if kind else []
    devices, problems = [CPU], []
    for card in cards if name in (AUTO, CPU) else [name]:
        try:
            torch_device(card)
        except UnavailableError as error:
            problems.append(str(error))
        else:
            devices.append(card)
    return devices, problems


def _version(name: str) -> str | None:
    """Return the version of a library; None if it is not installed."""
    if name == "torch":
        return str(torch.__version__)  # with its build
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _builds() -> Json:
    """Return what torch was built for, and the version of NVIDIA's driver."""
    driver = Path("/proc/driver/nvidia/version")
    lines = driver.read_text(encoding="utf-8").splitlines() if driver.is_file() else []
    builds = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    return builds | {
        "xpu": getattr(torch.version, "xpu", None),
        "nvidia_driver": lines[0].removeprefix("NVRM version: ") if lines else None,
    }


def _facts(name: str) -> Json:
    """Return what a device reports about itself."""
    if name in (CPU, TORCH_CPU):
        return {"device": name, "name": cpu_model(), "memory": memory().total, "capability": None}
    module, facts = torch.get_device_module(name), {}
    for fact in ("get_device_name", "mem_get_info", "get_device_capability"):
        with suppress(Exception):  # a card that does not work may fail in any way
            facts[fact] = getattr(module, fact)(name)
    capability = facts.get("get_device_capability")
    return {
        "device": name,
        "name": facts.get("get_device_name"),
        "memory": facts.get("mem_get_info", (None, None))[1],
        "capability": ".".join(map(str, capability)) if isinstance(capability, tuple) else None,
    }


def _self_test(devices: Iterable[str]) -> Iterator[Json]:
    """Yield the differences of each recipe on each device from the CPU's results."""
    table = rollouts(TOKENS)
    for name, recipe in RECIPES.items():
        reference, _ = enrich(table, recipe, Options(CPU))
        for device in devices:
            result: Json = {"device": device, "recipe": name}
            try:
                other = _OTHER_CHUNKS if device == CPU else Options(device)
                computed, _ = enrich(table, recipe, other)
            except Exception as error:  # noqa: BLE001 - whatever fails is reported
                line = next(iter(str(error).splitlines()), "")
                problem = f"{type(error).__name__}: {line}"
                result |= {"verdict": "failed", "largest_difference": None, "problem": problem}
            else:
                exact = device == CPU or name in _SAME_BITS
                result |= _compared(computed, reference, exact=exact)
            yield result


def _compared(computed: pa.Table, reference: pa.Table, *, exact: bool) -> Json:
    """Return the verdict on the new columns, the largest difference, and the problem, if any.

    Args:
        computed: the enriched table.
        reference: the same table, enriched on the CPU.
        exact: whether the same bits are needed; else 1e-5 relative.
    """
    columns = [ColumnDifference(name) for name in ("advantages", "returns")]
    for column in columns:
        column.add(*(table[column.name].combine_chunks() for table in (computed, reference)))
    verdicts = {column.facts()["verdict"] for column in columns}
    order = ("differs", "equal to rounding", "identical")
    verdict = next(verdict for verdict in order if verdict in verdicts)
    largest = max(column.totals.largest for column in columns)
    wrong = verdict == "differs" or (exact and verdict != "identical")
    problem = f"differs from the CPU's results by up to {largest:.3g}" if wrong else None
    return {"verdict": verdict, "largest_difference": largest, "problem": problem}


def rollouts(tokens: int) -> pa.Table:
    """Return a table of responses in prompt groups, with observation tokens, of so many tokens."""
    random = np.random.default_rng(0)
    rows = _GROUPS * _GROUP
    shares = random.lognormal(sigma=0.8, size=rows).cumsum()
    offsets = np.concatenate([[0], (shares / shares[-1] * tokens).astype(np.int32)])
    old = -random.exponential(0.5, tokens).astype(np.float32)
    lists = {
        "old_log_probs": old,
        "ref_log_probs": old + random.normal(0, 0.1, tokens).astype(np.float32),
        "values": random.normal(0, 0.5, tokens).astype(np.float32),
        "response_mask": (np.arange(tokens) // 50 % 10 > 0).view(np.uint8),
    }
    columns = {name: pa.ListArray.from_arrays(offsets, values) for name, values in lists.items()}
    rewards = random.normal(0.3, 0.4, rows)
    return pa.table({"prompt_id": np.arange(rows) // _GROUP, "reward": rewards, **columns})
