"""The report of `rlpost doctor`, for terminals, pipes and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
NONE = "–"


def page(report: Json) -> Page:
    """Return the installation, the machine, the devices, the self-test, and the problems."""
    problems = report["problems"]
    text = f"{counted(len(problems), 'problem')} found" if problems else "no problems"
    return Page(
        f"rlpost doctor · rlpost {report['rlpost']}",
        (),
        [*_tables(report)],
        [Notice("error", problem) for problem in problems],
        Notice("error" if problems else "ok", text),
    )


def _tables(report: Json) -> Iterator[TextTable]:
    yield TextTable(title="Installation", lines=[*_installation(report)])
    cpu, memory = report["cores"], report["memory"]
    lines = [report["system"], f"cores: {cpu['usable']} of {cpu['all']} usable"]
    limit = f", limited to {size(memory['limit'])}" if memory["limit"] else ""
    available, total = _bytes(memory["available"]), _bytes(memory["total"])
    lines.append(f"memory: {available} available of {total}{limit}")
    pairs = report["environment"].items()
    if words := [name if value is None else f"{name}={value}" for name, value in pairs]:
        lines.append(f"environment: {', '.join(words)}")
    yield TextTable(title="Machine", lines=lines)
    devices = [
        (
            device["device"],
            device["name"] or NONE,
            _bytes(device["memory"]),
            device["capability"] or NONE,
        )
        for device in report["devices"]
    ]
    yield TextTable(
        ("device", "name", "memory", "capability"),
        devices,
        title="Devices",
        notes=[f"torch {report['versions']['torch']} finds no GPU: rlpost help gpu"]
        if len(devices) == 1
        else [],
        text=(0, 1),
    )
    test = report["self_test"]
    yield TextTable(
        ("device", "recipe", "against the CPU's results"),
        [(result["device"], result["recipe"], _verdict(result)) for result in test["results"]],
        title=f"Self-test, {counted(test['tokens'], 'token')} in memory",
        text=(0, 1, 2),
        notes=["The rows of the CPU compare chunks of two sizes."],
    )


def _installation(report: Json) -> Iterator[str]:
    versions, builds = dict(report["versions"]), report["builds"]
    yield f"Python {report['python']}"
    kinds = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}
    built = [f"{name} {builds[key]}" for key, name in kinds.items() if builds[key]]
    yield f"torch {versions.pop('torch')}, {', '.join(built) or 'CPU only'}"
    if builds["nvidia_driver"]:
        yield f"driver: {builds['nvidia_driver']}"
    yield ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing := [name for name, version in versions.items() if not version]:
        yield f"not installed: {', '.join(missing)}"


def _bytes(count: int | None) -> str:
    return NONE if count is None else size(count)


def _verdict(result: Json) -> str:
    if result["verdict"] == "failed":
        return f"failed: {result['problem']}"
    if result["verdict"] == "identical":
        return "equal bit for bit"
    word = "DIFFERS by" if result["problem"] else "equal to within"
    return f"{word} {result['largest_difference']:.1e}"
