"""The report of `rlpost doctor`, for terminals, pipes and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
NONE = "–"


def show(report: Json, how: str) -> None:
    """Print a report on stdout: as a page (`table` or `markdown`), or as `json`."""
    if how == "json":
        show_json(report)
    else:
        show_page(page(report), how)


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
    yield TextTable(title="Machine", lines=[*_machine(report)])
    devices = [
        (
            device["device"],
            device["name"] or NONE,
            _bytes(device["free"]),
            _bytes(device["total"]),
            device["capability"] or NONE,
        )
        for device in report["devices"]
    ]
    reasons = [device["not_tested"] for device in report["devices"]]
    notes = {row: f"not tested: {why}" for row, why in enumerate(reasons) if why is not None}
    shown = ("device", "name", "free memory", "of", "capability")
    advice = f"torch {report['versions']['torch']} finds no GPU: rlpost help gpu"
    yield TextTable(
        shown,
        devices,
        title="Devices",
        notes=[advice] if len(devices) == 1 else [],
        text=(0, 1),
        row_notes=notes,
    )
    test = report["self_test"]
    title = f"Self-test, {counted(test['tokens'], 'token')} in memory"
    results = [
        (device["device"], device["recipe"], _speed(device["tokens_per_second"]), _verdict(device))
        for device in test["results"]
    ]
    headings = ("device", "recipe", "M tokens/s", "against the CPU's results")
    note = "The rows of the CPU compare chunks of two sizes."
    yield TextTable(headings, results, title=title, text=(0, 1, 3), notes=[note])


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


def _machine(report: Json) -> Iterator[str]:
    cpu, memory = report["cpu"], report["memory"]
    yield report["system"]
    limit = f", limited to the time of {cpu['limit']:g}" if cpu["limit"] else ""
    yield f"cores: {cpu['usable']} of {cpu['cores']} usable{limit}"
    limit = f", limited to {size(memory['limit'])}" if memory["limit"] else ""
    yield f"memory: {_bytes(memory['available'])} available of {_bytes(memory['total'])}{limit}"
    for uses, disk in _by_directory(report["disks"]).items():
        state = "" if disk["writable"] else ", not writable"
        space = f"{size(disk['free'])} free of {size(disk['total'])}{state}"
        yield f"disk for {uses} files: {space}, {disk['directory']}"
    if report["environment"]:
        pairs = report["environment"].items()
        words = [name if value is None else f"{name}={value}" for name, value in pairs]
        yield f"environment: {', '.join(words)}"


def _by_directory(disks: list[Json]) -> dict[str, Json]:
    """Return the disks by what they are for, each directory once."""
    uses: dict[str, list[str]] = {}
    for disk in disks:
        uses.setdefault(disk["directory"], []).append(disk["purpose"])
    directories = {disk["directory"]: disk for disk in disks}
    return {" and ".join(names): directories[directory] for directory, names in uses.items()}


def _bytes(count: int | None) -> str:
    return NONE if count is None else size(count)


def _speed(tokens: float | None) -> str:
    return NONE if tokens is None else f"{tokens / 1e6:.1f}"


def _verdict(result: Json) -> str:
    if result["verdict"] == "failed":
        return f"failed: {result['problem']}"
    if result["verdict"] == "identical":
        return "equal bit for bit"
    word = "DIFFERS by" if result["problem"] else "equal to within"
    return f"{word} {result['largest_difference']:.1e}"
