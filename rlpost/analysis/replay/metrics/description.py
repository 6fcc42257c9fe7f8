"""The solution of a log as options: its loss and split, and what reproduces as much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.analysis.replay.metrics.aggregates import REDUCTIONS
from rlpost.analysis.replay.metrics.formulas import ENTROPY
from rlpost.analysis.replay.metrics.steps import MOST
from rlpost.analysis.replay.metrics.sums import kl_options
from rlpost.analysis.replay.search.candidates import as_typed, in_line
from rlpost.kernels.layouts import ABOUT_LEVELS
from rlpost.recipe.loss import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.analysis.replay.metrics.methods import BestMethod, MetricMethod
    from rlpost.analysis.replay.metrics.search import Solution
    from rlpost.analysis.replay.metrics.steps import MetricSeries
    from rlpost.analysis.replay.metrics.sums import LossCandidate, SumColumn

Json = dict[str, Any]
Terms = tuple[tuple[float, "SumColumn"], ...]
"""Coefficients and columns."""


def about_method(series: MetricSeries, method: MetricMethod) -> str:
    """Return how a metric is computed, in words."""
    column, reduction = method.column, REDUCTIONS[method.reduction]
    name = ""
    if series.definition.kind == "tokens":
        name = f"{column.name} " if column.name != series.name else ""
    elif column.kind == "outside":
        name = "ratio outside the bounds, any advantage: "
    terms = "".join(
        f" {'-' if scale < 0 else '+'} {abs(scale):g} x {about_term(column.name)}"
        for scale, column in method.terms
    )
    return f"{name}{reduction}, {ABOUT_LEVELS[method.level]}{terms}"


def about_term(name: str) -> str:
    """Return a further term of a loss, in words."""
    if name == ENTROPY.name:
        return "entropy"
    own = kl_options(name)
    return f"{'ratio x ' if own['kl_loss_ratio'] else ''}KL ({own['kl_loss_estimator']})"


def loss_fields(loss: LossCandidate) -> dict[str, Any]:
    """Return the clip range of a loss, and the fields that differ from its defaults."""
    config = loss.config
    values, defaults = config.resolved(), DEFAULTS.get(loss.options.loss, config.loss.defaults)
    fields = {"loss": values["loss"]}
    if values["behaviour"] == "infer" and not config.ignored(["behaviour"]):
        fields["behaviour"] = "infer"
    clip = ["pg_clip"] if "pg_clip" in values else ["pg_clip_low", "pg_clip_high"]
    fields |= {name: values[name] for name in clip if name in values}
    range_ = ("pg_clip", "pg_clip_low", "pg_clip_high")
    own = (name for name in config.loss.defaults if name not in range_)
    return fields | {name: values[name] for name in own if values[name] != defaults.get(name)}


def term_fields(terms: Terms) -> dict[str, Any]:
    """Return the fields of the KL loss among the further terms of a loss."""
    fields: dict[str, Any] = {}
    for scale, column in terms:
        if column != ENTROPY:
            fields |= {"kl_loss_coef": scale, **kl_options(column.name)}
    return fields


def split_fields(method: MetricMethod) -> dict[str, int]:
    """Return the options of the split that a metric depends on."""
    own = {"ranks": 1, "updates": 1, **method.split.fields}
    return own if method.level != "step" else {}


def options_of(fields: Mapping[str, Any]) -> list[str]:
    """Return fields as options, as one types them; a false flag is left out."""
    chosen = ((name, value) for name, value in fields.items() if value is not False)
    return [part for name, value in chosen for part in as_typed(name, value)]


class ComputedMetric(NamedTuple):
    """A metric of a log, as it is computed."""

    series: MetricSeries
    chosen: BestMethod
    row: Json
    """Of the result."""

    @property
    def method(self) -> MetricMethod | None:
        """How it is computed; None for one of whole steps."""
        return self.chosen.best

    @property
    def relation(self) -> Json:
        """What recorded and computed numbers have in common; empty for nothing."""
        return self.row.get("relation") or {}

    @property
    def is_explained(self) -> bool:
        """Whether it is reproduced at most steps, or but for a factor."""
        return self.row["share"] > MOST or "factor" in self.relation

    @property
    def fitted_terms(self) -> Terms:
        """The terms whose coefficients are fitted, if most steps are reproduced with them."""
        method = self.method
        if method is None or not method.fitted or self.row["share"] <= MOST:
            return ()
        return method.terms

    @property
    def further_term(self) -> str:
        """The sentence that a loss has a further term."""
        return f"{self.series.key} has a further term: {self.row['computed_as'].partition(', ')[2]}"


def description(solution: Solution, metrics: Sequence[ComputedMetric]) -> Json:
    """Return the smallest description, with the options as typed."""
    shown = [(one.series, one.method) for one in metrics if one.is_explained]
    loss: Json | None = None
    if solution.loss is not None and any(one.of_loss and one.informative for one, _ in shown):
        loss = loss_fields(solution.loss)
    fields: dict[str, Any] = {**(loss or {})}
    of_loss = [own for one, own in shown if one.definition.kind == "loss" and own is not None]
    if of_loss:
        fields |= REDUCTIONS[of_loss[0].reduction].options
        fields |= next((terms for own in of_loss if (terms := term_fields(own.terms))), {})
    split = solution.split
    return {
        "options": options_of({**fields, **split.fields}),
        "loss": loss,
        "micro_batch": split.micro,
        "ranks": split.ranks,
        "updates": split.updates,
        "rank_order": "strided" if split.strided else "consecutive",
        "split": str(split),
        "explains": [one.series.key for one in metrics if one.row["reproduced"]],
    }


def ties(solution: Solution, metrics: Sequence[ComputedMetric]) -> Iterator[Json]:
    """Yield what reproduces as much as the description, and what data would separate them."""
    shown = [
        (one.series, how.best, how.others)
        for one in metrics
        if (how := one.chosen).reproduced and how.best is not None
    ]
    if not any(one.of_loss and one.informative for one, *_ in shown):
        return
    for one, own, _ in shown:
        if own.open is not None:
            values = "{:.2g} to {:.2g}".format(*own.open)
            name = own.terms[-own.fitted][1].name
            option = "entropy bonus" if name == ENTROPY.name else "--kl-loss-coef"
            text = f"{one.key} is the same with {values} x {about_term(name)}"
            yield _tie(option, [values], text, "a log with more digits")
    for one, own, others in shown:
        also = other_aggregations(own, others)
        if one.definition.kind == "loss" and also:
            text = f"{one.key} is the same with {', '.join(also)}"
            yield _tie("--aggregation", also, text, "responses of different lengths in each unit")
            break
    if solution.tied_losses:
        names = [in_line(options_of(loss_fields(one))) for one in solution.tied_losses]
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


def other_aggregations(best: MetricMethod, others: Sequence[MetricMethod]) -> list[str]:
    """Return the other aggregations that reproduce a metric over the same units."""
    same = {REDUCTIONS[one.reduction].aggregation for one in others if one.level == best.level}
    return sorted(same - {REDUCTIONS[best.reduction].aggregation})


def _tie(option: str, values: Sequence[str], text: str, separated: str) -> Json:
    return {"option": option, "values": [*values], "text": text, "separating_data": separated}
