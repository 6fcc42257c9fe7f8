"""The summary of a run as plain data, for `--summary-json` and the metadata of files.

It has the metrics of the totals, facts about groups and KL coefficients, and warnings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, chain
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost._version import __version__
from rlpost.display.text import counted, most_frequent, percent, value_list
from rlpost.estimators.groups import raw
from rlpost.io.keys import step_order
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.histogram import histogram
from rlpost.pipeline import recorded
from rlpost.pipeline.columns import LENGTH, ROW_ROLES, TEXT
from rlpost.pipeline.data import AGENT_ROLE, TRUNCATED, UNKNOWN_REASON
from rlpost.pipeline.failures import FailureCounts, failure_counts
from rlpost.pipeline.metrics import report_metrics
from rlpost.pipeline.plan import warns_of_ends
from rlpost.pipeline.reading import ADVANTAGES
from rlpost.pipeline.resolved import compares_rows
from rlpost.pipeline.rollout_order import PLACE, SAME_TURN
from rlpost.pipeline.signal import (
    GroupSignal,
    add_signals,
    equal_components,
    group_signal,
    members_of,
    prompt_groups,
)
from rlpost.pipeline.stages.rewards import (
    countable,
    total_rewards,
)
from rlpost.pipeline.stages.tokens import reads_segment_ends
from rlpost.pipeline.stages.units import unit_table
from rlpost.pipeline.totals import ExactTotals, SummaryCells
from rlpost.pipeline.turns import BY_ID, NO_TURNS, ROLLOUT, TURN, TurnCounts, one_id
from rlpost.pipeline.words import recipe_words
from rlpost.recipe.roles import LOG_PROBS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.device_choice import DeviceChoice
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.signal import Cell
    from rlpost.pipeline.totals import Label, Totals
    from rlpost.recipe.recipe import Recipe


REWARDS = "response_level_rewards"
_MOST_SIZES = 100  # group sizes in the summary
_MOST_REASONS = 20  # finish reasons in the summary
_FEW_GROUPS = 4  # of a step, too few for a warning
_MOSTLY = 0.75  # share of groups without signal that is warned of
_OPTIONAL = (*ROW_ROLES, "mask", "token_rewards", "old_log_probs", "ref_log_probs")
"""Roles without which an input is processed, to other numbers."""


@dataclass(frozen=True)
class GroupFacts:
    """Statistics of whole prompt groups; those of different groups add with `+`."""

    sizes: Counter[int] = field(default_factory=Counter)
    """Size -> number of groups; responses that are left out of statistics do not count."""
    signal: Mapping[Cell, GroupSignal] = field(default_factory=dict)
    """Groups with a signal, and with equal rewards, by step and domain."""
    equal_components: Counter[str] = field(default_factory=Counter)
    """Reward component -> groups of several responses in which its values are equal."""

    def __add__(self, other: GroupFacts) -> GroupFacts:
        return GroupFacts(
            self.sizes + other.sizes,
            add_signals([self.signal, other.signal]),
            self.equal_components + other.equal_components,
        )

    def to_json(self) -> Json:
        """Return the statistics as plain data."""
        return {
            name: [*value.items()] if isinstance(value, dict) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, table: Json) -> GroupFacts:
        """Return the statistics from what `to_json` returned."""
        sizes, equal = (Counter(dict(table[name])) for name in ("sizes", "equal_components"))
        signal = {tuple(cell): GroupSignal(*counts) for cell, counts in table["signal"]}
        return cls(sizes, signal, equal)

    def summary(self, columns: list[str]) -> Json:
        """Return the entry of the summary.

        Args:
            columns: the columns that identify a group.
        """
        if not self.sizes:
            return {"count": 0, "single": 0, "size": None, "sizes": {}}
        return {
            "count": self.sizes.total(),
            "by": columns,
            "single": self.sizes[1],
            "size": {"min": min(self.sizes), "median": self._median(), "max": max(self.sizes)},
            "sizes": dict(sorted(self.sizes.items())[:_MOST_SIZES]),
        }

    def _median(self) -> float:
        """Return the median size."""
        total, ascending = self.sizes.total(), sorted(self.sizes)
        upto = list(accumulate(self.sizes[size] for size in ascending))
        low, high = (ascending[bisect_right(upto, rank)] for rank in ((total - 1) // 2, total // 2))
        return (low + high) / 2


@dataclass(frozen=True)
class ResponseFacts:
    """Facts about whole groups of responses, besides their totals; they add with `+`."""

    groups: GroupFacts | None
    """None if the input has no groups."""
    empty: int
    """Responses without a policy token."""
    coefficients: list[Json] | None = None
    """The KL coefficient of each batch if it is adaptive; all batches are then in one table."""
    unwhitened: int = 0
    """Batches with one policy token, which whitening leaves as they are."""
    over_limit: int = 0
    """Responses of more policy tokens than --drop-longer."""
    longest: int = 0
    """Most policy tokens of a response."""
    turns: TurnCounts = NO_TURNS
    """Evidence of rows that are turns, each of which counts as a response."""
    truncated: int | None = None
    """Kept responses that a limit cut off, of rollouts at their last turn; None if no column of it
    was read."""
    unknown_reasons: Counter[str] = field(default_factory=Counter)
    """Finish reasons that are not known -> responses."""
    failures: FailureCounts = field(default_factory=FailureCounts)
    """Responses that failed, and rows that a later attempt replaced."""
    forked: int = 0
    """Rollouts with rows of several branches that have one turn, if turns are joined."""
    same_turn: int = 0
    """Rows with the turn, branch and agent of another row of their rollout."""

    def __add__(self, other: ResponseFacts) -> ResponseFacts:
        groups = [one.groups for one in (self, other) if one.groups is not None]
        return ResponseFacts(
            sum(groups, GroupFacts()) if groups else None,
            self.empty + other.empty,
            self.coefficients or other.coefficients,
            self.unwhitened + other.unwhitened,
            self.over_limit + other.over_limit,
            max(self.longest, other.longest),
            self.turns | other.turns,
            None if self.truncated is None else self.truncated + (other.truncated or 0),
            self.unknown_reasons + other.unknown_reasons,
            self.failures + other.failures,
            self.forked + other.forked,
            self.same_turn + other.same_turn,
        )

    def to_json(self) -> Json:
        """Return the facts as plain data."""
        groups = self.groups and self.groups.to_json()
        return {**vars(self), "groups": groups, "failures": vars(self.failures)}

    @classmethod
    def from_json(cls, table: Json) -> ResponseFacts:
        """Return the facts from what `to_json` returned."""
        groups = table["groups"] and GroupFacts.from_json(table["groups"])
        reasons = Counter[str](table["unknown_reasons"])
        failures = FailureCounts.from_json(table["failures"])
        turns = TurnCounts(*table["turns"])
        own = {"unknown_reasons": reasons, "failures": failures}
        return cls(**{**table, "groups": groups, "turns": turns, **own})


def nonfinite(responses: Responses) -> int:
    """Return how many responses are left out because a number is not finite."""
    return int((~responses["valid"] & (responses["left_out"] == 0)).sum())


def response_facts(plan: Plan, responses: Responses) -> ResponseFacts:
    """Return the facts about these responses."""
    tokens, limit = responses["tokens"], plan.resolved.recipe.drop_longer
    turns = responses.columns.get("turn_evidence", np.zeros(0, np.int8))
    return ResponseFacts(
        groups=_groups(plan, responses) if "group" in plan.columns else None,
        empty=int(((tokens == 0) & responses["kept"]).sum()),
        coefficients=_coefficients(plan, responses),
        unwhitened=int(responses.columns.get("unwhitened", np.zeros(0)).sum()),
        over_limit=0 if limit is None else int((tokens > limit).sum()),
        longest=int(tokens.max()) if len(responses) else 0,
        turns=TurnCounts.of(turns),
        truncated=_truncated(responses),
        unknown_reasons=responses.label_counts(UNKNOWN_REASON),
        failures=failure_counts(responses),
        forked=_forked(plan.resolved, responses),
        same_turn=int((responses.columns.get(SAME_TURN, False) & responses["kept"]).sum()),
    )


def _truncated(responses: Responses) -> int | None:
    """Return how many kept responses, or rollouts, with policy tokens a limit cut off."""
    if TRUNCATED not in responses:
        return None
    units = unit_table(responses).table
    return int((units[TRUNCATED] & units["kept"] & (units["tokens"] > 0)).sum())


def _forked(resolved: ResolvedRecipe, responses: Responses) -> int:
    """Return how many rollouts have kept rows of one turn in several branches, if turns join."""
    joins = resolved.joins or resolved.estimator.joins_rollouts
    if not joins or not {"unit", "turn", "branch"} <= responses.columns.keys():
        return 0
    rows = np.flatnonzero(responses["kept"])
    unit, branch = responses["unit"][rows], responses["branch"][rows]
    agent = [responses[AGENT_ROLE][rows]] if AGENT_ROLE in responses else []
    turn = np.unique(responses["turn"][rows], return_inverse=True)[1]
    place = joint_codes(unit, turn, *agent)
    order = np.lexsort((branch, place))
    place, branch = place[order], branch[order]
    siblings = (place[1:] == place[:-1]) & (branch[1:] != branch[:-1])
    return len(np.unique(unit[order][1:][siblings]))


def _groups(plan: Plan, responses: Responses) -> GroupFacts:
    recipe = plan.resolved.recipe
    responses = unit_table(responses).table
    rows, total = countable(responses, recipe), total_rewards(responses)
    groups = prompt_groups(responses, total, rows, recipe.pass_threshold)
    sizes, counts = (x.tolist() for x in np.unique(groups.size, return_counts=True))
    return GroupFacts(
        Counter(dict(zip(sizes, counts, strict=True))),
        group_signal(responses, groups),
        equal_components(responses, recipe, rows),
    )


def _first_of_each(codes: NDArray[np.int64], rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the first of the chosen rows of each code that occurs."""
    members, offsets = members_of(codes, rows)
    return members[offsets[:-1]]


def _coefficients(plan: Plan, responses: Responses) -> list[Json] | None:
    if plan.resolved.recipe.kl_target is None or "beta" not in responses:
        return None
    first = _first_of_each(responses["batch"], np.ones_like(responses["valid"]))
    labels = responses.labels["batch"]
    betas = zip(responses["batch"][first].tolist(), responses["beta"][first].tolist(), strict=True)
    return [{"batch": labels[code], "coefficient": beta} for code, beta in betas]


SCHEMA_VERSION = 1
Json = dict[str, Any]


def summarise(plan: Plan, responses: Responses, totals: ExactTotals) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        responses: those that the totals count, and no others.
        totals: by cell.
    """
    return summary_of(plan, responses.cells, response_facts(plan, responses), totals)


class SummaryPart(NamedTuple):
    """What the summary of some files is made of."""

    cells: SummaryCells
    facts: ResponseFacts
    totals: ExactTotals


def joint_summary(plan: Plan, parts: Sequence[SummaryPart]) -> Json:
    """Return the summary of files whose groups and batches are separate.

    Args:
        plan: of all files.
        parts: of each file.
    """
    steps = _distinct(part.cells.steps for part in parts)
    steps = [steps[number] for number in step_order(steps)]
    domains = _distinct(part.cells.domains for part in parts)
    step_of, domain_of = ({str(x): n for n, x in enumerate(own)} for own in (steps, domains))
    names = (cells.names(range(len(cells.pairs))) for cells, _, _ in parts)
    pairs = [[(step_of[step], domain_of[domain]) for step, domain in own] for own in names]
    cells = SummaryCells(steps, domains, sorted({*chain.from_iterable(pairs)}))
    number, total = {pair: n for n, pair in enumerate(cells.pairs)}, ExactTotals()
    for own, (_, _, totals) in zip(pairs, parts, strict=True):
        total += totals.with_keys([number[own[key]] for key in totals.keys])
    return summary_of(plan, cells, reduce(add, [part.facts for part in parts]), total)


def _distinct(labels: Iterable[Sequence[Label]]) -> list[Label]:
    """Return labels in the order of their first appearance, all as texts if one is a text."""
    every = [*chain.from_iterable(labels)]
    texts = any(isinstance(label, str) for label in every)
    return [*dict.fromkeys(str(label) if texts else label for label in every)]


def run_summary(
    plan: Plan,
    inputs: Sequence[object],
    choice: DeviceChoice,
    targets: Sequence[AnyPath],
    rewritten: Sequence[str],
    devices: Sequence[str],
    splits: int,
) -> Json:
    """Return the facts of a whole run, besides the numbers of its responses.

    Args:
        plan: of the run.
        inputs: the paths of the input files.
        choice: of the device.
        targets: the published files.
        rewritten: the files that were not spliced, each with the reason.
        devices: the names of those that computed.
        splits: how many chunks were halved because the memory of the device was full.
    """
    return {
        "rlpost_version": __version__,
        "recipe": plan.resolved.recipe.model_dump(mode="json"),
        "inputs": [str(path) for path in inputs],
        "outputs": [str(target) for target in targets],
        "rewritten": list(rewritten),
        "device": choice.facts(),
        "devices": [*devices],
        "split_chunks": splits,
    }


def summary_of(plan: Plan, cells: SummaryCells, facts: ResponseFacts, totals: ExactTotals) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        cells: those of the totals.
        facts: about the responses.
        totals: of the responses, by cell.
    """
    resolved = plan.resolved
    rows = {
        "step": cells.by_label("step", totals.keys),
        "domain": cells.by_label("domain", totals.keys),
    }
    sets = [totals.keys, *(part for column in rows for _, part in rows[column])]
    every, *parts = totals.over_each(sets)
    whole, *metrics = report_metrics([every, *parts], resolved)
    of_part = iter(metrics)
    tables = {
        f"{column}s": [{column: label, **next(of_part)} for label, _ in own]
        for column, own in rows.items()
    }
    by = [plan.columns.column(role) for role in ("batch", "group") if role in plan.columns]
    groups = None if facts.groups is None else facts.groups.summary(by)
    whole["signal"]["histogram"] = _histogram(totals)
    for one in (whole, *tables["steps"], *tables["domains"]):
        one["signal"]["groups"] = None
    if facts.groups is not None:
        _add_group_signal(facts.groups, resolved, whole, tables)
    _add_equal_components(facts.groups, whole)
    edges = _edge_counts(every)
    summary: Json = {
        "schema_version": SCHEMA_VERSION,
        "estimator": resolved.estimator.name,
        "computes": recipe_words(resolved),
        "roles": roles_of(plan),
        "unit": resolved.unit_facts,
        **whole,
        "groups": groups,
        **({} if facts.truncated is None else {"truncation": _truncation(plan, facts)}),
        **facts.failures.entries(plan.resolved, plan.columns),
        **tables,
    }
    if "kl" in summary:
        summary["kl"] |= _penalty(resolved.recipe, facts.coefficients)
    summary["signal"]["no_signal"] = _no_signal(plan, summary)
    shifted, errors = _shifted(plan, edges["shifted"], summary["responses"])
    summary["errors"] = [
        *zero_advantages(summary["advantage"]),
        *(shifted if errors else []),
        *_positive(plan, every),
        *_all_rejected(summary),
    ]
    summary["warnings"] = [
        *warnings_of(plan, facts, summary, edges["padded"]),
        *([] if errors else shifted),
        *_unwhitened(facts.unwhitened),
        *_over_limit(plan, facts),
        *rollout_warnings(plan, facts),
        *_truncations(plan, facts),
        *_missed_kl(plan.resolved),
        *_lost(plan.resolved, every),
        *_identical(summary),
        *_steps_without_signal(summary),
    ]
    if "recorded" in summary:
        entry = summary["recorded"]
        entry["text"], flipped = recorded.verdict(plan.source, plan.columns, entry)
        summary["warnings"] += [entry["text"]] * flipped
    return summary


def _add_equal_components(groups: GroupFacts | None, whole: Json) -> None:
    """Add the groups of equal values of each reward component; None without groups."""
    for name, one in whole.get("components", {}).items():
        one["no_signal"] = None if groups is None else groups.equal_components[name]


def _edge_counts(totals: Totals) -> dict[str, int]:
    """Return how many responses look padded, and shifted; padding makes lists equally long."""
    counts = {name: totals.count(name) for name in ("padded", "shifted")}
    equally_long = totals.lows.get("length") == totals.highs.get("length")
    return counts if equally_long else {**counts, "padded": 0}


def _penalty(recipe: Recipe, coefficients: list[Json] | None) -> Json:
    """Return the KL coefficient, that of each batch if it adapts, and where KL is subtracted."""
    credit = {"credit": recipe.numerics.kl_credit}
    if coefficients is None or recipe.kl_target is None:
        return {"coefficients": recipe.kl_coef, **credit}
    return {"coefficients": coefficients, **credit, "target": recipe.kl_target.value}


def _histogram(totals: ExactTotals) -> Json:
    """Return the histogram of advantages other than 0."""
    tallied = totals.tallies or (np.zeros(0, np.int64),)
    return histogram(tallied[0])._asdict()


def _add_group_signal(
    groups: GroupFacts, resolved: ResolvedRecipe, whole: Json, tables: Mapping[str, list[Json]]
) -> None:
    """Add the counts of groups to the signal of the whole, of each step and of each domain."""
    counts = add_signals({"": one} for one in groups.signal.values())
    whole["signal"]["groups"] = counts.get("", GroupSignal()).summary(resolved)
    for number, column in enumerate(("step", "domain")):
        of_label = add_signals({cell[number]: one} for cell, one in groups.signal.items())
        for row in tables[f"{column}s"]:
            own = of_label.get(str(row[column]), GroupSignal())
            row["signal"]["groups"] = own.summary(resolved)


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
        if role != ADVANTAGES
    }


def _shifted(plan: Plan, count: int, rows: int) -> tuple[list[str], bool]:
    """Return the finding of log-probs of 0 at an end of most responses, and if it is an error.

    It is one if another column of log-probs was read: the policy is not certain of the token.
    """
    if count * 2 <= rows:
        return [], False
    text = (
        f"{count} of {rows} responses begin or end with a policy token with an old log-prob of "
        "exactly 0: are mask and log-probs shifted by one?"
    )
    return [text], len({*LOG_PROBS} & {*plan.roles}) > 1


def _all_rejected(summary: Json) -> list[str]:
    """Return the error of filters that leave nothing to train on."""
    entry = summary.get("correction") or {}
    if not entry.get("rejected") or entry["rejected"]["tokens"] != entry["tokens"] > 0:
        return []
    return ["--is-filter rejects every policy token: training on this file would learn nothing"]


def _identical(summary: Json) -> list[str]:
    """Return the warning of a correction between equal policies."""
    entry = summary.get("correction") or {}
    if not entry.get("tokens") or entry["identical"] != entry["tokens"]:
        return []
    text = (
        "old and infer log-probs are identical in every policy token: one is a copy of the other, "
        "so there is nothing to correct"
    )
    return [text]


def warnings_of(plan: Plan, facts: ResponseFacts, summary: Json, padded: int) -> list[str]:
    """Return warnings of likely mistakes in the input or the recipe."""
    columns, rows = plan.columns, summary["responses"]
    groups = summary["groups"] or {"single": 0, "count": 0}
    old, infer = columns.columns.get("old_log_probs"), columns.columns.get("infer_log_probs")
    empty, signal = facts.empty, summary["signal"]["groups"] or {}
    equal = signal.get("equal_rewards") or 0
    left_out = summary["masked"]["nonfinite"]["responses"]
    likely = [
        (
            groups["single"] * 2 > groups["count"] and plan.resolved.recipe.unit != "rollout",
            _single_rows(plan, summary, groups),
        ),
        (
            "ref_log_probs" in columns and old is None,
            "KL is not computed: no column for old_log_probs (--map old_log_probs=COLUMN)",
        ),
        (
            padded * 2 > rows,
            (
                f"{padded} of {rows} responses end in an observation token with an old "
                "log-prob of exactly 0: are the lists padded? rlpost needs lists without padding"
            ),
        ),
        (
            old is not None and old == infer,
            f"old and infer log-probs are the same column, `{old}`",
        ),
        (_sums_kl(plan.resolved), _summed_kl(plan.resolved)),
        (equal > 0 and _divides_kl(plan.resolved), _kl_noise(equal, groups["count"])),
        (
            "token_rewards" in columns and plan.resolved.process is None,
            f"process rewards are not used: {plan.resolved.estimator.name} reads no reward",
        ),
        (
            empty > 0,
            f"{counted(empty, 'response')} without policy tokens, so without an advantage",
        ),
    ]
    return [
        *common_warnings(plan, left_out),
        *(text for applies, text in likely if applies),
    ]


def _sums_kl(resolved: ResolvedRecipe) -> bool:
    """Return whether the advantage of a response is its reward minus the sum of its KL penalty."""
    recipe = resolved.recipe
    alone = resolved.estimator.function is raw
    return recipe.kl_coef > 0 and recipe.numerics.kl_credit == "return" and alone


def _summed_kl(resolved: ResolvedRecipe) -> str:
    return (
        f"--kl-coef: estimator {resolved.estimator.name} has the sum of token rewards as "
        "advantage, so each token gets the KL penalty of its whole response"
    )


def _missed_kl(resolved: ResolvedRecipe) -> list[str]:
    """Return the warning of a KL penalty that changes no advantage."""
    recipe, estimator = resolved.recipe, resolved.estimator
    credit = recipe.numerics.kl_credit
    if recipe.kl_coef == 0 or credit == "token":
        return []
    advice = "--numerics kl_credit=token subtracts it from the advantage of each token"
    if not resolved.reads_rewards:
        components = "components" in estimator.columns
        what = "reads reward components alone" if components else "reads no reward"
        return [f"--kl-coef has no effect: estimator {estimator.name} {what}; {advice}"]
    if credit == "none":
        why = f"kl_credit is none for {estimator.name}, so no KL penalty is subtracted"
        advice = "--numerics kl_credit=return subtracts it from token rewards"
        return [f"--kl-coef has no effect: {why}; {advice}"]
    return []


def _divides_kl(resolved: ResolvedRecipe) -> bool:
    """Return whether rewards minus their KL penalty are divided by a group's deviation."""
    recipe = resolved.recipe
    early = recipe.kl_coef > 0 and recipe.numerics.kl_credit == "response"
    return early and not resolved.estimator.rewards and resolved.norm[1] in ("group", "others")


def _kl_noise(equal: int, groups: int) -> str:
    return (
        f"{equal:,} of {counted(groups, 'group')} with equal raw rewards: the KL penalty "
        "is subtracted before normalisation, so their advantages are differences in KL alone, "
        "scaled to deviation 1; --drop-equal-rewards drops them"
    )


NO_SIGNAL = "all advantages are zero: training on this file would learn nothing"


def zero_advantages(advantage: Json) -> list[str]:
    """Return the finding of advantages that are all 0, from their statistics."""
    if advantage["mean"] is None or not advantage["min"] == advantage["max"] == 0:
        return []
    return [NO_SIGNAL]


def _no_signal(plan: Plan, summary: Json) -> Json | None:
    """Return that no advantage is other than 0, with the likely cause; None if one is."""
    tokens, rejected = summary["signal"]["tokens"], _all_rejected(summary)
    if tokens["positive"]["tokens"] or tokens["negative"]["tokens"]:
        return None
    unit = "response" if summary["tokens"] is None else "policy token"
    what = f"all {counted(tokens['count'], unit)} have advantage 0"
    if tokens["count"] == 0:
        return {"what": f"no {unit} is kept", "cause": rejected[0] if rejected else ""}
    return {"what": what, "cause": _cause(plan, summary)}


def _steps_without_signal(summary: Json) -> list[str]:
    """Return the warning of steps in which most groups have no signal, if not all steps are so."""
    if summary["signal"]["no_signal"] is not None:
        return []
    shares = {
        row["step"]: 1 - groups["with_signal"] / groups["count"]
        for row in summary["steps"]
        if (groups := row["signal"]["groups"])
        and groups["with_signal"] is not None
        and groups["count"] >= _FEW_GROUPS
    }
    dead = [step for step, share in shares.items() if share >= _MOSTLY]
    if not dead:
        return []
    worst = max(dead, key=shares.__getitem__)
    text = f"step {worst}: {percent(shares[worst])} of the groups are without signal"
    more = f"; {percent(_MOSTLY)} or more in {counted(len(dead), 'step')} of {len(shares):,}"
    return [text + (more if len(dead) > 1 else "")]


def _cause(plan: Plan, summary: Json) -> str:
    """Return the likely cause of advantages that are all 0; empty for none that is known."""
    reward, groups = summary.get("reward"), summary["signal"]["groups"]
    if reward and reward["mean"] is not None and reward["min"] == reward["max"]:
        column = plan.columns.columns.get("reward")
        where = f", and that the reward is in `{column}` (--map reward=COLUMN)" if column else ""
        return f"All rewards are {reward['min']:g}: check the grader{where}."
    if groups and summary["groups"]["single"] == groups["count"]:
        column = plan.columns.columns.get("group")
        return f"Each group has one response: is `{column}` the prompt? (--map group=COLUMN)"
    if groups and groups["count"] and groups["equal_rewards"] == groups["count"]:
        passes = f"{groups['all_pass']:,} all pass, {groups['none_pass']:,} none"
        return f"Each group has equal rewards ({passes}): take harder or easier prompts."
    return ""


def common_warnings(plan: Plan, left_out: int) -> list[str]:
    """Return the warnings of every run that has advantages, computed or read.

    Args:
        plan: of the run.
        left_out: how many responses were left out because a number is not finite.
    """
    texts = []
    if "mask" not in plan.columns and not plan.resolved.rows_only:
        texts.append("no mask column: every token counts as a policy token")
    if left_out:
        texts.append(f"{counted(left_out, 'response')} left out: a number is not finite")
    if plan.columns.columns.get("reward") == REWARDS:
        texts.append(
            f"raw rewards are read from `{REWARDS}`, a name under which rlpost writes rewards "
            "after normalisation (--map reward=COLUMN)"
        )
    return texts + _ignored(plan) + _in_some_files(plan)


def _in_some_files(plan: Plan) -> list[str]:
    """Return a warning for each role whose column only some files have, so that none is read."""
    return [
        f"`{name}` ignored, though other files have it: {file} has none (--map {role}=none if "
        "that is right)"
        for role, (name, file) in plan.columns.in_some_files.items()
        if role in _OPTIONAL
    ]


def _ignored(plan: Plan) -> list[str]:
    """Return a warning for each role that another column of the input could serve."""
    columns = plan.columns
    texts = [
        f"{' and '.join(f'`{name}`' for name in names)} ignored: {role} is read from "
        f"`{columns.column(role)}` (--map {role}={names[0]})"
        for role, names in columns.ignored.items()
        if role in plan.roles
    ]
    lengths = next((x for x in ROLES[LENGTH].aliases if x in plan.source.columns), None)
    if plan.resolved.lengths == "texts" and lengths is not None:
        texts.append(
            f"`{lengths}` ignored: --tokenizer counts the tokens of `{columns.column(TEXT)}` "
            "(leave --tokenizer out to read the column)"
        )
    if "sample_mask" in columns.ignored.get("sample_mask", ()):
        texts.append(
            "`sample_mask` ignored: an earlier run of rlpost computed it "
            "(--map sample_mask=sample_mask leaves out the responses that it dropped)"
        )
    return texts


def _unwhitened(number: int) -> list[str]:
    """Return the warning of batches with one token, whose deviation is undefined."""
    which = "1 batch is" if number == 1 else f"{number:,} batches are"
    text = f"{which} not whitened: whitening needs two policy tokens, and there is one"
    return [text] if number else []


def _over_limit(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warning of responses that are longer than the limit of generation."""
    if not facts.over_limit:
        return []
    limit, longer = plan.resolved.recipe.drop_longer, counted(facts.over_limit, "response")
    upto = f"up to {facts.longest:,} policy tokens"
    return [f"--drop-longer {limit}: {longer} longer, {upto}; is this the limit of generation?"]


def rollout_warnings(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warnings of rows that are not one rollout each, or no answers."""
    failures = facts.failures.warnings(plan.resolved.recipe, plan.columns)
    return [*_turns(plan, facts), *_forks(plan, facts), *_same_turn(plan, facts), *failures]


def _turns(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warning of rows that are turns, each of which groups count as a response."""
    columns, estimator = plan.columns.columns, plan.resolved.estimator
    rows, evidence = facts.turns.turns
    if not rows or plan.resolved.recipe.unit is not None:
        return []
    by, rollout = columns.get(TURN), "COLUMN"
    if evidence == BY_ID:
        by = rollout = columns[ROLLOUT]
    advice = f"--map rollout={rollout} counts a rollout once"
    if compares_rows(estimator):
        advice = f"estimator {estimator.name} needs one row of each rollout"
    text = (
        f"{counted(rows, 'row')} look like turns of a rollout (by `{by}`), but each counts as "
        f"a response of its prompt group: {advice}"
    )
    return [text]


def _forks(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warning of branches that are joined as if one followed the other."""
    if not facts.forked:
        return []
    resolved = plan.resolved
    how, advice = f"estimator {resolved.estimator.name}", "choose an estimator of responses"
    if resolved.joins:
        how, advice = "--scan rollout", "--scan row keeps rows apart"
    text = (
        f"{counted(facts.forked, 'rollout')} with rows of one turn in several branches (by "
        f"`{plan.columns.column('branch')}`): {how} joins them by turn, then by branch, so that "
        "the advantages of a branch contain rewards of its alternatives; "
        f"{advice}"
    )
    return [text]


def _same_turn(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warning of rows that are copies, or branches without a name."""
    if not facts.same_turn:
        return []
    place = [f"`{plan.columns.column(role)}`" for role in PLACE if role in plan.columns]
    branch = "" if "branch" in plan.columns else "; --map branch=COLUMN is for branches"
    text = (
        f"{counted(facts.same_turn, 'row')} with the {', '.join(place)} of another row of their "
        f"rollout: drop copies, which train twice{branch}"
    )
    return [text]


def _truncation(plan: Plan, facts: ResponseFacts) -> Json:
    """Return the entry of the summary about responses that a limit cut off."""
    column, unknown = plan.columns.column(TRUNCATED), facts.unknown_reasons
    return {
        "column": column,
        "responses": facts.truncated,
        "unknown": most_frequent(unknown, _MOST_REASONS),
    }


def _truncations(plan: Plan, facts: ResponseFacts) -> list[str]:
    """Return the warnings of finish reasons, and of an episode that ends where a limit cut it."""
    if facts.truncated is None:
        return []
    column, texts, unknown = plan.columns.column(TRUNCATED), [], facts.unknown_reasons
    if unknown:
        texts.append(
            f"`{column}` has values that are not known in {counted(unknown.total(), 'response')} "
            f"({value_list(unknown)}), which count as not truncated (--map truncated=COLUMN names "
            "a column of bools)"
        )
    recipe, name = plan.resolved.recipe, plan.resolved.estimator.name
    if facts.truncated and warns_of_ends(plan.resolved):
        texts.append(
            f"{counted(facts.truncated, 'truncated response')} (by `{column}`): estimator {name} "
            "ends an episode at the last token, with the value 0 behind it; --bootstrap column "
            "uses the role next_value, --bootstrap last the last value of the row; "
            "--drop-truncated leaves these responses out"
        )
    ends = plan.resolved.joins or plan.resolved.unit == "row"  # else each row of a rollout does
    if not facts.truncated and recipe.bootstrap is not None and ends:
        text = f"--bootstrap {recipe.bootstrap} changes nothing: no response is truncated"
        texts.append(f"{text} (by `{column}`)")
    return texts


def _lost(resolved: ResolvedRecipe, totals: Totals) -> list[str]:
    """Return the warnings of rewards that no advantage gets."""
    recipe, name = resolved.recipe, resolved.estimator.name
    why = f"estimator {name} gets no rewards of observation tokens"
    if reads_segment_ends(recipe, resolved.estimator):
        why = f"estimator {name} gets the rewards of the last token of each policy segment only"
    elif recipe.whiten_rewards:
        why = "--whiten-rewards sets observation tokens to 0"
    ends, process = (totals.count(f"lost:{kind}") for kind in ("reward", "process"))
    texts = []
    if ends:
        texts.append(
            f"the reward of {counted(ends, 'response')} is dropped, since the last token is an "
            f"observation and {why}; --numerics terminal_reward=last_policy_token keeps it"
        )
    if process:
        texts.append(
            f"process rewards of {counted(process, 'response')} are dropped: {why}; "
            "--numerics process_rewards=response adds them to the response's reward"
        )
    return texts


def _positive(plan: Plan, totals: Totals) -> list[str]:
    """Return a warning for each role that was read and has log-probs above 0."""
    return [
        positive_warning(plan, role, totals.count(f"positive:{role}"), totals.highs[role])
        for role in LOG_PROBS
        if totals.count(f"positive:{role}")
    ]


def positive_warning(plan: Plan, role: str, tokens: int, highest: float) -> str:
    """Return the warning of a column with log-probs above 0."""
    return (
        f"`{plan.columns.column(role)}` is above 0 at {counted(tokens, 'token')} (up to "
        f"{highest:.4g}): not log-probs, so ratios and KL of them are wrong (rlpost inspect)"
    )


def _single_rows(plan: Plan, summary: Json, groups: Json) -> str:
    """Return the warning that most groups have one response: wrong key, or split by batches."""
    group = plan.columns.columns.get("group")
    if summary.get("rollouts", {"count": summary["responses"]})["count"] < summary["responses"]:
        which = f"{groups['single']} of {groups['count']} groups have"
        return "; ".join(one_id(which, plan.columns.column("rollout")))
    text = (
        f"{groups['single']} of {groups['count']} groups have one response: does `{group}` "
        "identify the prompt? (--map group=COLUMN)"
    )
    if "batch" not in plan.columns or plan.resolved.recipe.numerics.batch == "all":
        return text
    step = plan.columns.column("batch")
    return f"{text} Responses of one group have one `{step}`; --map batch=none ignores it"
