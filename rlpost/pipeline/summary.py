"""The summary of a run as plain data, for `--summary-json` and the metadata of files.

It has the measures of the totals, facts about groups and KL coefficients, and warnings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import chain, pairwise
from operator import add
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost._version import __version__
from rlpost.display.text import counted, most_frequent, percent
from rlpost.io.keys import step_order
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.histogram import histogram
from rlpost.pipeline import recorded
from rlpost.pipeline.data import TRUNCATED, UNKNOWN_REASON
from rlpost.pipeline.failures import failure_entries, failure_flags, reasons_of_failures
from rlpost.pipeline.findings import ALL_REJECTED, ResponseFacts, RunFacts, all_are, findings_of
from rlpost.pipeline.groups import group_counts, key_counts
from rlpost.pipeline.measures import advantage_facts, whole
from rlpost.pipeline.profiles import profiles
from rlpost.pipeline.stages.units import unit_table
from rlpost.pipeline.totals import ExactTotals, Sets, SummaryCells
from rlpost.pipeline.turns import EVIDENCE
from rlpost.pipeline.words import recipe_words
from rlpost.recipe.roles import RECORDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlpost.kernels.moments import Integers
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.groups import CellCounts
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Label, Totals


Json = dict[str, Any]
_MOST_REASONS = 20  # finish reasons in the summary


def nonfinite(responses: Responses) -> int:
    """Return how many responses are left out because a number is not finite."""
    return int((~responses["valid"] & (responses["left_out"] == 0)).sum())


def response_facts(plan: Plan, responses: Responses, bounds: Sequence[int]) -> list[ResponseFacts]:
    """Return the facts about consecutive responses.

    Args:
        plan: a recipe bound to its input.
        responses: the table.
        bounds: the first row of each set of responses, and the end.
    """
    number, files = len(bounds) - 1, plan.source.first_rows
    sets, file = (np.repeat(np.arange(len(x) - 1), np.diff(x)) for x in (bounds, files))
    rows = failure_flags(responses)
    if "turn_evidence" in responses:
        rows |= {name: responses["turn_evidence"] & bit > 0 for name, bit in EVIDENCE.items()}
    counts = {name: np.bincount(sets[x], minlength=number) for name, x in rows.items()}
    least = np.zeros(number, np.int64)
    if plan.resolved.grouped:
        of_keys, least = key_counts(responses, sets, file, number)
        counts |= of_keys
    parts = [responses.rows(first, end) for first, end in pairwise(bounds)]
    return [
        ResponseFacts(
            _coefficients(plan, part),
            part.label_counts(UNKNOWN_REASON),
            reasons_of_failures(part),
            Counter({name: int(x[place]) for name, x in counts.items()}),
            int(least[place]),
            responses.notes.get("prompts", 0),
        )
        for place, part in enumerate(parts)
    ]


class TableFacts(NamedTuple):
    """What a summary has of the table of responses alone."""

    cells: SummaryCells
    counts: CellCounts
    """By cell."""
    facts: ResponseFacts


def table_facts(plan: Plan, responses: Responses) -> TableFacts:
    """Return the facts about a table: `responses` of all files of a plan, reduced by all stages."""
    (facts,) = response_facts(plan, responses, [0, len(responses)])
    return TableFacts(responses.cells, _cell_counts(plan, responses), facts)


def _cell_counts(plan: Plan, responses: Responses, *, profiled: bool = True) -> CellCounts:
    units = unit_table(responses).table
    counted = group_counts(units, plan.resolved, profiled=profiled)
    if TRUNCATED in plan.roles:
        ends = units["kept"] & (units["tokens"] > 0)
        for name, rows in (("ends", ends), (TRUNCATED, ends & units[TRUNCATED])):
            number = len(units.cells.pairs)
            counted.counts[name] = np.bincount(units["cell"][rows], minlength=number)
    return counted


def summary_part(table: TableFacts, totals: ExactTotals) -> SummaryPart:
    """Return what the summary of some responses is made of.

    Args:
        table: of these responses.
        totals: by cell.
    """
    cells, (counts, spans, tallies), facts = table
    totals = totals.beside(counts, spans)
    totals = replace(totals, tallies=(*totals.tallies[:1], *tallies) if totals.tallies else ())
    return SummaryPart(cells, facts, totals)


def _coefficients(plan: Plan, responses: Responses) -> list[Json] | None:
    if plan.resolved.recipe.kl_target is None or "beta" not in responses:
        return None
    codes, first = np.unique(responses["batch"], return_index=True)
    labels = responses.labels["batch"]
    betas = zip(codes.tolist(), responses["beta"][first].tolist(), strict=True)
    return [{"batch": labels[code], "coefficient": beta} for code, beta in betas]


SCHEMA_VERSION = 2
Slice = Literal["step", "domain"]
SLICES: tuple[Slice, ...] = ("step", "domain")


def summarise(plan: Plan, responses: Responses, totals: ExactTotals) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        responses: those that the totals count, and no others.
        totals: by cell.
    """
    return summary_of(plan, summary_part(table_facts(plan, responses), totals))


class FileSummaries:
    """The summaries of the files of a plan, each the same whatever other files there are.

    They have no profiles, and no numbers by step or domain.

    Args:
        plan: a recipe bound to its input.
        responses: of all files.
        table: the facts about them, if they are known and there is one file.
    """

    def __init__(self, plan: Plan, responses: Responses, table: TableFacts | None = None) -> None:
        self._plan, self._of_plan = plan, plan_facts(plan)
        if table is not None:
            counted, self._facts = table.counts, [table.facts]
            counts = {name: x.sum(keepdims=True) for name, x in counted.counts.items()}
            spans = {
                name: (low.min(keepdims=True), high.max(keepdims=True))
                for name, (low, high) in counted.spans.items()
            }
        else:
            first_rows = plan.source.first_rows
            self._facts = response_facts(plan, responses, first_rows)
            counts, spans, _ = _cell_counts(plan, _by_file(responses, first_rows), profiled=False)
        self._counts = counts, spans

    def sums_of(self, totals: ExactTotals, files: Integers) -> dict[int, Totals]:
        """Return the totals of each file that occurs, with what counts its groups.

        Args:
            totals: by any keys.
            files: the number in the source of the file of each key.
        """
        by_file = totals.rekeyed(files).beside(*self._counts)
        sets = by_file.over_each([[file] for file in by_file.keys])
        return dict(zip(by_file.keys, sets, strict=True))

    def of(self, index: int, sums: Totals) -> Json:
        """Return the summary of a file.

        Args:
            index: the file's number in the source.
            sums: its totals, from `sums_of`.
        """
        plan = replace(self._plan, source=self._plan.source.only(index))
        slices = {"all": Sets(None, [sums])}
        return _summary(plan, self._of_plan, self._facts[index], slices)


def _by_file(responses: Responses, first_rows: Sequence[int]) -> Responses:
    """Return the table with files as cells, and groups and rollouts that end with their file."""
    number = len(first_rows) - 1
    file = np.repeat(np.arange(number), np.diff(first_rows))
    keys = [name for name in ("group", "unit") if name in responses]
    columns = {name: joint_codes(file, responses[name]) for name in keys}
    cells = SummaryCells([*range(number)], ["all"], [(place, 0) for place in range(number)])
    return replace(responses.with_(cell=file, **columns), cells=cells)


class SummaryPart(NamedTuple):
    """What the summary of some responses is made of."""

    cells: SummaryCells
    """Those of the totals."""
    facts: ResponseFacts
    totals: ExactTotals
    """By cell."""


class JointSummary:
    """The summary of files whose groups and batches are separate, added one after another."""

    def __init__(self) -> None:
        self._parts: list[SummaryPart] = []
        self._tallies = ExactTotals()

    def add(self, part: SummaryPart) -> None:
        """Add the next file."""
        totals = part.totals
        self._tallies += ExactTotals(tallies=totals.tallies)  # which are large, so of all together
        self._parts.append(part._replace(totals=replace(totals, tallies=())))

    def of(self, plan: Plan) -> Json:
        """Return the summary of all files, which are at least one; `plan` is that of all."""
        steps = _distinct(part.cells.steps for part in self._parts)
        steps = [steps[number] for number in step_order(steps)]
        domains = _distinct(part.cells.domains for part in self._parts)
        named = ((cells.names(totals.keys), totals) for cells, _, totals in self._parts)
        cells, total = SummaryCells.joined(steps, domains, named)
        facts = reduce(add, [part.facts for part in self._parts])
        total = replace(total, tallies=self._tallies.tallies)
        return summary_of(plan, SummaryPart(cells, facts, total))


def _distinct(labels: Iterable[Sequence[Label]]) -> list[Label]:
    """Return labels in the order of their first appearance, all as texts if one is a text."""
    names = [*chain.from_iterable(labels)]
    texts = any(isinstance(label, str) for label in names)
    return [*dict.fromkeys(str(label) if texts else label for label in names)]


def run_summary(plan: Plan, inputs: Sequence[object], device: str) -> Json:
    """Return the facts of a whole run, which published nothing yet, besides those of responses.

    Args:
        plan: of the run.
        inputs: the paths of the input files.
        device: that computed, as of `--device`.
    """
    return {
        "rlpost_version": __version__,
        "recipe": plan.resolved.recipe.model_dump(mode="json"),
        "inputs": [str(path) for path in inputs],
        "outputs": [],
        "device": device,
    }


def summary_of(plan: Plan, part: SummaryPart) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        part: what the summary is made of.
    """
    cells, facts, totals = part
    labels = {key: cells.by_label(key, totals.keys) for key in SLICES}
    parts = iter(totals.over_each([totals.keys, *(x for rows in labels.values() for _, x in rows)]))
    slices = {"all": Sets(None, [next(parts)])}
    slices |= {
        key: Sets([x for x, _ in rows], [next(parts) for _ in rows])
        for key, rows in labels.items()
        if rows
    }
    tallied = totals.tallies[0] if totals.tallies else np.zeros(0, np.int64)
    profiles = {"advantage": histogram(tallied)._asdict(), **_profiles(plan.resolved, totals)}
    return _summary(plan, plan_facts(plan), facts, slices) | {"profiles": profiles}


def plan_facts(plan: Plan) -> Json:
    """Return the entries of a summary that follow from the plan."""
    resolved = plan.resolved
    keys = [plan.columns.column(role) for role in ("batch", "group") if role in plan.columns]
    return {
        "schema_version": SCHEMA_VERSION,
        "roles": roles_of(plan),
        "unit": resolved.unit_facts,
        "group_by": keys if resolved.grouped else None,
        "estimator": resolved.estimator.name,
        "computes": recipe_words(resolved),
        "process_rewards": resolved.process,
    }


def _summary(plan: Plan, of_plan: Json, facts: ResponseFacts, slices: Mapping[str, Sets]) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to their files.
        of_plan: from `plan_facts`.
        facts: about them.
        slices: their totals by `all`, and by what else numbers are sliced.
    """
    resolved, (sums,) = plan.resolved, slices["all"].totals
    measured, known = advantage_facts(slices, resolved), resolved.lengths != "unknown"
    summary: Json = of_plan | {
        "responses": sums.count("rows"),
        "rollouts": sums.count("rollouts") if resolved.unit == "rollout" else None,
        "groups": sums.count("groups") if resolved.grouped else None,
        "groups_with_signal": sums.count("with_signal") if "with_signal" in measured else None,
        "tokens": {"all": sums.count("length"), "policy": sums.count("tokens")} if known else None,
        "kl": _penalty(resolved, facts.coefficients) if resolved.kl else None,
        **({} if TRUNCATED not in measured else {"truncation": _truncation(plan, facts)}),
        **failure_entries(facts.counts, facts.failures, resolved, plan.columns),
        "facts": measured,
    }
    if "recorded_differs" in measured:
        summary["recorded"] = recorded.verdict(plan.source, plan.columns, measured)
    summary["verdict"] = _verdict(plan, summary)
    left_out = whole(measured, "left_out:nonfinite")["total"]
    summary["findings"] = findings_of(RunFacts(plan, facts, sums, summary, left_out))
    return summary


def _penalty(resolved: ResolvedRecipe, coefficients: list[Json] | None) -> Json:
    """Return the estimator and the coefficient of KL, and where the penalty is subtracted."""
    recipe = resolved.recipe
    entry: Json = {
        "estimator": recipe.kl_kind,
        "coefficients": recipe.kl_coef,
        "credit": recipe.numerics.kl_credit,
    }
    if coefficients is None or recipe.kl_target is None:
        return entry
    return entry | {"coefficients": coefficients, "target": recipe.kl_target.value}


def _profiles(resolved: ResolvedRecipe, totals: ExactTotals) -> Json:
    """Return the profiles of groups and lengths, those that are known."""
    threshold = resolved.recipe.pass_threshold
    chosen = threshold != type(resolved.recipe).model_fields["pass_threshold"].default
    by_kind = profiles(totals.tallies[1:], chosen=chosen)
    return by_kind if resolved.lengths != "unknown" else by_kind | {"length": {}}


def roles_of(plan: Plan) -> Json:
    """Return the column of each role, how it was found, and columns that could serve instead."""
    columns = plan.columns
    return {
        role: {
            "column": columns.column(role),
            "found_by": columns.how[role],
            **({"ignored": columns.ignored[role]} if role in columns.ignored else {}),
        }
        for role in plan.roles
        if role != RECORDED
    }


def _verdict(plan: Plan, summary: Json) -> Json:
    """Return whether anything is learnt: an error if no advantage is other than 0, with a cause."""
    facts = summary["facts"]
    count, zero = (whole(facts, "advantage_zero")[name] for name in ("count", "total"))
    if zero < count:
        return {"level": "ok", "text": f"{percent(1 - zero / count)} of the advantages are not 0"}
    unit = "response" if summary["tokens"] is None else "policy token"
    what, cause = f"all {counted(count, unit)} have advantage 0", _cause(plan, summary)
    if not count:
        what, cause = f"no {unit} is kept", ALL_REJECTED if all_are(facts, "rejected") else ""
    return {"level": "error", "text": f"nothing to learn: {what}", "cause": cause}


def _cause(plan: Plan, summary: Json) -> str:
    """Return the likely cause of advantages that are all 0; empty for none that is known."""
    facts = summary["facts"]
    reward, single, equal, passing = (
        whole(facts, x) for x in ("reward", "single", "equal_rewards", "all_pass")
    )
    if reward["min"] is not None and reward["min"] == reward["max"]:
        column = plan.columns.columns.get("reward")
        where = f", and that the reward is in `{column}` (--map reward=COLUMN)" if column else ""
        return f"All rewards are {reward['min']:g}: check the grader{where}."
    if "single" in facts and single["total"] == single["count"]:
        column = plan.columns.columns.get("group")
        return f"Each group has one response: is `{column}` the prompt? (--map group=COLUMN)"
    if equal["total"] and equal["total"] == single["count"]:
        passes = f"{passing['total']:,} all pass, {equal['total'] - passing['total']:,} none"
        return f"Each group has equal rewards ({passes}): take harder or easier prompts."
    return ""


def _truncation(plan: Plan, facts: ResponseFacts) -> Json:
    """Return the column of what a limit cut off, and its values that are not known."""
    unknown = most_frequent(facts.unknown_reasons, _MOST_REASONS)
    return {"column": plan.columns.column(TRUNCATED), "unknown": unknown}
