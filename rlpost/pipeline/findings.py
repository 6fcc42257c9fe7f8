"""Findings of a run: what is wrong with its input or recipe, or likely so.

A check is one function with the decorator `check`, which yields the texts of its findings.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.display.text import counted, value_list
from rlpost.findings import Check, Level, Place, Registry
from rlpost.pipeline import recorded
from rlpost.pipeline.columns import ROW_ROLES, other_sizes, token_id_columns
from rlpost.pipeline.data import FAILURE, TRUNCATED
from rlpost.pipeline.failures import attempt_columns
from rlpost.pipeline.groups import LARGE, joins_files, mixed_domains, mixed_files
from rlpost.pipeline.measures import whole
from rlpost.pipeline.plan import counts_rows, warns_of_ends
from rlpost.pipeline.resolved import compares_rows
from rlpost.pipeline.stages.tokens import reads_segment_ends
from rlpost.pipeline.turns import BY_ID, ROLLOUT, TURN, one_id, turns_of
from rlpost.recipe.roles import LOG_PROBS, kind_of

if TYPE_CHECKING:
    from rlpost.kernels.moments import Mask
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Totals
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
REWARDS = "response_level_rewards"
_OPTIONAL = (*ROW_ROLES, "mask", "token_rewards")
"""Roles without which an input is processed, to other numbers."""


@dataclass(frozen=True)
class ResponseFacts:
    """Facts about responses, besides their totals; they add with `+`."""

    coefficients: list[Json] | None = None
    """The KL coefficient of each batch if it is adaptive; all batches are then in one table."""
    unknown_reasons: Counter[str] = field(default_factory=Counter)
    """Finish reasons that are not known -> responses."""
    failures: Counter[str] = field(default_factory=Counter)
    """Why responses failed -> rollouts that nothing before left out; rows alone."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows with each of `failure_flags`, and with each sign of turns in `EVIDENCE`; what speaks
    against the key of groups, from `key_counts`."""
    least: int = 0
    """Responses of the smallest group."""
    prompts: int = 0
    """Keys of groups over all batches."""

    def __add__(self, other: ResponseFacts) -> ResponseFacts:
        return ResponseFacts(
            self.coefficients or other.coefficients,
            self.unknown_reasons + other.unknown_reasons,
            self.failures + other.failures,
            self.counts + other.counts,
            min(filter(None, (self.least, other.least)), default=0),
            max(self.prompts, other.prompts),
        )


@dataclass(frozen=True)
class RunFacts:
    """What checks read of a run."""

    plan: Plan
    responses: ResponseFacts
    totals: Totals
    """Of the whole input."""
    summary: Json
    """Without findings."""
    left_out: int
    """Responses that were left out because a number is not finite."""

    @property
    def resolved(self) -> ResolvedRecipe:
        """The recipe of the run."""
        return self.plan.resolved

    def whole(self, measure: str) -> Json:
        """Return the numbers of a measure of the whole input; none if the recipe has it not."""
        return whole(self.summary["facts"], measure)

    def column(self, role: str) -> str | None:
        """Return the column of a role; None without one."""
        return self.plan.columns.columns.get(role)


Texts = Iterator[str]


@dataclass(frozen=True)
class RunCheck(Check[Callable[[RunFacts], Texts]]):
    """A check of a run."""

    level: Level
    certain: Callable[[RunFacts], bool] | None = None
    """Whether what is a warning elsewhere is an error."""


FINDINGS: Registry[RunCheck] = Registry()
"""Every check, by the name of its finding."""


def check(
    level: Level = "warning", certain: Callable[[RunFacts], bool] | None = None
) -> Callable[[Callable[[RunFacts], Texts]], Callable[[RunFacts], Texts]]:
    """Return a decorator that adds a check to FINDINGS."""

    def add(function: Callable[[RunFacts], Texts]) -> Callable[[RunFacts], Texts]:
        FINDINGS.add(RunCheck(function, level, certain))
        return function

    return add


def findings_of(run: RunFacts, *names: str) -> list[Json]:
    """Return the findings of these checks, or of all, errors first."""
    rows = [
        finding(name, text, "error" if each.certain and each.certain(run) else each.level)
        for name, each in FINDINGS.items()
        if not names or name in names
        for text in each.run(run)
    ]
    return sorted(rows, key=lambda row: row["level"] != "error")


def finding(check: str, text: str, level: str = "warning") -> Json:
    """Return a finding as plain data: its columns and its option are those that its text names."""
    option = re.search(r"--[a-z][-a-z]*(?: [a-z_]+=[\w.]+)?", text)
    columns = [*dict.fromkeys(re.findall(r"`([^`]+)`", text))]
    return {"check": check, "level": level, "text": text, "columns": columns, "rows": [],
            "option": option and option[0]}  # fmt: skip


def texts_of(summary: Json, *levels: str) -> list[str]:
    """Return the texts of the findings of these levels."""
    return [row["text"] for row in summary["findings"] if row["level"] in levels]


_SHOWN = 5  # rows of a finding
_ROWS: dict[str, Callable[[Responses, Recipe], Mask]] = {
    "nonfinite": lambda table, _: ~table["valid"] & (table["left_out"] == 0),
    "no_policy_tokens": lambda table, _: (table["tokens"] == 0) & table["kept"],
    "over_limit": lambda table, recipe: table["tokens"] > (recipe.drop_longer or math.inf),
    "failures": lambda table, _: table["failed" if "failed" in table else "superseded"],
}
"""By check, the rows that show it, as far as the table of responses says it."""


def add_rows(findings: list[Json], plan: Plan, responses: Responses) -> None:
    """Add the first rows that show each finding, as FILE:ROW."""
    source = plan.source
    for row in findings:
        if row["check"] in _ROWS:
            flags = _ROWS[row["check"]](responses, plan.resolved.recipe)
            first = np.flatnonzero(flags)[:_SHOWN].tolist()
            files = [bisect_right(source.first_rows, number) - 1 for number in first]
            row["rows"] = [
                str(Place(str(source.files[file].path), number - source.first_rows[file]))
                for file, number in zip(files, first, strict=True)
            ]


NO_SIGNAL = "all advantages are zero: training on this file would learn nothing"
ALL_REJECTED = "--is-filter rejects every policy token: training on this file would learn nothing"
COMMON = ("no_mask", "nonfinite", "own_rewards", "ignored_columns", "in_some_files")
"""Checks of every run that has advantages, computed or read."""
OF_ROWS = (
    "turns_as_responses",
    "failures",
    "group_key",
    "group_domains",
    "group_files",
)
"""Checks of rows that are not one rollout each, or no answers, and of the key of their groups."""


def all_are(facts: Json, measure: str) -> bool:
    """Return whether all of the population of a measure are so."""
    entry = whole(facts, measure)
    return bool(0 < entry["count"] == entry["total"])


@check("error")
def no_advantages(run: RunFacts) -> Texts:
    """All advantages are 0."""
    advantage = run.whole("advantage")
    if all_are(run.summary["facts"], "advantage_zero") or advantage["min"] == advantage["max"] == 0:
        yield NO_SIGNAL


@check(certain=lambda run: len({*LOG_PROBS} & {*run.plan.roles}) > 1)
def shifted_lists(run: RunFacts) -> Texts:
    """Most responses begin or end with an old log-prob of exactly 0.

    It is an error if another column of log-probs was read: the policy is not certain of the token.
    """
    count, rows = run.totals.count("shifted"), run.summary["responses"]
    if count * 2 > rows:
        yield (
            f"{count} of {rows} responses begin or end with a policy token with an old log-prob of "
            "exactly 0: are mask and log-probs shifted by one?"
        )


@check("error")
def not_log_probs(run: RunFacts) -> Texts:
    """A column of log-probs has positive numbers."""
    for role in LOG_PROBS:
        if tokens := run.totals.count(f"positive:{role}"):
            yield positive_warning(run.plan, role, tokens, run.totals.highs[role])


def positive_warning(plan: Plan, role: str, tokens: int, highest: float) -> str:
    """Return the warning of a column with log-probs above 0."""
    return (
        f"`{plan.columns.column(role)}` is above 0 at {counted(tokens, 'token')} (up to "
        f"{highest:.4g}): not log-probs, so ratios and KL of them are wrong (rlpost inspect)"
    )


@check("error")
def all_rejected(run: RunFacts) -> Texts:
    """Filters reject every policy token."""
    if all_are(run.summary["facts"], "rejected"):
        yield ALL_REJECTED


@check()
def no_mask(run: RunFacts) -> Texts:
    """The input has tokens and no mask."""
    if "mask" not in run.plan.columns and not run.resolved.rows_only:
        yield "no mask column: every token counts as a policy token"


@check()
def nonfinite(run: RunFacts) -> Texts:
    """Responses were left out for NaN or infinity."""
    if run.left_out:
        yield f"{counted(run.left_out, 'response')} left out: a number is not finite"


@check()
def own_rewards(run: RunFacts) -> Texts:
    """Raw rewards are read from a column of an earlier run."""
    if run.column("reward") == REWARDS:
        yield (
            f"raw rewards are read from `{REWARDS}`, a name under which rlpost writes rewards "
            "after normalisation (--map reward=COLUMN)"
        )


@check()
def ignored_columns(run: RunFacts) -> Texts:
    """Another column of the input could serve a role."""
    columns = run.plan.columns
    for role, names in columns.ignored.items():
        if role in run.plan.roles:
            yield (
                f"{' and '.join(f'`{name}`' for name in names)} ignored: {role} is read from "
                f"`{columns.column(role)}` (--map {role}={names[0]})"
            )
    if "sample_mask" in columns.ignored.get("sample_mask", ()):
        yield (
            "`sample_mask` ignored: an earlier run of rlpost computed it "
            "(--map sample_mask=sample_mask leaves out the responses that it dropped)"
        )


@check()
def in_some_files(run: RunFacts) -> Texts:
    """Only some files have a column, so it is not read."""
    of_kl = ("old_log_probs", "ref_log_probs") if run.resolved.recipe.asks_kl else ()
    for role, (name, file) in run.plan.columns.in_some_files.items():
        if role in (*_OPTIONAL, *of_kl):
            yield (
                f"`{name}` ignored, though other files have it: {file} has none (--map "
                f"{role}=none if that is right)"
            )


@check()
def single_row_groups(run: RunFacts) -> Texts:
    """Most groups have one response: the key is wrong, or split by batches."""
    single, columns, recipe = run.whole("single"), run.plan.columns, run.resolved.recipe
    if single["total"] * 2 <= single["count"] or recipe.unit == "rollout":
        return
    which = f"{single['total']} of {single['count']} groups have"
    if (run.summary["rollouts"] or run.summary["responses"]) < run.summary["responses"]:
        yield "; ".join(one_id(which, columns.column("rollout")))
        return
    group = run.column("group")
    text = f"{which} one response: does `{group}` identify the prompt? (--map group=COLUMN)"
    if "batch" in columns and recipe.numerics.batch != "all":
        step = columns.column("batch")
        text += f" Responses of one group have one `{step}`; --map batch=none ignores it"
    yield text


@check()
def no_old_log_probs(run: RunFacts) -> Texts:
    """KL is asked for, and there is nothing to compare the reference with."""
    asked = run.resolved.recipe.asks_kl and "ref_log_probs" in run.plan.columns
    if asked and run.column("old_log_probs") is None:
        yield "KL is not computed: no column for old_log_probs (--map old_log_probs=COLUMN)"


@check()
def same_column(run: RunFacts) -> Texts:
    """Old and infer log-probs are one column."""
    old = run.column("old_log_probs")
    if old is not None and old == run.column("infer_log_probs"):
        yield f"old and infer log-probs are the same column, `{old}`"


@check()
def kl_noise(run: RunFacts) -> Texts:
    """Rewards of groups with equal raw rewards minus their KL are divided by their deviation."""
    equal, resolved = run.whole("equal_rewards")["total"], run.resolved
    early = resolved.recipe.kl_coef > 0 and resolved.recipe.numerics.kl_credit == "response"
    divides = not resolved.estimator.rewards and resolved.norm[1] in ("group", "others")
    if equal and early and divides:
        yield (
            f"{equal:,} of {counted(run.summary['groups'], 'group')} with equal raw rewards: the "
            "KL penalty is subtracted before normalisation, so their advantages are differences in "
            "KL alone, scaled to deviation 1; --drop-equal-rewards drops them"
        )


@check()
def process_rewards(run: RunFacts) -> Texts:
    """Process rewards are read by no estimator."""
    if "token_rewards" in run.plan.columns and run.resolved.process is None:
        name = run.resolved.estimator.name
        yield f"process rewards are not used: {name} reads no reward"


@check()
def not_success(run: RunFacts) -> Texts:
    """Rewards are others than 0 and 1, for an estimator that divides by a mean."""
    reward, name = run.whole("response_level_reward"), run.resolved.estimator.name
    count, mean, low, high = (reward[x] for x in ("count", "mean", "min", "max"))
    if not run.resolved.estimator.of_success or not count:
        return
    squares = (count - 1) * (reward["std"] or 0.0) ** 2 + count * mean**2
    if low >= 0 and high <= 1 and math.isclose(squares, count * mean, rel_tol=1e-9):
        return
    text = f"{name} divides by the mean reward of the group, which is a pass rate for rewards of 0 "
    text += f"and 1; here they are {low:g} to {high:g}"
    if low < 0:
        text += ", so that a mean below 0 gives advantage 0, and one near 0 a huge one: use "
        text += "another estimator, or map the rewards to 0 and above with --reward-scale"
    yield text


@check()
def no_policy_tokens(run: RunFacts) -> Texts:
    """Responses have no policy token."""
    if empty := run.totals.count("empty"):
        what = counted(empty, "response")
        text = f"{what} without policy tokens, so without an advantage"
        counts = "; their rewards count in the baseline of their group, unless `sample_mask` is 0"
        yield text + counts * run.resolved.grouped


@check()
def padded_lists(run: RunFacts) -> Texts:
    """Lists of one length end in observation tokens with an old log-prob of exactly 0."""
    count, rows = run.totals.count("padded"), run.summary["responses"]
    equally_long = run.totals.lows.get("length") == run.totals.highs.get("length")
    if equally_long and count * 2 > rows:
        yield (
            f"{count} of {rows} responses end in an observation token with an old log-prob of "
            "exactly 0: are the lists padded? rlpost needs lists without padding"
        )


@check()
def unequal_lists(run: RunFacts) -> Texts:
    """Lists that are not read, but stand beside the written ones, have other lengths."""
    plan = run.plan
    unread = {x for x in plan.columns.columns if kind_of(x) == "tokens"}.difference(plan.roles)
    names = [plan.columns.column(role) for role in sorted(unread)]
    ids = token_id_columns(plan.source, plan.columns).get("response_token_ids")
    unequal = other_sizes(plan.source, plan.sized_by, [*names, *([ids] if ids else [])])
    for name, (x, y) in unequal.items():
        yield (
            f"`{name}` has {x:,} values, and `{plan.sized_by}` {y:,}: lists of a row differ in "
            "length, and the written ones are as long as the latter"
        )


@check()
def not_whitened(run: RunFacts) -> Texts:
    """Batches have one token, whose deviation is undefined."""
    if number := run.totals.count("unwhitened"):
        which = "1 batch is" if number == 1 else f"{number:,} batches are"
        yield f"{which} not whitened: whitening needs two policy tokens, and there is one"


@check()
def over_limit(run: RunFacts) -> Texts:
    """Responses are longer than the limit of generation."""
    if over := run.totals.count("over_limit"):
        limit, longer = run.resolved.recipe.drop_longer, counted(over, "response")
        upto = f"up to {run.totals.highs['tokens']:,.0f} policy tokens"
        yield f"--drop-longer {limit}: {longer} longer, {upto}; is this the limit of generation?"


@check()
def turns_as_responses(run: RunFacts) -> Texts:
    """Rows are turns, each of which groups count as a response."""
    estimator, (rows, evidence) = run.resolved.estimator, turns_of(run.responses.counts)
    if not rows or run.resolved.recipe.unit is not None or not counts_rows(run.resolved):
        return
    by, rollout = run.column(TURN), "COLUMN"
    if evidence == BY_ID:
        by = rollout = run.plan.columns.columns[ROLLOUT]
    advice = f"--map rollout={rollout} counts a rollout once"
    if compares_rows(estimator):
        advice = f"estimator {estimator.name} needs one row of each rollout"
    yield (
        f"{counted(rows, 'row')} look like turns of a rollout (by `{by}`), but each counts as "
        f"a response of its prompt group: {advice}"
    )


@check()
def scanned_rows(run: RunFacts) -> Texts:
    """A scan ends with each turn of a rollout, where the next one could go on."""
    resolved, recipe = run.resolved, run.resolved.recipe
    if not resolved.scans_rows:
        return
    rows, evidence = turns_of(run.responses.counts)
    by, verb = run.column(ROLLOUT if evidence == BY_ID else TURN), "look like"
    if resolved.unit == "rollout":
        rows = run.totals.count("rows") - run.totals.count("rollouts")
        by, verb = run.column("rollout"), "are"
    if rows:
        known = run.column("rollout") or run.column(ROLLOUT)
        options = ["" if known else "--map rollout=COLUMN", "--scan rollout"]
        options.append("--unit rollout" if recipe.unit == "row" else "")
        lost = ", and turn rewards are not read" if resolved.turn_rewards else ""
        yield (
            f"{counted(rows, 'row')} {verb} further turns of a rollout (by `{by}`), but "
            f"{resolved.estimator.name} ends with each row, as if it were an episode of its "
            f"own{lost}: {' '.join(filter(None, options))} joins the rows"
        )


@check()
def failures(run: RunFacts) -> Texts:
    """Responses count, though they failed or were replaced."""
    counts, recipe = run.responses.counts, run.resolved.recipe
    column = run.plan.columns.column
    if counts["failed"] and recipe.failures == "keep":
        yield (
            f"{counted(counts['failed'], 'failed response')} (`{column(FAILURE)}`: "
            f"{value_list(run.responses.failures)}) count as any other: --failures drop leaves "
            "them out"
        )
    if counts["superseded"] and recipe.attempts == "all":
        yield (
            f"{counted(counts['superseded'], 'row')} of older attempts (by "
            f"`{attempt_columns(run.plan.columns)}`) count too: --attempts newest leaves them out"
        )


@check()
def group_key(run: RunFacts) -> Texts:
    """All responses of a step are one group, or one key is in all steps."""
    facts, counts = run.responses, run.responses.counts
    same = facts.prompts == 1 < counts["batches"]
    large = 0 < counts["groups"] <= counts["batches"] and facts.least >= LARGE
    if counts["groups"] and (same or large):
        yield (
            f"all responses of a step are one group, of at least {facts.least:,}, by "
            f"`{run.column('group')}`, as of an equal or empty prompt: --group-size N makes groups "
            "of N consecutive responses, --map group=COLUMN reads another key"
        )


@check()
def group_domains(run: RunFacts) -> Texts:
    """Groups have responses of several domains."""
    counts, columns = run.responses.counts, run.plan.columns
    if counts["of_domains"] and "domain" in columns:
        what = f"{counts['of_domains']:,} of {counted(counts['groups'], 'group')}"
        yield mixed_domains(what, columns.column("group"), columns.column("domain"))


@check()
def group_files(run: RunFacts) -> Texts:
    """Groups have responses of several files, which may be steps."""
    counts, columns = run.responses.counts, run.plan.columns
    if not counts["of_files"] or "batch" in columns:
        return
    files = [str(file.path) for file in run.plan.source.files]
    if joins_files(counts["of_files"], counts["groups"], files):
        what = f"{counts['of_files']:,} of {counted(counts['groups'], 'group')}"
        yield mixed_files(what, columns.column("group"), files)


@check()
def truncated(run: RunFacts) -> Texts:
    """Finish reasons are not known, or an episode ends where a limit cut it."""
    if "truncation" not in run.summary:
        return
    count, unknown = run.whole(TRUNCATED)["total"], run.responses.unknown_reasons
    resolved, column = run.resolved, run.plan.columns.column(TRUNCATED)
    if unknown:
        yield (
            f"`{column}` has values that are not known in {counted(unknown.total(), 'response')} "
            f"({value_list(unknown)}), which count as not truncated (--map truncated=COLUMN names "
            "a column of bools)"
        )
    if count and warns_of_ends(resolved):
        yield (
            f"{counted(count, 'truncated response')} (by `{column}`): estimator "
            f"{resolved.estimator.name} ends an episode at the last token, with the value 0 behind "
            "it; --bootstrap column uses the role next_value, --bootstrap last the last value of "
            "the row; --drop-truncated leaves these responses out"
        )
    ends = resolved.joins or resolved.unit == "row"  # else each row of a rollout does
    if not count and resolved.recipe.bootstrap is not None and ends:
        text = f"--bootstrap {resolved.recipe.bootstrap} changes nothing: no response is truncated"
        yield f"{text} (by `{column}`)"


@check()
def kl_without_effect(run: RunFacts) -> Texts:
    """A KL penalty changes no advantage."""
    recipe, estimator = run.resolved.recipe, run.resolved.estimator
    credit, why = recipe.numerics.kl_credit, ""
    advice = "--numerics kl_credit=token subtracts it from the advantage of each token"
    if not run.resolved.reads_rewards:
        components = "components" in estimator.columns
        what = "reads reward components alone" if components else "reads no reward"
        why = f"estimator {estimator.name} {what}"
    elif credit == "none":
        why = f"kl_credit is none for {estimator.name}, so no KL penalty is subtracted"
        advice = "--numerics kl_credit=return subtracts it from token rewards"
    if why and recipe.kl_coef and credit != "token":
        yield f"--kl-coef has no effect: {why}; {advice}"


@check()
def lost_rewards(run: RunFacts) -> Texts:
    """No advantage gets rewards."""
    recipe, estimator = run.resolved.recipe, run.resolved.estimator
    rewards = "no rewards of observation tokens"
    if segments := reads_segment_ends(recipe, estimator):
        rewards = "the rewards of the last token of each policy segment only"
    why = f"estimator {estimator.name} gets {rewards}"
    if recipe.whiten_rewards and not segments:
        why = "--whiten-rewards sets observation tokens to 0"
    if ends := run.totals.count("lost:reward"):
        yield (
            f"the reward of {counted(ends, 'response')} is dropped, since the last token is an "
            f"observation and {why}; --numerics terminal_reward=last_policy_token keeps it"
        )
    if process := run.totals.count("lost:process"):
        yield (
            f"process rewards of {counted(process, 'response')} are dropped: {why}; "
            "--numerics process_rewards=response adds them to the response's reward"
        )


@check()
def same_log_probs(run: RunFacts) -> Texts:
    """Old and infer log-probs are equal."""
    if all_are(run.summary["facts"], "identical_log_probs"):
        yield (
            "old and infer log-probs are identical in every policy token: one is a copy of the "
            "other, so there is nothing to correct"
        )


@check()
def recorded_advantages(run: RunFacts) -> Texts:
    """Many recorded advantages have another sign than the computed ones."""
    if recorded.flipped(run.summary["facts"]):
        yield run.summary["recorded"]
