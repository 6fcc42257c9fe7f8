"""The summary of a run as plain data, for `--summary-json` and the metadata of files.

It has the measures of the totals, facts about groups and KL coefficients, and warnings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
from rlpost.pipeline.groups import (
    NO_KEYS,
    CellCounts,
    KeyCounts,
    group_counts,
    joins_files,
    key_counts,
    mixed_domains,
    mixed_files,
)
from rlpost.pipeline.measures import facts_of, whole
from rlpost.pipeline.plan import warns_of_ends
from rlpost.pipeline.reading import ADVANTAGES
from rlpost.pipeline.resolved import compares_rows
from rlpost.pipeline.rollout_order import PLACE, SAME_TURN
from rlpost.pipeline.stages.tokens import reads_segment_ends
from rlpost.pipeline.stages.units import unit_table
from rlpost.pipeline.totals import ExactTotals, Sets, SummaryCells
from rlpost.pipeline.turns import BY_ID, NO_TURNS, ROLLOUT, TURN, TurnCounts, one_id
from rlpost.pipeline.words import recipe_words
from rlpost.recipe.roles import LOG_PROBS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Label, Totals


Json = dict[str, Any]
REWARDS = "response_level_rewards"
_MOST_REASONS = 20  # finish reasons in the summary
_FEW_GROUPS = 4  # of a step, too few for a warning
_MOSTLY = 0.75  # share of groups without signal that is warned of
_OPTIONAL = (*ROW_ROLES, "mask", "token_rewards")
"""Roles without which an input is processed, to other numbers."""


@dataclass(frozen=True)
class ResponseFacts:
    """Facts about responses, besides their totals; they add with `+`."""

    coefficients: list[Json] | None = None
    """The KL coefficient of each batch if it is adaptive; all batches are then in one table."""
    turns: TurnCounts = NO_TURNS
    """Evidence of rows that are turns, each of which counts as a response."""
    unknown_reasons: Counter[str] = field(default_factory=Counter)
    """Finish reasons that are not known -> responses."""
    failures: FailureCounts = field(default_factory=FailureCounts)
    """Responses that failed, and rows that a later attempt replaced."""
    forked: int = 0
    """Rollouts with rows of several branches that have one turn, if turns are joined."""
    same_turn: int = 0
    """Rows with the turn, branch and agent of another row of their rollout."""
    keys: KeyCounts = NO_KEYS
    """What speaks against the key of groups."""

    def __add__(self, other: ResponseFacts) -> ResponseFacts:
        return ResponseFacts(
            self.coefficients or other.coefficients,
            self.turns | other.turns,
            self.unknown_reasons + other.unknown_reasons,
            self.failures + other.failures,
            self.forked + other.forked,
            self.same_turn + other.same_turn,
            self.keys | other.keys,
        )


def nonfinite(responses: Responses) -> int:
    """Return how many responses are left out because a number is not finite."""
    return int((~responses["valid"] & (responses["left_out"] == 0)).sum())


def response_facts(plan: Plan, responses: Responses) -> ResponseFacts:
    """Return the facts about these responses."""
    turns = responses.columns.get("turn_evidence", np.zeros(0, np.int8))
    return ResponseFacts(
        coefficients=_coefficients(plan, responses),
        turns=TurnCounts.of(turns),
        unknown_reasons=responses.label_counts(UNKNOWN_REASON),
        failures=failure_counts(responses),
        forked=_forked(plan.resolved, responses),
        same_turn=int((responses.columns.get(SAME_TURN, False) & responses["kept"]).sum()),
        keys=key_counts(responses, plan.source.first_rows)
        if plan.resolved.grouped
        else KeyCounts(),
    )


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


def summary_part(plan: Plan, responses: Responses, totals: ExactTotals) -> SummaryPart:
    """Return what the summary of some responses is made of.

    Args:
        plan: a recipe bound to its input.
        responses: those that the totals count, and no others.
        totals: by cell.
    """
    units, grouped = unit_table(responses).table, plan.resolved.grouped
    counts, spans = group_counts(units, plan.resolved) if grouped else CellCounts({}, {})
    if TRUNCATED in plan.roles:
        ends = units["kept"] & (units["tokens"] > 0)
        for name, rows in (("ends", ends), (TRUNCATED, ends & units[TRUNCATED])):
            counts[name] = np.bincount(units["cell"][rows], minlength=len(units.cells.pairs))
    totals = totals.beside(counts, spans)
    return SummaryPart(responses.cells, response_facts(plan, responses), totals)


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


def summarise(
    plan: Plan, responses: Responses, totals: ExactTotals, *, by: Sequence[Slice] = SLICES
) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        responses: those that the totals count, and no others.
        totals: by cell.
        by: what numbers are sliced by, besides those of all responses.
    """
    return summary_of(plan, summary_part(plan, responses, totals), by)


class SummaryPart(NamedTuple):
    """What the summary of some responses is made of."""

    cells: SummaryCells
    """Those of the totals."""
    facts: ResponseFacts
    totals: ExactTotals
    """By cell."""


def joint_summary(plan: Plan, parts: Sequence[SummaryPart]) -> Json:
    """Return the summary of files whose groups and batches are separate.

    Args:
        plan: of all files.
        parts: of each file.
    """
    steps = _distinct(part.cells.steps for part in parts)
    steps = [steps[number] for number in step_order(steps)]
    domains = _distinct(part.cells.domains for part in parts)
    named = ((cells.names(totals.keys), totals) for cells, _, totals in parts)
    cells, total = SummaryCells.joined(steps, domains, named)
    facts = reduce(add, [part.facts for part in parts])
    return summary_of(plan, SummaryPart(cells, facts, total))


def _distinct(labels: Iterable[Sequence[Label]]) -> list[Label]:
    """Return labels in the order of their first appearance, all as texts if one is a text."""
    every = [*chain.from_iterable(labels)]
    texts = any(isinstance(label, str) for label in every)
    return [*dict.fromkeys(str(label) if texts else label for label in every)]


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
        "rewritten": [],
        "device": device,
    }


def summary_of(plan: Plan, part: SummaryPart, by: Sequence[Slice] = SLICES) -> Json:
    """Return the summary of some responses.

    Args:
        plan: a recipe bound to its input.
        part: what the summary is made of.
        by: what numbers are sliced by.
    """
    resolved, (cells, facts, totals) = plan.resolved, part
    labels = {key: cells.by_label(key, totals.keys) for key in by}
    parts = iter(totals.over_each([totals.keys, *(x for rows in labels.values() for _, x in rows)]))
    slices = {"all": Sets(None, [next(parts)])}
    slices |= {
        key: Sets([x for x, _ in rows], [next(parts) for _ in rows])
        for key, rows in labels.items()
        if rows
    }
    measured, (sums,) = facts_of(slices, resolved), slices["all"].totals
    known = resolved.lengths != "unknown"
    keys = [plan.columns.column(role) for role in ("batch", "group") if role in plan.columns]
    summary: Json = {
        "schema_version": SCHEMA_VERSION,
        "responses": sums.count("rows"),
        "rollouts": sums.count("rollouts") if resolved.unit == "rollout" else None,
        "groups": sums.count("groups") if resolved.grouped else None,
        "groups_with_signal": sums.count("with_signal") if "with_signal" in measured else None,
        "tokens": {"all": sums.count("length"), "policy": sums.count("tokens")} if known else None,
        "roles": roles_of(plan),
        "unit": resolved.unit_facts,
        "group_by": keys if resolved.grouped else None,
        "estimator": resolved.estimator.name,
        "computes": recipe_words(resolved),
        "process_rewards": resolved.process,
        "kl": _penalty(resolved, facts.coefficients) if resolved.kl else None,
        **({} if TRUNCATED not in measured else {"truncation": _truncation(plan, facts)}),
        **facts.failures.entries(plan.resolved, plan.columns),
        "facts": measured,
        "profiles": {"advantage": _histogram(totals)},
    }
    if "recorded_differs" in measured:
        summary["recorded"] = recorded.verdict(plan.source, plan.columns, measured)
    summary["verdict"] = _verdict(plan, summary)
    summary["findings"] = _findings(plan, facts, summary, sums)
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


def _histogram(totals: ExactTotals) -> Json:
    """Return the histogram of advantages other than 0."""
    tallied = totals.tallies or (np.zeros(0, np.int64),)
    return histogram(tallied[0])._asdict()


def _findings(plan: Plan, facts: ResponseFacts, summary: Json, totals: Totals) -> list[Json]:
    """Return what is wrong, or likely so, errors first.

    Args:
        plan: of the run.
        facts: about the responses.
        summary: without findings.
        totals: of the whole input.
    """
    resolved, measured = plan.resolved, summary["facts"]
    shifted, certain = _shifted(plan, totals.count("shifted"), summary["responses"])
    equally_long = totals.lows.get("length") == totals.highs.get("length")  # as padding makes lists
    padded = totals.count("padded") if equally_long else 0
    common = common_warnings(plan, whole(measured, "left_out:nonfinite")["total"])
    signs = [summary["recorded"]] if recorded.flipped(measured) else []
    checks = [
        ("no_advantages", "error", _of_all(measured, "advantage_zero", NO_SIGNAL)),
        ("shifted_lists", "error" if certain else "warning", shifted),
        ("not_log_probs", "error", _positive(plan, totals)),
        ("all_rejected", "error", _of_all(measured, "rejected", ALL_REJECTED)),
        *((name, "warning", texts) for name, texts in common.items()),
        *((name, "warning", [text]) for name, text in _likely(plan, summary, totals).items()),
        ("padded_lists", "warning", _padded(padded, summary["responses"])),
        ("not_whitened", "warning", _unwhitened(totals.count("unwhitened"))),
        ("over_limit", "warning", _over_limit(plan, totals)),
        *((name, "warning", texts) for name, texts in rollout_warnings(plan, facts).items()),
        ("truncated", "warning", _truncations(plan, facts, measured)),
        ("kl_without_effect", "warning", _missed_kl(resolved)),
        ("lost_rewards", "warning", _lost(resolved, totals)),
        ("same_log_probs", "warning", _of_all(measured, "identical_log_probs", IDENTICAL)),
        ("steps_without_signal", "warning", _steps_without_signal(summary)),
        ("recorded_advantages", "warning", signs),
    ]
    order = sorted(checks, key=lambda check: check[1] != "error")
    return [finding(name, text, level) for name, level, texts in order for text in texts]


def finding(check: str, text: str, level: str = "warning") -> Json:
    """Return a finding as plain data: its columns and its option are those that its text names."""
    option = re.search(r"--[a-z][-a-z]*(?: [a-z_]+=[\w.]+)?", text)
    columns = [*dict.fromkeys(re.findall(r"`([^`]+)`", text))]
    return {"check": check, "level": level, "text": text, "columns": columns, "rows": [],
            "option": option and option[0]}  # fmt: skip


def texts_of(summary: Json, *levels: str) -> list[str]:
    """Return the texts of the findings of these levels."""
    return [row["text"] for row in summary["findings"] if row["level"] in levels]


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


def _of_all(facts: Json, name: str, text: str) -> list[str]:
    """Return a text if all of the population of a measure are so."""
    entry = whole(facts, name)
    return [text] if 0 < entry["count"] == entry["total"] else []


def _padded(count: int, rows: int) -> list[str]:
    if count * 2 <= rows:
        return []
    text = (
        f"{count} of {rows} responses end in an observation token with an old log-prob of exactly "
        "0: are the lists padded? rlpost needs lists without padding"
    )
    return [text]


def _likely(plan: Plan, summary: Json, totals: Totals) -> dict[str, str]:
    """Return likely mistakes in the input or the recipe, by check."""
    columns, resolved, facts = plan.columns, plan.resolved, summary["facts"]
    old, infer = columns.columns.get("old_log_probs"), columns.columns.get("infer_log_probs")
    single, equal = (whole(facts, name) for name in ("single", "equal_rewards"))
    empty, texts = totals.count("empty"), dict[str, str]()
    if single["total"] * 2 > single["count"] and resolved.recipe.unit != "rollout":
        texts["single_row_groups"] = _single_rows(plan, summary, single)
    if resolved.recipe.asks_kl and "ref_log_probs" in columns and old is None:
        text = "KL is not computed: no column for old_log_probs (--map old_log_probs=COLUMN)"
        texts["no_old_log_probs"] = text
    if old is not None and old == infer:
        texts["same_column"] = f"old and infer log-probs are the same column, `{old}`"
    if _sums_kl(resolved):
        texts["kl_of_response"] = _summed_kl(resolved)
    if equal["total"] and _divides_kl(resolved):
        texts["kl_noise"] = _kl_noise(equal["total"], summary["groups"])
    if "token_rewards" in columns and resolved.process is None:
        name = resolved.estimator.name
        texts["process_rewards"] = f"process rewards are not used: {name} reads no reward"
    if resolved.estimator.of_success:
        texts |= _no_success(resolved, whole(facts, "response_level_reward"))
    if empty:
        what = counted(empty, "response")
        texts["no_policy_tokens"] = f"{what} without policy tokens, so without an advantage"
    return texts


def _no_success(resolved: ResolvedRecipe, reward: Json) -> dict[str, str]:
    """Return the warning of rewards other than 0 and 1 for an estimator that divides by a mean."""
    count, mean, low = (reward[name] for name in ("count", "mean", "min"))
    if not count:
        return {}
    squares = (count - 1) * (reward["std"] or 0.0) ** 2 + count * mean**2
    binary = low >= 0 and reward["max"] <= 1 and math.isclose(squares, count * mean, rel_tol=1e-9)
    if binary:
        return {}
    name = resolved.estimator.name
    text = f"{name} divides by the mean reward of the group, which is a pass rate for rewards of 0 "
    text += f"and 1; here they are {low:g} to {reward['max']:g}"
    if low < 0:
        text += ", so that a mean below 0 gives advantage 0, and one near 0 a huge one: use "
        text += "another estimator, or map the rewards to 0 and above with --reward-scale"
    return {"not_success": text}


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
ALL_REJECTED = "--is-filter rejects every policy token: training on this file would learn nothing"
IDENTICAL = (
    "old and infer log-probs are identical in every policy token: one is a copy of the other, "
    "so there is nothing to correct"
)


def _verdict(plan: Plan, summary: Json) -> Json:
    """Return whether anything is learnt: an error if no advantage is other than 0, with a cause."""
    facts = summary["facts"]
    count, zero = (whole(facts, "advantage_zero")[name] for name in ("count", "total"))
    if zero < count:
        return {"level": "ok", "text": f"{percent(1 - zero / count)} of the advantages are not 0"}
    unit = "response" if summary["tokens"] is None else "policy token"
    what, cause = f"all {counted(count, unit)} have advantage 0", _cause(plan, summary)
    if not count:
        what, cause = f"no {unit} is kept", "".join(_of_all(facts, "rejected", ALL_REJECTED))
    return {"level": "error", "text": f"nothing to learn: {what}", "cause": cause}


def _steps_without_signal(summary: Json) -> list[str]:
    """Return the warning of steps in which most groups have no signal, if not all steps are so."""
    facts = summary["facts"]
    if summary["verdict"]["level"] == "error" or "with_signal" not in facts:
        return []
    steps = facts["with_signal"].get("step", {"label": [], "count": [], "mean": []})
    shares = {
        step: 1 - share
        for step, count, share in zip(*(steps[x] for x in ("label", "count", "mean")), strict=True)
        if count >= _FEW_GROUPS
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


def common_warnings(plan: Plan, left_out: int) -> dict[str, list[str]]:
    """Return the warnings of every run that has advantages, computed or read, by check.

    Args:
        plan: of the run.
        left_out: how many responses were left out because a number is not finite.
    """
    texts: dict[str, list[str]] = {}
    if "mask" not in plan.columns and not plan.resolved.rows_only:
        texts["no_mask"] = ["no mask column: every token counts as a policy token"]
    if left_out:
        what = counted(left_out, "response")
        texts["nonfinite"] = [f"{what} left out: a number is not finite"]
    if plan.columns.columns.get("reward") == REWARDS:
        text = f"raw rewards are read from `{REWARDS}`, a name under which rlpost writes rewards "
        texts["own_rewards"] = [f"{text}after normalisation (--map reward=COLUMN)"]
    return texts | {"ignored_columns": _ignored(plan), "in_some_files": _in_some_files(plan)}


def _in_some_files(plan: Plan) -> list[str]:
    """Return a warning for each role whose column only some files have, so that none is read."""
    of_kl = ("old_log_probs", "ref_log_probs") if plan.resolved.recipe.asks_kl else ()
    return [
        f"`{name}` ignored, though other files have it: {file} has none (--map {role}=none if "
        "that is right)"
        for role, (name, file) in plan.columns.in_some_files.items()
        if role in (*_OPTIONAL, *of_kl)
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


def _over_limit(plan: Plan, totals: Totals) -> list[str]:
    """Return the warning of responses that are longer than the limit of generation."""
    if not (over := totals.count("over_limit")):
        return []
    limit, longer = plan.resolved.recipe.drop_longer, counted(over, "response")
    upto = f"up to {totals.highs['tokens']:,.0f} policy tokens"
    return [f"--drop-longer {limit}: {longer} longer, {upto}; is this the limit of generation?"]


def rollout_warnings(plan: Plan, facts: ResponseFacts) -> dict[str, list[str]]:
    """Return the warnings of rows that are not one rollout each, or no answers, by check."""
    return {
        "turns_as_responses": _turns(plan, facts),
        "forked_rollouts": _forks(plan, facts),
        "same_turn": _same_turn(plan, facts.same_turn),
        "failures": facts.failures.warnings(plan.resolved.recipe, plan.columns),
        **_keys(plan, facts.keys),
    }


def _keys(plan: Plan, keys: KeyCounts) -> dict[str, list[str]]:
    """Return the warnings of a key of groups that is hardly that of prompts, by check."""
    texts: dict[str, list[str]] = {}
    if not keys.groups:
        return texts
    column = plan.columns.column("group")
    if keys.of_one_prompt:
        text = (
            f"all responses of a step are one group, of at least {keys.least:,}, by `{column}`, as "
            "of an equal or empty prompt: --group-size N makes groups of N consecutive responses, "
            "--map group=COLUMN reads another key"
        )
        texts["group_key"] = [text]
    if keys.of_domains and "domain" in plan.columns:
        what = _of_groups(keys.of_domains, keys.groups)
        texts["group_domains"] = [mixed_domains(what, column, plan.columns.column("domain"))]
    files = [str(file.path) for file in plan.source.files]
    if "batch" not in plan.columns and joins_files(keys.of_files, keys.groups, files):
        texts["group_files"] = [mixed_files(_of_groups(keys.of_files, keys.groups), column, files)]
    return texts


def _of_groups(count: int, groups: int) -> str:
    return f"{count:,} of {counted(groups, 'group')}"


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


def _same_turn(plan: Plan, count: int) -> list[str]:
    """Return the warning of rows that are copies, or branches without a name."""
    if not count:
        return []
    place = [f"`{plan.columns.column(role)}`" for role in PLACE if role in plan.columns]
    branch = "" if "branch" in plan.columns else "; --map branch=COLUMN is for branches"
    text = (
        f"{counted(count, 'row')} with the {', '.join(place)} of another row of their "
        f"rollout: drop copies, which train twice{branch}"
    )
    return [text]


def _truncation(plan: Plan, facts: ResponseFacts) -> Json:
    """Return the column of what a limit cut off, and its values that are not known."""
    unknown = most_frequent(facts.unknown_reasons, _MOST_REASONS)
    return {"column": plan.columns.column(TRUNCATED), "unknown": unknown}


def _truncations(plan: Plan, facts: ResponseFacts, measured: Json) -> list[str]:
    """Return the warnings of finish reasons, and of an episode that ends where a limit cut it."""
    if "truncated" not in measured:
        return []
    truncated = whole(measured, TRUNCATED)["total"]
    column, texts, unknown = plan.columns.column(TRUNCATED), [], facts.unknown_reasons
    if unknown:
        texts.append(
            f"`{column}` has values that are not known in {counted(unknown.total(), 'response')} "
            f"({value_list(unknown)}), which count as not truncated (--map truncated=COLUMN names "
            "a column of bools)"
        )
    recipe, name = plan.resolved.recipe, plan.resolved.estimator.name
    if truncated and warns_of_ends(plan.resolved):
        texts.append(
            f"{counted(truncated, 'truncated response')} (by `{column}`): estimator {name} "
            "ends an episode at the last token, with the value 0 behind it; --bootstrap column "
            "uses the role next_value, --bootstrap last the last value of the row; "
            "--drop-truncated leaves these responses out"
        )
    ends = plan.resolved.joins or plan.resolved.unit == "row"  # else each row of a rollout does
    if not truncated and recipe.bootstrap is not None and ends:
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


def _single_rows(plan: Plan, summary: Json, single: Json) -> str:
    """Return the warning that most groups have one response: wrong key, or split by batches."""
    group = plan.columns.columns.get("group")
    which = f"{single['total']} of {single['count']} groups have"
    if (summary["rollouts"] or summary["responses"]) < summary["responses"]:
        return "; ".join(one_id(which, plan.columns.column("rollout")))
    text = f"{which} one response: does `{group}` identify the prompt? (--map group=COLUMN)"
    if "batch" not in plan.columns or plan.resolved.recipe.numerics.batch == "all":
        return text
    step = plan.columns.column("batch")
    return f"{text} Responses of one group have one `{step}`; --map batch=none ignores it"
