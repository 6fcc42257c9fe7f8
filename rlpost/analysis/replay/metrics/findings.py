"""What a replay of metrics found, as plain data: the description, ties, and what differs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.fit import HOWS, LOSS_METRICS, QUANTITIES
from rlpost.analysis.replay.metrics.losses import KL_ESTIMATORS, SIDES
from rlpost.analysis.replay.metrics.search import bounds_of
from rlpost.analysis.replay.metrics.splits import ABOUT_LEVELS
from rlpost.analysis.replay.metrics.steps import at_steps
from rlpost.display.text import percent
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import DEFAULTS, word

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.fit import Grid, Target
    from rlpost.analysis.replay.metrics.search import Choice, Place, Reading

    Numbers = NDArray[np.float64]

Json = dict[str, Any]


def about_reading(metric: str, reading: Reading) -> str:
    """Return how a metric is computed, in words."""
    how = HOWS[reading.how]
    where = ABOUT_LEVELS[reading.level]
    column = reading.columns[0]
    population = "all tokens" if column.kind == "all" else how.population
    population = f" of {population}" if population != "policy tokens" else ""
    kind = f"{column.name} " if metric in QUANTITIES and column.name != metric else ""
    kind = "ratio outside the bounds, any advantage: " if column.kind == "outside" else kind
    rows = " (all responses)" if how.rows == "all" and "seq-mean" in how.aggregation else ""
    terms = "".join(
        f" {'-' if scale < 0 else '+'} {abs(scale):g} x {_TERMS.get(column.name, column.name)}"
        for scale, column in reading.terms
    )
    return f"{kind}{how.aggregation}{population}{rows}, {where}{terms}"


_TERMS = {
    **{f"{one} new/ref": f"KL ({one})" for one in KL_ESTIMATORS},
    **{f"ratio {one} new/ref": f"ratio x KL ({one})" for one in KL_ESTIMATORS},
    "entropy": "entropy",
}


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


_MOST = 0.5  # share of the steps
_LEAST = 2  # steps that show a relation
_LOOSE = 10


def description(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> Json:
    """Return the smallest description, with the options as typed."""
    options: list[str] = []
    loss: Json | None = None
    known = any(_explained(row) for row in rows if row["metric"] in LOSS_METRICS)
    if choice.grid is not None and known:
        loss = loss_of(choice.grid, choice.place)
        options += [part for name, value in loss.items() for part in (flag_of(name), word(value))]
    of_loss = [
        reading
        for row, reading in zip(rows, used, strict=True)
        if reading is not None and _explained(row) and row["metric"] in ("pg_loss", "loss")
    ]
    options += HOWS[of_loss[0].how].options if of_loss else []
    options += next((words for one in of_loss if (words := _words(terms_of(one)))), [])
    return {
        "options": [*options, *choice.split.options],
        "loss": loss,
        "micro_batch": choice.split.micro,
        "ranks": choice.split.ranks,
        "updates": choice.split.updates,
        "rank_order": "strided" if choice.split.strided else "consecutive",
        "split": str(choice.split),
        "explains": [row["key"] for row in rows if row["reproduced"]],
    }


def _explained(row: Json) -> bool:
    """Return whether the finite numbers are reproduced, most of them, or but for a constant."""
    if row.get("share", 1.0) > _MOST:
        return True
    own = row.get("relation", {"finding": ""})
    return own is not None and own["finding"] != "some-steps"


def _words(options: dict[str, str]) -> list[str]:
    return [part for pair in options.items() for part in pair if part]


def terms_of(reading: Reading) -> dict[str, str]:
    """Return the options of further terms of a loss, as typed; an entropy bonus has none."""
    options = {}
    for scale, column in reading.terms:
        if column.name != "entropy":
            *ratio, estimator = column.name.split()[:-1]
            options["--kl-loss-coef"] = f"{scale:g}"
            options["--kl-loss-estimator"] = estimator
            if ratio:
                options["--kl-loss-ratio"] = ""
    return options


def loss_of(grid: Grid, place: Place) -> Json:
    """Return the options of a loss that differ from its defaults, and its clip range."""
    family, bounds = grid.family, bounds_of(grid, place)
    values: Json = {"loss": family.loss}
    if family.behaviour == "infer":
        values["behaviour"] = "infer"
    if not grid.clipped:
        pairs = (part.partition("=") for part in str(bounds["whole"]).split())
        defaults = {name: word(x) for name, x in DEFAULTS[family.loss].items()}
        return values | {name: x for name, _, x in pairs if defaults.get(name) != x}
    low, high = bounds["low"], bounds["high"]
    if low == high and low != math.inf:
        values["pg_clip"] = low
    else:
        values["pg_clip_low"], values["pg_clip_high"] = _bound(low), _bound(high)
    if bounds["dual"] != math.inf:
        values["dual_clip"] = bounds["dual"]
    return values


def _bound(value: float | str) -> float | str:
    return "never" if value == math.inf else value


_WHAT_TELLS = {
    "low": "tokens with a negative advantage and a ratio between these bounds",
    "high": "tokens with a positive advantage and a ratio between these bounds",
    "dual": "tokens with a negative advantage and a ratio above these bounds",
    "whole": "steps in which the options change the loss of a token",
}
_FIELDS = {"low": "--pg-clip-low", "high": "--pg-clip-high", "dual": "--dual-clip"}


def ties(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> list[Json]:
    """Return the other descriptions that reproduce as much, and what data would separate them."""
    found = []
    if not any(_shows_loss(row) for row in rows):
        return []
    for side, values in choice.tied_bounds.items():
        if values and side in SIDES:
            names = [word(_bound(one)) for one in sorted(values)]
            text = f"{_FIELDS[side]} {', '.join(names)} reproduce the same numbers"
            found.append((_FIELDS[side], names, text, _WHAT_TELLS[side]))
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and row["metric"] in ("pg_loss", "loss") and row["also"]:
            text = f"{row['key']} is the same with {', '.join(row['also'])}"
            tells = "responses of different lengths in each unit"
            found.append(("--aggregation", row["also"], text, tells))
            break
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and reading.open is not None and row["reproduced"]:
            found.append(_open_coefficient(row, reading))
    if choice.tied_losses:
        names = [
            " ".join(f"{flag_of(k)} {word(x)}" for k, x in loss_of(grid, place).items())
            for grid, place in choice.tied_losses
        ]
        text = f"{len(names)} other losses reproduce the same numbers"
        tells = "more steps, and steps in which tokens are clipped"
        found.append(("--loss", names, text, tells))
    if choice.tied_splits:
        found.append(("--micro-batch, --ranks", *_tied_splits(choice, rows)))
    fields = ("option", "values", "text", "told_apart_by")
    return [dict(zip(fields, one, strict=True)) for one in found]


def _open_coefficient(row: Json, reading: Reading) -> tuple[str, list[str], str, str]:
    """Return the range of a coefficient that the digits of the log leave open."""
    low, high = reading.open or (0.0, 0.0)
    name = reading.terms[0][1].name
    text = f"{row['key']} is the same with {low:.2g} to {high:.2g} x {_TERMS.get(name, name)}"
    option = "entropy bonus" if name == "entropy" else "--kl-loss-coef"
    return option, [f"{low:.2g} to {high:.2g}"], text, "a log with more digits"


def _shows_loss(row: Json) -> bool:
    """Return whether a metric identifies a loss: it is reproduced, and not 0 throughout."""
    return bool(row["metric"] in LOSS_METRICS and row["reproduced"] and row["informative"])


def _tied_splits(choice: Choice, rows: Sequence[Json]) -> tuple[list[str], str, str]:
    """Return the names of other splits, what they have in common, and what separates them."""
    if all(row.get("level", "step") == "step" for row in rows):
        return [], "no metric depends on the split", "a metric that is a mean of micro-batches"
    names = [str(one) for one in choice.tied_splits]
    text = f"{len(names)} other splits have the same means"
    return names, text, "a number of responses that the ranks do not divide evenly"


def findings(rows: Sequence[Json], used: Sequence[Reading | None], description: Json) -> list[Json]:
    """Return what the metrics that are not reproduced have in common with the computed ones."""
    findings: list[Json] = []
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and reading.terms and row.get("share", 1.0) > _MOST:
            added = row["computed_as"].partition(", ")[2]
            options = _words(terms_of(reading))
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
        if "fits" in row:
            text = f"{row['key']} is {row['fits']}, not {row['computed_as']}"
            own = {"finding": "option:kl_loss_coef", "text": text, "explains": 1.0}
            findings.append({**own, "options": [one for one in row["fits_options"] if one]})
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


def not_finite(targets: Sequence[Target], steps: Sequence[str]) -> Iterator[Json]:
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
