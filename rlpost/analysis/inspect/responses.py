"""Responses and prompt groups of an input: which count, pass@k, rewards, lengths, advantages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.measures import CountedRows
from rlpost.analysis.inspect.model import (
    Histogram,
    Label,
    PassAtK,
    PromptGroup,
)
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import policy_role
from rlpost.findings import Place
from rlpost.io.finish_reasons import NULL
from rlpost.io.keys import step_order
from rlpost.kernels.histogram import histogram
from rlpost.kernels.moments import equal_to_rounding, reaches
from rlpost.kernels.segments import count_true
from rlpost.pipeline.data import LEFT_OUT
from rlpost.pipeline.groups import profile_tallies
from rlpost.pipeline.measures import LEFT
from rlpost.pipeline.profiles import profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.measures import Labels, Pair
    from rlpost.analysis.inspect.model import Facts, Json
    from rlpost.analysis.inspect.reading import PassResult
    from rlpost.pipeline.groups import PromptGroups
    from rlpost.recipe.roles import ColumnMap


MOST_SIZES = 100
BINS = 20
_LOWEST = 5  # groups that are listed if none passes, or all do
_TINY, _LARGEST = np.finfo(np.float64).tiny, np.finfo(np.float64).max


def group_table(rows: pl.DataFrame, table: CountedTable, groups: PromptGroups) -> pl.DataFrame:
    """Return a row per group that has responses which count, by the first of these in the input.

    Args:
        rows: of a PassResult.
        table: of the rows.
        groups: of the table.

    Returns:
        Its keys, its `rows` (responses, or rollouts), `first`, the index of its first row, how many
        of them `passed`, whether its rewards are `equal`, and their mean, `reward`.
    """
    valid = np.flatnonzero(table.scored[table.unit] & table.rows["valid"])
    first_of = np.zeros(len(table.units), np.int64)
    first_of[table.unit[valid[::-1]]] = valid[::-1]
    starts = groups.offsets[:-1]
    first = np.minimum.reduceat(first_of[groups.members], starts) if len(starts) else starts
    keys = rows.select(key for key in ("batch", "group") if key in rows)[first]
    columns = {"first": first, "rows": groups.size, "equal": groups.equal}
    columns["passed"] = passed_of(table, groups)
    sums = np.add.reduceat(table.units["reward"][groups.members], starts) if len(starts) else starts
    columns["reward"] = sums / np.maximum(groups.size, 1)
    return keys.with_columns(pl.Series(name, x) for name, x in columns.items()).sort("first")


def passed_of(table: CountedTable, groups: PromptGroups) -> NDArray[np.int64]:
    """Return how many responses of each group pass, [G]."""
    passes = reaches(table.units["reward"], table.resolved.recipe.pass_threshold)
    passed: NDArray[np.int64] = count_true(passes[groups.members], groups.offsets)
    return passed


def populations_of(
    rows: pl.DataFrame,
    table: CountedTable,
    groups: PromptGroups | None,
) -> tuple[dict[str, CountedRows], list[Pair], Labels]:
    """Return the populations of measures, with step and domain of each cell, and their labels.

    Steps are in numerical order if they are whole numbers, otherwise as in the input; domains are
    sorted by name.

    Args:
        rows: of a PassResult.
        table: of the rows.
        groups: of the table.
    """
    whole, units, recipe = table.rows, table.units, table.resolved.recipe
    names = {"tokens": "policy_tokens", "length": "tokens", "kl": "kl"}
    numbers = {names[x]: rows[x].to_numpy() for x in names if x in rows}
    of_all = {f"{LEFT}{x}": whole["left_out"] == LEFT_OUT.index(x) + 1 for x in table.left_out}
    scored: dict[str, NDArray[Any]] = {}
    if "reward" in rows:
        rewards = units["reward"]
        scored = {"reward": rewards, "passed": reaches(rewards, recipe.pass_threshold)}
    cut = {x: units[x] for x in ("truncated",) if x in units}
    cell, all_rows = whole["cell"], np.ones(len(whole), np.bool_)
    populations = {
        "all": CountedRows(cell, all_rows, of_all | {"counted": table.counted}),
        "counted": CountedRows(cell, table.counted, numbers),
        "units": CountedRows(units["cell"], table.counted_units, cut),
        "scored": CountedRows(units["cell"], table.scored, scored),
    }
    if "failure:end" in whole:
        tried = whole["known"] & np.isin(whole["left_out"], (0, LEFT_OUT.index("failure") + 1))
        of_rows = (table.unit[x] for x in (tried, tried & whole["failure:end"]))
        tried, failed = (np.bincount(x, minlength=len(units)) > 0 for x in of_rows)
        populations["tried"] = CountedRows(units["cell"], tried, {"failed": failed})
    if groups is not None:
        cell, size = groups.cell, groups.size
        sizes = {"group_size": size, "single": size == 1}
        populations["groups"] = CountedRows(cell, size > 0, sizes)
        if "reward" in rows:
            equals = {"equal_rewards": groups.equal, "all_pass": groups.equal & groups.passing}
            populations["several"] = CountedRows(cell, size > 1, equals)
    cells, labels = whole.cells, dict[str, list[Label]]()
    for name, role, known in (("step", "batch", cells.steps), ("domain", "domain", cells.domains)):
        if role in rows:
            present = [label for label in known if label is not None]
            order = step_order(present) if name == "step" else np.argsort([*map(str, present)])
            labels[name] = [present[place] for place in order]
    return populations, [(cells.steps[x], cells.domains[y]) for x, y in cells.pairs], labels


def group_facts(
    columns: ColumnMap, table: CountedTable, groups: PromptGroups, keys: pl.DataFrame,
    *, rewarded: bool,
) -> PromptGroup:  # fmt: skip
    """Return the statistics of groups.

    Args:
        columns: of roles.
        table: of responses.
        groups: of the table.
        keys: of the groups, with `group`.
        rewarded: responses have rewards.
    """
    size, threshold = groups.size, table.resolved.recipe.pass_threshold
    values, counts = np.unique(size, return_counts=True)
    passed = passed_of(table, groups)
    return PromptGroup(
        by=[columns.column(role) for role in ("batch", "group") if role in columns],
        sizes=dict(zip(values.tolist()[:MOST_SIZES], counts.tolist()[:MOST_SIZES], strict=True)),
        prompts=keys["group"].n_unique(),
        pass_threshold=threshold,
        pass_at_k=pass_at_k(size, passed) if rewarded else [],
    )


def worst_groups(
    reading: PassResult, keys: pl.DataFrame, files: Sequence[str], most: int
) -> list[Json]:
    """Return the groups of several responses that never pass, the lowest mean reward first.

    Where none passes or all do, they are those of the lowest rewards.

    Args:
        reading: of the input.
        keys: of the groups, as of `group_table`.
        files: paths of the files.
        most: groups, at most.
    """
    worst = keys.filter(pl.col("rows") > 1).sort(pl.col("passed") > 0, "reward", "first")
    never = int((worst["passed"] == 0).sum())
    count = never if 0 < never < len(worst) else min(_LOWEST, len(worst))
    places = reading.rows.select("file", "row")[worst["first"][: min(count, most)]]
    return [
        {
            "prompt": group["group"], "step": group.get("batch"), "passed": group["passed"],
            "responses": group["rows"], "reward": group["reward"],
            "place": Place(files[file], row),
        }
        for group, (file, row) in zip(worst.iter_rows(named=True), places.iter_rows(), strict=False)
    ]  # fmt: skip


def profiles_of(rows: pl.DataFrame, table: CountedTable, groups: PromptGroups) -> Json:
    """Return the profiles of groups and of lengths, as those of a run; without rewards none."""
    if "reward" not in rows or "tokens" not in rows:
        return {}
    recipe, rewards = table.resolved.recipe, table.units["reward"]
    passed, signal = reaches(rewards, recipe.pass_threshold), ~groups.equal & (groups.size > 1)
    tallies = profile_tallies(table.units, rewards, passed, groups, table.scored, signal)
    default = type(recipe).model_fields["pass_threshold"].default
    return profiles(tallies, chosen=recipe.pass_threshold != default)


def pass_at_k(sizes: NDArray[np.int64], passed: NDArray[np.int64]) -> list[PassAtK]:
    """Return unbiased pass@k for k = 1, 2, 4, ... up to the largest group (arXiv 2107.03374).

    For n responses of which c pass: 1 - C(n - c, k) / C(n, k), the probability that at least one of
    k responses, drawn without replacement, passes. Groups of fewer than k responses do not count.

    Args:
        sizes: [G] responses of each group.
        passed: [G] responses of each group that pass.

    >>> [one.value for one in pass_at_k(np.array([4, 4]), np.array([1, 0]))]
    [0.125, 0.25, 0.5]
    """
    kinds, counts = np.unique(np.stack([sizes, passed]), axis=1, return_counts=True)
    pairs = [(int(n), int(c), int(times)) for (n, c), times in zip(kinds.T, counts, strict=True)]
    results = []
    for exponent in range(int(sizes.max(initial=0)).bit_length()):
        k = 1 << exponent
        large = [(n, c, times) for n, c, times in pairs if n >= k]
        groups = sum(times for _, _, times in large)
        total = math.fsum(times * (1 - _all_fail(n, c, k)) for n, c, times in large)
        results.append(PassAtK(k, total / groups, groups))
    return results


def _all_fail(n: int, c: int, k: int) -> float:
    """Return C(n - c, k) / C(n, k), by the fewer of k and c factors; no number becomes large."""
    if k <= c:
        return math.prod((n - c - i) / (n - i) for i in range(k))
    return math.prod((i - k) / i for i in range(n - c + 1, n + 1))


def histograms_of(reading: PassResult, table: CountedTable) -> dict[str, Histogram]:
    """Return the histograms of rewards and policy tokens that count, unless all are equal.

    And of advantages, without those that are 0.
    """
    rows, credit = reading.rows, histogram(reading.tally)
    histograms: dict[str, Histogram | None] = {}
    if credit.counts:
        histograms["advantage"] = Histogram(*credit)
    if "reward" in rows:
        rewards = table.units["reward"][table.scored]
        histograms["reward"] = histogram_of(rewards + 0.0)  # -0 becomes 0
    if "tokens" in rows:
        lengths = rows["tokens"].to_numpy()
        known = lengths[table.counted & np.isfinite(lengths)]
        histograms["policy_tokens"] = length_histogram(known)
    return {name: bins for name, bins in histograms.items() if bins is not None}


def histogram_of(values: NDArray[Any], edges: list[float] | None = None) -> Histogram | None:
    """Return counts in equal bins or between edges; None if float64 cannot divide their range.

    So it is for numbers that are equal to rounding, or as far apart as float64 reaches.
    """
    numbers = values.astype(np.float64)
    if not len(numbers):
        return None
    if edges is None:
        low, high = numbers.min(), numbers.max()
        width = high / BINS - low / BINS
        if equal_to_rounding(low, high) or not _TINY <= width <= _LARGEST / BINS:
            return None
    counts, bounds = np.histogram(numbers, BINS if edges is None else edges)
    return Histogram(bounds.tolist(), counts.tolist())


def length_histogram(lengths: NDArray[np.int64]) -> Histogram | None:
    """Return counts in bins whose width is a round whole number."""
    longest = int(lengths.max(initial=0))
    if not longest:
        return None
    rough = max(longest / BINS, 1)
    unit = 10 ** int(math.log10(rough))
    width = next(unit * step for step in (1, 2, 5, 10) if unit * step >= rough)
    return histogram_of(lengths, [float(x) for x in range(0, longest + width + 1, width)])


# ---- failures ----


def signs_of_failures(rows: pl.DataFrame) -> dict[str, pl.Series]:
    """Return by sign the rows with reward exactly 0 that look like failures, [n] each.

    They have no token, log-probs of 0 alone, which no engine computed, or a finish reason that is
    neither that of a whole nor of a truncated response. Masked tokens alone are a matter of the
    mask. Two other signs were tried on generated files, and are worth nothing: a policy gives short
    wrong answers, too, and a step of many zeros may have hard prompts.
    """
    if "reward" not in rows or "tokens" not in rows:
        return {}
    zero, tokens = rows["reward"] == 0, rows["tokens"]
    none = rows["length" if "length" in rows else "tokens"] == 0
    signs = {"without tokens": zero & none} if none.sum() * 2 < len(rows) else {}
    means = [rows[name] for name in (f"mean:{role}" for role in LOG_PROBS) if name in rows]
    computed = [mean for mean in means if (mean == 0).sum() * 2 < len(rows)]  # in most rows
    if computed:
        none = zero & (tokens > 0)
        for mean in computed:
            none &= (mean == 0).fill_null(value=False)
        signs["without log-probs"] = none
    if "unknown_reason" in rows:
        unknown = rows["unknown_reason"].is_in(["", NULL]).not_()
        if unknown.sum() * 2 < len(rows):
            signs["with an unknown finish reason"] = zero & unknown
    return signs


# ---- entropies ----


def entropy_profile(reading: PassResult, facts: Facts) -> Json | None:
    """Return the column of entropies, or of the log-probs that estimate them; None without any."""
    if "entropy" not in facts.facts:
        return None
    selection = reading.selection
    column = selection.entropy or selection.columns.column(policy_role(selection.tokens) or "")
    return {"column": column, "sampled": selection.entropy is None}
