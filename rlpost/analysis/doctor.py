"""An installation and its machine: versions, memory, devices, free space, and a self-test."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from rlpost._version import __version__
from rlpost.analysis.verify import ColumnDifference
from rlpost.errors import UnavailableError, UsageError
from rlpost.io.machine import core_limit, cpu_model, memory
from rlpost.io.paths import without_home
from rlpost.io.system import cores
from rlpost.pipeline.accelerators import NO_FLOAT64, accelerators, devices_named, memory_of
from rlpost.pipeline.options import Options
from rlpost.pipeline.run import enrich
from rlpost.recipe.flags import PREFIX
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray


Json = dict[str, Any]
TOKENS = 1_000_000
"""List elements of the self-test's table."""
_GROUPS, _GROUP = 256, 8
_CPU = torch.device("cpu")
_OTHER_CHUNKS = Options("cpu", chunk_tokens=30_000, workers=1)
LIBRARIES = (
    "torch", "pyarrow", "polars", "numpy", "pydantic", "typer", "rich", "fsspec", "msgspec",
    "sqlglot",
)  # fmt: skip
EXTRAS = ("ray", "obstore", "botocore", "huggingface-hub", "textual", "altair")
RECIPES = {
    "grpo": Recipe(estimator="grpo"),
    "gae, KL, whitening": Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True),
}
_SAME_BITS = ("grpo",)
"""Recipes whose results are the same bits on every device: no sum over tokens is in them."""


def examine(device: str, out: str = ".") -> Json:
    """Return the facts about an installation and its machine, and the results of a self-test.

    The self-test runs `RECIPES` on a table of a million tokens in memory: on the CPU in chunks of
    two sizes, and on each other device. The CPU's results are the reference.

    Args:
        device: what is tested beside the CPU: a name of --device; `auto` is all devices.
        out: a later output or its directory, whose free space is reported.

    Returns:
        `problems` lists what is wrong; `ok` is true if there is nothing.

    Raises:
        UsageError: torch has no such device, or the output is a URL.
    """
    if "://" in out:
        raise UsageError(
            f"{out}: doctor checks disks of this machine; leave OUT out, or name a local path"
        )
    devices, problems = _chosen(device)
    tests = list(_self_test([torch_device for torch_device, why in devices.items() if why is None]))
    disks = [*_disks(Path(out))]
    failed = [test for test in tests if test["problem"] is not None]
    problems += [f"{test['device']}, {test['recipe']}: {test['problem']}" for test in failed]
    problems += _disk_problems(disks)
    return {
        "rlpost": __version__,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*LIBRARIES, *EXTRAS)},
        "builds": _builds(),
        "system": platform.platform(),
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count(),
            "usable": cores(),
            "limit": core_limit(),
        },
        "memory": memory()._asdict(),
        "devices": [_facts(torch_device, why) for torch_device, why in devices.items()],
        "disks": disks,
        "environment": _environment(),
        "self_test": {"tokens": TOKENS, "results": tests},
        "problems": problems,
        "ok": not problems,
    }


def _chosen(name: str) -> tuple[dict[torch.device, str | None], list[str]]:
    """Return the CPU and all other devices, each with why it is not tested, and the problems.

    The reason is None for a device that is tested.
    """
    devices, warning = accelerators()
    problems = [
        f"{device} {why}" for device, why in devices.items() if why not in (None, NO_FLOAT64)
    ]
    problems += [warning] if warning else []
    if name != "auto":
        try:
            chosen = devices_named(name)
        except UnavailableError as error:
            chosen, problems = (), [*problems, str(error)]
        devices |= {device: None for device in chosen if device != _CPU}
        devices |= {
            device: devices[device] or "not chosen" for device in devices if device not in chosen
        }
    return {_CPU: None, **devices}, problems


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


def _facts(device: torch.device, why: str | None) -> Json:
    """Return what a device reports about itself, and why it is not tested."""
    whole = memory()
    facts: Json = {"device": str(device), "name": cpu_model()}
    free, total, capability = whole.available, whole.limit or whole.total, None
    if device != _CPU:
        module = torch.get_device_module(device)
        facts["name"] = _reported(getattr(module, "get_device_name", None), device)
        capability = _reported(getattr(module, "get_device_capability", None), device)
        free, total = _reported(memory_of, device) or (None, None)
    return facts | {
        "free": free,
        "total": total,
        "capability": ".".join(map(str, capability)) if isinstance(capability, tuple) else None,
        "not_tested": why,
    }


def _reported(function: Callable[[torch.device], Any] | None, device: torch.device) -> Any:
    """Return what a function reports about a device; None if it fails or there is none."""
    with suppress(Exception):  # a card that does not work may fail in any way
        return function and function(device)
    return None


def _disks(path: Path) -> Iterator[Json]:
    """Yield the free space beside an output, and of temporary files."""
    beside = path.absolute() if path.is_dir() else path.absolute().parent
    while not beside.is_dir():  # a run creates it
        beside = beside.parent
    for name, folder in {"output": beside, "temporary": Path(tempfile.gettempdir())}.items():
        usage = shutil.disk_usage(folder)
        yield {
            "purpose": name,
            "directory": without_home(folder),
            "free": usage.free,
            "total": usage.total,
            "writable": os.access(folder, os.W_OK),
        }


def _disk_problems(disks: Iterable[Json]) -> Iterator[str]:
    """Yield which directories cannot be written, each once."""
    flags = {"output": "OUT", "temporary": "TMPDIR"}
    for disk in {facts["directory"]: facts for facts in [*disks][::-1]}.values():
        if not disk["writable"] or not disk["total"]:
            what = "has no disk space" if disk["writable"] else "is not writable"
            yield f"{disk['directory']}: {what}; name another {flags[disk['purpose']]}"


def _environment() -> dict[str, str | None]:
    """Return the variables that change what rlpost or torch do.

    The value of an option may be private, such as a path or a URL, and is None.
    """
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    options = sorted(name for name in os.environ if name.startswith(PREFIX))
    values = {name: os.environ[name] for name in names if name in os.environ}
    return values | dict.fromkeys(options)


def _self_test(devices: Iterable[torch.device]) -> Iterator[Json]:
    """Yield the speed of each recipe on each device, and the differences from the CPU's results."""
    table = rollouts(TOKENS)
    for name, recipe in RECIPES.items():
        reference, _ = enrich(table, recipe, Options("cpu"))
        for device in devices:
            other = _OTHER_CHUNKS if device == _CPU else Options(str(device))
            result: Json = {"device": str(device), "recipe": name, "tokens_per_second": None}
            result |= {"verdict": "failed", "largest_difference": None, "problem": None}
            try:
                computed, _ = enrich(table, recipe, other)
                started = perf_counter()
                enrich(table, recipe, Options(str(device)))
            except Exception as error:  # noqa: BLE001 - whatever fails is reported
                line = next(iter(str(error).splitlines()), "")
                yield result | {"problem": f"{type(error).__name__}: {line}"}
                continue
            result["tokens_per_second"] = TOKENS / (perf_counter() - started)
            exact = device == _CPU or name in _SAME_BITS
            yield result | _compared(computed, reference, exact=exact)


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
    largest = max(column.totals.largest for column in columns)
    differing = sum(column.totals.rows_differing for column in columns)
    same = not differing and not any(column.rounded for column in columns)
    verdict = "identical" if same else "differs" if differing else "equal to rounding"
    wrong = differing or (exact and not same)
    problem = f"differs from the CPU's results by up to {largest:.3g}" if wrong else None
    return {"verdict": verdict, "largest_difference": largest, "problem": problem}


def rollouts(tokens: int) -> pa.Table:
    """Return a table of responses in prompt groups, with observation tokens, of so many tokens."""
    random = np.random.default_rng(0)
    rows = _GROUPS * _GROUP
    shares = random.lognormal(sigma=0.8, size=rows).cumsum()
    offsets = np.concatenate([[0], (shares / shares[-1] * tokens).astype(np.int32)])
    old = -random.exponential(0.5, tokens).astype(np.float32)
    numbers: dict[str, NDArray[Any]] = {
        "old_log_probs": old,
        "ref_log_probs": old + random.normal(0, 0.1, tokens).astype(np.float32),
        "values": random.normal(0, 0.5, tokens).astype(np.float32),
        "response_mask": (np.arange(tokens) // 50 % 10 > 0).view(np.uint8),
    }
    return pa.table(
        {
            "prompt_id": np.arange(rows) // _GROUP,
            "reward": random.normal(0.3, 0.4, rows),
            **{name: _lists(offsets, values) for name, values in numbers.items()},
        }
    )


def _lists(offsets: NDArray[np.int32], values: NDArray[Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
