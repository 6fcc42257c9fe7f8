"""The solution of a log as options: its loss and split, and what reproduces as much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.metrics.formulas import ENTROPY
from rlpost.analysis.replay.metrics.quantities import kl_options
from rlpost.analysis.replay.metrics.reductions import REDUCTIONS
from rlpost.analysis.replay.metrics.splits import ABOUT_LEVELS
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import DEFAULTS, word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.analysis.replay.metrics.search import Explained, Explanation, Solution
    from rlpost.analysis.replay.metrics.series import MetricSeries
    from rlpost.analysis.replay.metrics.sums import LossCandidate

Json = dict[str, Any]
Shown = tuple["MetricSeries", "Explanation", tuple["Explanation", ...]]
"""A metric that is reproduced, how, and how else."""
MOST = 0.5
"""Share of the steps; a metric that is reproduced at more of them is explained."""


def about_explanation(series: MetricSeries, explanation: Explanation) -> str:
    """Return how a metric is computed, in words."""
    column, reduction = explanation.column, REDUCTIONS[explanation.reduction]
    name = ""
    if series.definition.kind == "tokens":
        name = f"{column.name} " if column.name != series.name else ""
    elif column.kind == "outside":
        name = "ratio outside the bounds, any advantage: "
    terms = "".join(
        f" {'-' if scale < 0 else '+'} {abs(scale):g} x {about_term(column.name)}"
        for scale, column in explanation.terms
    )
    return f"{name}{reduction}, {ABOUT_LEVELS[explanation.level]}{terms}"


def about_term(name: str) -> str:
    """Return a further term of a loss, in words."""
    if name == ENTROPY.name:
        return "entropy"
    own = kl_options(name)
    return f"{'ratio x ' if own['kl_loss_ratio'] else ''}KL ({own['kl_loss_estimator']})"


def loss_fields(loss: LossCandidate) -> dict[str, Any]:
    """Return the clip range of a loss, and the fields that differ from its defaults."""
    config = loss.config
    values, defaults = config.resolved(), DEFAULTS[loss.options.loss]
    fields = {"loss": values["loss"]}
    if values["behaviour"] == "infer" and not config.ignored(["behaviour"]):
        fields["behaviour"] = "infer"
    clip = ["pg_clip"] if "pg_clip" in values else ["pg_clip_low", "pg_clip_high"]
    fields |= {name: values[name] for name in clip if name in values}
    range_ = ("pg_clip", "pg_clip_low", "pg_clip_high")
    own = (name for name in config.loss.defaults if name not in range_)
    return fields | {name: values[name] for name in own if values[name] != defaults.get(name)}


def term_fields(explanation: Explanation) -> dict[str, Any]:
    """Return the fields of the KL loss among the further terms of a loss."""
    fields: dict[str, Any] = {}
    for scale, column in explanation.terms:
        if column != ENTROPY:
            fields |= {"kl_loss_coef": scale, **kl_options(column.name)}
    return fields


def split_fields(explanation: Explanation) -> dict[str, int]:
    """Return the options of the split that a metric depends on."""
    own = {"ranks": 1, "updates": 1, **explanation.split.fields}
    return own if explanation.level != "step" else {}


def as_typed(fields: Mapping[str, Any]) -> list[str]:
    """Return fields as options; a false flag is left out."""
    words: list[str] = []
    for name, value in fields.items():
        own = "never" if value == math.inf else value
        words += [flag_of(name)] * (own is not False) + [word(own)] * (not isinstance(own, bool))
    return words


def description(
    solution: Solution,
    series: Sequence[MetricSeries],
    explained: Sequence[Explained],
    rows: Sequence[Json],
) -> Json:
    """Return the smallest description, with the options as typed.

    Args:
        solution: of a sample.
        series: the metrics.
        explained: how each is computed.
        rows: their results on all steps.
    """
    shown = [
        (one, own.best)
        for one, own, row in zip(series, explained, rows, strict=True)
        if is_explained(row)
    ]
    loss: Json | None = None
    if solution.loss is not None and any(one.of_loss and one.informative for one, _ in shown):
        loss = loss_fields(solution.loss)
    fields: dict[str, Any] = {**(loss or {})}
    of_loss = [own for one, own in shown if one.definition.kind == "loss" and own is not None]
    if of_loss:
        fields |= REDUCTIONS[of_loss[0].reduction].options
        fields |= next((terms for own in of_loss if (terms := term_fields(own))), {})
    split = solution.split
    return {
        "options": as_typed({**fields, **split.fields}),
        "loss": loss,
        "micro_batch": split.micro,
        "ranks": split.ranks,
        "updates": split.updates,
        "rank_order": "strided" if split.strided else "consecutive",
        "split": str(split),
        "explains": [row["key"] for row in rows if row["reproduced"]],
    }


def is_explained(row: Json) -> bool:
    """Return whether a metric is reproduced at most steps, or but for a constant."""
    relation = row.get("relation") or {"finding": "none"}
    constant = relation["finding"] in ("factor", "sign", "offset")
    return bool(row["share"] > MOST or constant)


def ties(
    solution: Solution, series: Sequence[MetricSeries], explained: Sequence[Explained]
) -> Iterator[Json]:
    """Yield what reproduces as much as the description, and what data would separate them."""
    shown = [
        (one, own.best, own.others)
        for one, own in zip(series, explained, strict=True)
        if own.reproduced and own.best is not None
    ]
    if not any(one.of_loss and one.informative for one, *_ in shown):
        return
    yield from _open_numbers(solution, shown)
    for one, own, others in shown:
        also = other_aggregations(own, others)
        if one.definition.kind == "loss" and also:
            text = f"{one.key} is the same with {', '.join(also)}"
            yield _tie("--aggregation", also, text, "responses of different lengths in each unit")
            break
    if solution.tied_losses:
        names = [" ".join(as_typed(loss_fields(one))) for one in solution.tied_losses]
        text = f"{len(names)} other losses reproduce the same numbers"
        yield _tie("--loss", names, text, "more steps, and steps in which tokens are clipped")
    if solution.tied_splits:
        names = [str(one) for one in solution.tied_splits]
        text = f"{len(names)} other splits have the same means"
        separated = "a number of responses that the ranks do not divide evenly"
        if all(own.level == "step" for _, own, _ in shown):
            names, text = [], "no metric depends on the split"
            separated = "a metric that is a mean of micro-batches"
        yield _tie("--micro-batch, --ranks", names, text, separated)


def _open_numbers(solution: Solution, shown: Sequence[Shown]) -> Iterator[Json]:
    """Yield the bounds and coefficients whose digits the log leaves open."""
    for bound in solution.bounds:
        if bound.is_open:
            values = f"{bound.low:.2g} to {bound.high:.2g}"
            text = f"{bound.option} is the same with {values}"
            yield _tie(flag_of(bound.option), [values], text, "more clipped tokens")
    for one, own, _ in shown:
        if own.open is not None:
            values = "{:.2g} to {:.2g}".format(*own.open)
            name = own.terms[-own.fitted][1].name
            option = "entropy bonus" if name == ENTROPY.name else "--kl-loss-coef"
            text = f"{one.key} is the same with {values} x {about_term(name)}"
            yield _tie(option, [values], text, "a log with more digits")


def other_aggregations(best: Explanation, others: Sequence[Explanation]) -> list[str]:
    """Return the other aggregations that reproduce a metric over the same units."""
    same = {REDUCTIONS[one.reduction].aggregation for one in others if one.level == best.level}
    return sorted(same - {REDUCTIONS[best.reduction].aggregation})


def _tie(option: str, values: Sequence[str], text: str, separated: str) -> Json:
    return {"option": option, "values": [*values], "text": text, "separating_data": separated}
