"""What logged metrics that differ have in common with the computed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.description import MOST, as_typed, term_fields
from rlpost.analysis.replay.metrics.steps import at_steps
from rlpost.display.text import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.search import Explanation
    from rlpost.analysis.replay.metrics.series import MetricSeries

    Numbers = NDArray[np.float64]

Json = dict[str, Any]


def relation(
    recorded: Numbers, computed: Numbers, equal: NDArray[np.bool_], tolerance: float
) -> Json | None:
    """Return what recorded and computed numbers have in common: a factor or an offset."""
    usable = np.isfinite(computed) & (computed != 0)
    if usable.sum() >= _LEAST and usable.all():
        ratios = recorded / computed
        factor = float(np.median(ratios))
        if np.all(np.abs(ratios - factor) <= _LOOSE * tolerance * abs(factor) + 1e-12):
            name = "sign" if abs(factor + 1) <= _LOOSE * tolerance else "factor"
            return {"finding": name, "value": factor}
    if np.isfinite(computed).all() and len(recorded) >= _LEAST:
        offsets = recorded - computed
        offset = float(np.median(offsets))
        spread = _LOOSE * tolerance * float(np.abs(recorded).max() + np.abs(computed).max())
        if np.all(np.abs(offsets - offset) <= spread) and offset:
            return {"finding": "offset", "value": offset}
    if 0 < equal.sum() < len(equal):
        return {"finding": "some-steps", "value": float(equal.mean())}
    return None


_LEAST = 2  # steps that show a relation
_LOOSE = 10


def findings(explained: Sequence[tuple[Json, Explanation | None]], description: Json) -> list[Json]:
    """Return what the metrics that are not reproduced have in common with the computed ones."""
    findings: list[Json] = []
    for row, reading in explained:
        if reading is not None and reading.fitted and row["share"] > MOST:
            added = row["computed_as"].partition(", ")[2]
            options = as_typed(term_fields(reading))
            findings.append(
                {
                    "finding": "option:kl_loss_coef" if options else "entropy-bonus",
                    "text": f"{row['key']} has a further term: {added}",
                    "options": options,
                    "explains": 1.0,
                }
            )
        if row["reproduced"] or "relation" not in row:
            continue
        found: Json = row.get("relation") or {"finding": "unexplained", "value": 0.0}
        name = found["finding"]
        text = f"{row['key']} is not explained: the closest is {row['computed_as']}"
        if name == "factor":
            text = f"{row['key']} is {found['value']:.6g} times the computed one"
            text += _about_factor(found["value"], description)
        elif name == "sign":
            text = f"{row['key']} has the other sign"
        elif name == "offset":
            text = f"{row['key']} is the computed one plus {found['value']:.6g}"
        elif name == "some-steps":
            text = (
                f"{row['key']} is reproduced at {percent(found['value'], 0)} of the steps; "
                f"it differs at {at_steps(row['differs_at'])}"
            )
        share = found["value"] if name == "some-steps" else float(name in ("factor", "sign"))
        findings.append({"finding": name, "text": text, "options": [], "explains": share})
    return findings


def not_finite(targets: Sequence[MetricSeries], steps: Sequence[str]) -> Iterator[Json]:
    """Yield a finding for each metric that is NaN or infinite in the log."""
    for one in targets:
        if one.broken:
            kinds = {False: "infinite", True: "NaN"}
            names = " or ".join({kinds[bool(np.isnan(one.logged[at]))]: 0 for at in one.broken})
            where = at_steps([steps[at] for at in one.broken])
            text = f"{one.key} is {names} in the log at {where}"
            yield {"finding": "not-finite", "text": text, "options": [], "explains": 0.0}


def _about_factor(factor: float, description: Json) -> str:
    """Return what a factor may be."""
    for value, why in (
        (description["micro_batch"], "responses of a micro-batch"),
        (description["ranks"], "ranks"),
        (description["updates"], "updates"),
    ):
        for one, verb in ((factor, "a sum, not a mean"), (1 / factor, "divided once more")):
            if value and value > 1 and abs(one - value) < 1e-4 * value:
                return f", the number of {why}: {verb}"
    return ""
