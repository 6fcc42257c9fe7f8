"""Files of loggers: the metrics that a trainer logged, by key and step.

A file is JSON lines, a JSON list (`log_history` of a Hugging Face trainer), CSV (also of a
dashboard's export), or the console's lines `step:1 - actor/pg_loss:0.1`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.analysis.replay.metrics.definitions import METRICS, metric_of
from rlpost.errors import DataError, ReadWriteError, UsageError, no_such
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


Json = dict[str, Any]
STEP_KEYS = (
    "step", "global_step", "_step", "training/global_step", "train/global_step", "train/step",
    "trainer/global_step", "rollout/step", "training_step", "system/global_step", "iteration",
)  # fmt: skip
_COPIES = 20  # times the bytes of a log: its text, lines and numbers
_CONSOLE = re.compile(r"\bstep:(-?\d+) - (.+)")
_PAIR = re.compile(r"([^\s:]+):(?:np\.\w+\()?([-+.\deEinfa]+)\)?")


class LoggedNumber(NamedTuple):
    """A number of a log."""

    value: float
    rounding: float
    """Half a unit of the key's last digit, if the logger rounded; 0 otherwise."""


@dataclass(frozen=True)
class MetricLog:
    """The metrics of a log by step."""

    path: str
    kind: str
    """`jsonl`, `json`, `csv` or `console`."""
    steps: list[str]
    """In the order of the file; numbers of lines, from 0, if no key has a step."""
    step_key: str | None
    keys: dict[str, dict[str, LoggedNumber]]
    """By key and step."""
    texts: dict[str, dict[str, str]]
    """By key and step: what is there in place of a number, such as `null`."""
    repeated: int
    """Steps with several lines that have the same key; their mean is used."""
    warnings: list[str]


def read_log(path: Path) -> MetricLog:
    """Read a file of metrics.

    Raises:
        DataError: the file is no text, or has no metrics.
        ReadWriteError: the file cannot be read.
    """
    needed = "a file of a logger is needed: JSON lines or CSV with a line for each training step"
    try:
        memory_limit().check(_COPIES * path.stat().st_size, f"--metrics {path}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ReadWriteError(f"--metrics {path}: {error.strerror or error}; {needed}") from None
    except UnicodeDecodeError:
        with path.open("rb") as file:
            kind = "a Parquet file" if file.read(4) == b"PAR1" else "no text in UTF-8"
        raise DataError(f"--metrics {path}: {kind}; {needed}") from None
    try:
        kind, lines, warnings = _lines(text, path)
        log = _by_step(str(path), kind, lines, warnings)
    except (csv.Error, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"--metrics {path}: cannot be parsed: {why}; {needed}") from None
    if not any(log.keys.values()):
        raise DataError(
            f"--metrics {path}: no numbers; JSON lines or CSV with a line for each training step "
            'is needed, such as {"step": 1, "actor/pg_loss": 0.1}'
        )
    return log


def _lines(text: str, path: Path) -> tuple[str, list[Json], list[str]]:
    """Return the kind of a file, its lines as mappings, and warnings."""
    stripped = text.lstrip()
    if stripped.startswith(("{", "[")):
        try:
            whole = _parsed(text)
        except ValueError:
            return _json_lines(text, path)
        if isinstance(whole, dict):
            history = whole.get("log_history")
            whole = history if isinstance(history, list) else [whole]
        return "json", [one for one in whole if isinstance(one, dict)], []
    if _CONSOLE.search(text):
        return "console", [*_console_lines(text)], []
    heading = stripped.partition("\n")[0]
    for name, mark in (("semicolons", ";"), ("tabs", "\t")):
        if mark in heading and "," not in heading:
            raise DataError(
                f"--metrics {path}: a CSV with {name} between its columns; commas between columns "
                "and points in numbers are needed"
            )
    return "csv", _csv_lines(text), []


def _csv_lines(text: str) -> list[Json]:
    """Return the rows of a CSV; a cell may have any length, such as that of a logged text."""
    most = csv.field_size_limit(max(len(text), 1))
    try:
        return [*csv.DictReader(io.StringIO(text))]
    finally:
        csv.field_size_limit(most)


def _parsed(text: str) -> Any:
    """Return JSON whose numbers keep their text."""
    return json.loads(text, parse_float=_text_of_number, parse_int=_text_of_number)


class _NumberText(str):
    """The text of a number."""

    __slots__ = ()


def _text_of_number(text: str) -> _NumberText:
    return _NumberText(text)


def _json_lines(text: str, path: Path) -> tuple[str, list[Json], list[str]]:
    lines: list[Json] = []
    warnings: list[str] = []
    # A text in JSON may have other ends of lines, such as U+2028.
    texts = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in texts:
        try:
            one = _parsed(line)
        except ValueError as error:
            if number == texts[-1][0] and lines:
                warnings.append(f"--metrics {path}: line {number}, the last one, is incomplete")
                break
            raise DataError(
                f"--metrics {path}: line {number} is not JSON ({error}); a mapping of keys to "
                "numbers in each line is needed"
            ) from None
        if isinstance(one, dict):
            lines.append(one)
    return "jsonl", lines, warnings


def _console_lines(text: str) -> Iterator[Json]:
    """Yield the lines that verl's console logger prints."""
    for line in text.splitlines():
        match = _CONSOLE.search(line)
        if match:
            pairs = (_PAIR.fullmatch(part.strip()) for part in match[2].split(" - "))
            yield {"step": _NumberText(match[1])} | {
                one[1]: _NumberText(one[2]) for one in pairs if one
            }


def _flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, LoggedNumber | str]]:
    """Yield the numbers of a line by key, or what is in place of one; keys are joined by `/`."""
    for key, value in line.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, "" if not prefix and key == "data" else f"{name}/")
        elif isinstance(value, str):
            if value.strip():  # an empty cell of a CSV is a step without the metric
                yield name, _number(value) or repr(value[:20])
        elif isinstance(value, float):  # NaN and Infinity of JSON
            yield name, LoggedNumber(value, 1.0)
        else:
            yield name, "null" if value is None else f"a {type(value).__name__}"


def _number(text: str) -> LoggedNumber | None:
    """Return a number with the unit of its last digit; None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    mantissa, _, exponent = text.strip().lower().partition("e")
    if not math.isfinite(value) or "." not in mantissa:
        return LoggedNumber(value, 1.0)
    try:
        decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
        return LoggedNumber(value, 10.0**-decimals)
    except (ValueError, OverflowError):  # the exponent of a zero may have any number of digits
        return LoggedNumber(value, 1.0)


_ROUNDED = (1e-8, 1e-3)
"""The last digits of a key's numbers that show that the logger rounded them."""


def _by_step(
    path: str, kind: str, lines: Iterable[Mapping[str, Any]], warnings: list[str]
) -> MetricLog:
    """Return the numbers by key and step; several numbers of a key in a step become their mean."""
    both = [{_bare(name): one for name, one in _flat(line)} for line in lines]
    flat = [{key: x for key, x in line.items() if isinstance(x, LoggedNumber)} for line in both]
    present = {key for line in flat for key in line}
    lowered = {key.lower(): key for key in present}
    step_key = next((lowered[key] for key in STEP_KEYS if key in lowered), None)
    if step_key is not None:
        kept = [step_key in line for line in flat]
        flat, both = [*compress(flat, kept)], [*compress(both, kept)]
    values: dict[str, dict[str, list[LoggedNumber]]] = {}
    texts: dict[str, dict[str, str]] = {}
    steps: dict[str, None] = {}
    for number, (line, every) in enumerate(zip(flat, both, strict=True)):
        label = str(number) if step_key is None else _label(line[step_key].value)
        for key, text in every.items():
            if isinstance(text, str):
                texts.setdefault(key, {})[label] = text
        steps[label] = None
        for key, logged in line.items():
            if key.lower() not in STEP_KEYS:
                values.setdefault(key, {}).setdefault(label, []).append(logged)
    keys = {
        key: {label: _mean(numbers, _rounding(by_step)) for label, numbers in by_step.items()}
        for key, by_step in values.items()
    }
    repeated = {
        label for own in values.values() for label, numbers in own.items() if len(numbers) > 1
    }
    for key, by_label in texts.items():  # a step with a number on another line has that number
        texts[key] = {label: x for label, x in by_label.items() if label not in keys.get(key, ())}
    return MetricLog(path, kind, [*steps], step_key, keys, texts, len(repeated), warnings)


def _label(step: float) -> str:
    if not math.isfinite(step):
        return str(step)
    return f"{step:g}" if not step.is_integer() else str(int(step))


def _rounding(by_step: Mapping[str, Sequence[LoggedNumber]]) -> float:
    """Return half of the last digit's unit of a key, if its numbers were rounded to few digits."""
    unit = min(one.rounding for numbers in by_step.values() for one in numbers)
    return 0.501 * unit if _ROUNDED[0] <= unit <= _ROUNDED[1] * 1.001 else 0.0


def _mean(numbers: Sequence[LoggedNumber], rounding: float) -> LoggedNumber:
    values = [one.value for one in numbers]
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):  # beyond a float, or infinities of both signs
        total = sum(values)
    return LoggedNumber(total / len(values), rounding)


def _bare(key: str) -> str:
    """Return a key without the name of a run, which a dashboard's CSV puts before it."""
    return key.rpartition(" - ")[2].strip()


class LoggedMetric(NamedTuple):
    """A known metric of a log."""

    metric: str
    key: str
    by_step: dict[str, LoggedNumber]
    texts: Mapping[str, str]
    """By step: what is in place of a number."""


def known_metrics(
    log: MetricLog, chosen: Mapping[str, str] | None = None
) -> tuple[list[LoggedMetric], list[str]]:
    """Return the known metrics of a log, and the keys of numbers that are none.

    Args:
        log: from `read_log`.
        chosen: keys by metric, which override names.

    Raises:
        UsageError: a metric or a key in `chosen` does not exist.
    """
    chosen = chosen or {}
    for name, key in chosen.items():
        if name not in METRICS:
            text = f"--map-metric {name}={key}: no metric {name!r}"
            every = f"the metrics are {', '.join(METRICS)}"
            raise UsageError(no_such(text, name, METRICS, every))
        if key not in log.keys and key not in log.texts:
            text = f"--metrics {log.path}: --map-metric {name}={key}: no key {key!r}"
            raise DataError(no_such(text, key, log.keys))
    named = {key: name for name, key in chosen.items()}
    found, unknown = [], []
    for key in dict.fromkeys([*log.keys, *log.texts]):
        metric = named.get(key) or metric_of(key)
        if metric is not None and chosen.get(metric, key) == key:
            texts = log.texts.get(key, {})
            found.append(LoggedMetric(metric, key, log.keys.get(key, {}), texts))
        elif key in log.keys:
            unknown.append(key)
    return found, sorted(unknown)
