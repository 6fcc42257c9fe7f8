"""inspect_ai: the logs of an evaluation, `.json` and `.eval`. A sample of an epoch is a row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import FAILURES, error_name
from rlpost.formats.containers import JSON, ZIP
from rlpost.formats.fields import content_key, joined_text, messages
from rlpost.formats.records import Field
from rlpost.io.finish_reasons import TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record

_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Values of a scorer, as inspect_ai converts them: correct, incorrect, partial, no answer."""
_HEAVY = frozenset({"messages", "events", "attachments", "store", "events_data"})


def _is_log(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a log, or of a sample in the archive of one."""
    log = fields.keys() >= {"eval", "samples", "plan"}
    return log or fields.keys() >= {"epoch", "input", "target", "scores", "output"}


def _scored(samples: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield samples with their scores as numbers."""
    for sample in samples:
        scores = {
            f"score.{name}": number
            for name, score in (sample.find("scores") or {}).items()
            if (number := _number(score.get("value"))) is not None
        }
        yield replace(sample, fields={**sample.fields, **scores})


def _number(value: object) -> float | None:
    """Return the value of a scorer as a number; None if it has parts, or is another text."""
    if isinstance(value, str):
        return _LETTERS.get(value)
    return float(value) if isinstance(value, (int, float)) else None


def _reward(sample: Record) -> float | None:
    return next((x for name, x in sample.fields.items() if name.startswith("score.")), None)


def _truncated(sample: Record) -> bool:
    choices = sample.find("output.choices") or [{}]
    return bool(sample.find("limit")) or choices[0].get("stop_reason") in TRUNCATED


def _answer(sample: Record) -> str:
    choices = sample.find("output.choices") or [{}]
    return joined_text(choices[0].get("message", {}).get("content"))


def _length(sample: Record) -> int | None:
    """Return the tokens that the model sampled; None if several models have a usage."""
    usages = [*(sample.find("model_usage") or {}).values()]
    return usages[0].get("output_tokens") if len(usages) == 1 else None


FORMAT = Format(
    name="inspect-ai",
    title="inspect_ai logs of an evaluation, .json and .eval",
    source="inspect_ai log/_log.py EvalLog and EvalSample, log/_recorders/eval.py (2024 to 2026)",
    containers=(JSON, ZIP),
    members="samples/*.json",
    sniff=_is_log,
    fields={
        "prompt_id": Field("id, input and target", lambda sample: content_key(
            [sample.find(name) for name in ("id", "input", "target")])),
        "sample_id": "uuid", "reward": Field("scores (the first)", _reward),
        "truncated": Field("limit | output", _truncated),
        "failure": Field("error", lambda x: error_name(x.find("error.message"))),
        "error": "error.message", "prompt": messages("input"),
        "response": Field("output.choices", _answer),
        "response_length": Field("model_usage.output_tokens", _length),
    },
    lacks={
        "reward": "no scorer gave a number", "failure": "",
        "response_length": "several models have a usage, or none",
    },
    note="The reward is the value of the first scorer, C 1, P 0.5, I and N 0; "
    "--map reward=score.NAME selects another.",
    at="samples",
    rows=_scored,
    reads=_HEAVY,
    types=FAILURES,
)  # fmt: skip
