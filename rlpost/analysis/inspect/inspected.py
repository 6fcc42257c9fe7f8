"""The rollouts of an input that were read: which count, their groups, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost._version import __version__
from rlpost.analysis.inspect.causes import causes_of
from rlpost.analysis.inspect.measures import CountedRows, table_facts
from rlpost.analysis.inspect.model import (
    ColumnFacts,
    Facts,
    FailureFacts,
    FileFacts,
    Histogram,
    InputFacts,
    Label,
    Mismatch,
    PassAtK,
    PromptGroup,
    RoleFacts,
)
from rlpost.analysis.inspect.prefixes import repeated_in
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS
from rlpost.analysis.inspect.tokens import policy_role
from rlpost.display.text import counted, plural, share
from rlpost.findings import Place
from rlpost.io.finish_reasons import NULL
from rlpost.io.keys import step_order
from rlpost.io.parquet.inputs import stored_object
from rlpost.kernels.histogram import histogram
from rlpost.kernels.moments import equal_to_rounding, reaches
from rlpost.kernels.segments import count_true
from rlpost.pipeline.data import LEFT_OUT
from rlpost.pipeline.failures import reasons_of_failures
from rlpost.pipeline.groups import NO_GROUPS, profile_tallies
from rlpost.pipeline.measures import LEFT
from rlpost.pipeline.profiles import profiles
from rlpost.pipeline.turns import turn_rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.measures import Labels, Pair
    from rlpost.analysis.inspect.model import Json, TokenColumn
    from rlpost.analysis.inspect.reading import PassResult
    from rlpost.analysis.inspect.selection import ColumnSelection
    from rlpost.io.parquet.source import Source
    from rlpost.kernels.moments import Integers
    from rlpost.pipeline.groups import PromptGroups
    from rlpost.recipe.roles import ColumnMap, Unit


MOST_SIZES = 100
BINS = 20
MOST_NAMED = 5  # steps in a text
_LOWEST = 5  # groups that are listed if none passes, or all do
_TINY, _LARGEST = np.finfo(np.float64).tiny, np.finfo(np.float64).max


@dataclass
class Inspected:
    """An input that was read."""

    reading: PassResult
    table: CountedTable
    columns: ColumnMap
    """Of roles, also those whose column has an unsuitable type."""
    masked: bool = False
    """Statistics leave out rows of the sample mask."""
    chosen_unit: Unit | None = None
    """What counts, as the user chose it; None: by the columns."""
    evidence: int = 5
    """Rows to list for each finding, at most."""
    partial: bool = False
    """The rows are those of a condition, so groups may lack some."""

    @property
    def rows(self) -> pl.DataFrame:
        """What rows say, and numbers of their tokens."""
        return self.reading.rows

    @property
    def selection(self) -> ColumnSelection:
        """The columns that were read."""
        return self.reading.selection

    @property
    def count(self) -> int:
        """The number of responses."""
        return len(self.rows)

    def place(self, row: int) -> Place:
        """Return the file of a row, and its number in it."""
        file, number = self.rows["file"][row], self.rows["row"][row]
        return Place(self.reading.files[file], number)

    # ---- which count ----

    @property
    def by_rollout(self) -> bool:
        """Statistics count rollouts, not rows."""
        return self.table.resolved.unit == "rollout"

    @property
    def noun(self) -> str:
        """What a row is called: `response`, or `row` where rollouts count."""
        return "row" if self.by_rollout else "response"

    @cached_property
    def turns(self) -> pl.Series:
        """Which rows look like turns of a rollout, and by what, as `turn_rows` returns it, [n]."""
        table, turn = self.table.rows, None
        if "turn" in self.rows:
            turn = table["turn"].astype(np.int64)
        rollout = table.columns.get("rollout")
        if "group" not in self.rows or (rollout is None and turn is None):
            return pl.zeros(self.count, pl.Int8, eager=True)
        return pl.Series(turn_rows(table["group"], rollout, turn))

    def rows_of(self, *names: str) -> pl.DataFrame:
        """Return columns of the rows, as far as they exist, and `index`: the rows have forty."""
        rows = self.rows
        index = pl.int_range(pl.len(), dtype=pl.UInt32).alias("index")
        return rows.select(index, *(name for name in dict.fromkeys(names) if name in rows))

    def flags(self, name: str) -> pl.Series:
        """The flags of a column of the table, such as `failed` and `superseded`, [n]; else 0."""
        return pl.Series(self.table.rows.columns.get(name, np.zeros(self.count, np.bool_)))

    @property
    def included(self) -> pl.Series:
        """The rows that neither masks nor failures nor later attempts leave out, [n]."""
        return pl.Series(self.table.counted)

    @property
    def unmasked(self) -> pl.Series:
        """The rows that no sample mask leaves out, [n]."""
        rows = self.rows
        return rows["kept"] if "kept" in rows else pl.Series(np.ones(self.count, np.bool_))

    def part(self, count: int) -> str:
        """Return `3 of 192 responses (1.6 %)`; `rows` where rollouts count."""
        rows = counted(self.count, self.noun)
        return f"{count:,} of {rows} ({share(count, self.count)})"

    def column(self, role: str) -> str:
        """Return the column that has a role; the role itself if no column has it."""
        others = {"prompt": self.selection.prompt, "reward": self.selection.reward_column}
        served = others | self.selection.columns.columns
        return served.get(role) or role

    @property
    def steps(self) -> int:
        """The number of steps; 0 without a column of steps."""
        rows = self.rows
        return rows["batch"].drop_nulls().n_unique() if "batch" in rows else 0

    def in_steps(self, steps: Collection[Label]) -> str:
        """Return ` in step 2 (1 of 3 steps)`; empty if these are all steps, or none."""
        if not steps or len(steps) >= self.steps:
            return ""
        names = ", ".join(str(step) for step in list(steps)[:MOST_NAMED])
        more = ", ..." if len(steps) > MOST_NAMED else ""
        column = self.column("batch")
        noun = column if len(steps) == 1 else plural(column)
        return f" in {noun} {names}{more} ({len(steps):,} of {self.steps:,} {plural(column)})"

    # ---- groups ----

    @cached_property
    def groups(self) -> PromptGroups | None:
        """The prompt groups of the units that count; None without a key of groups."""
        return self.table.groups() if "group" in self.rows else None

    @property
    def passed(self) -> Integers:
        """How many units of each group pass, [G]."""
        groups, table = self.groups or NO_GROUPS, self.table
        passes = reaches(table.units["reward"], table.resolved.recipe.pass_threshold)
        passed: Integers = count_true(passes[groups.members], groups.offsets)
        return passed

    @cached_property
    def group_rows(self) -> pl.DataFrame:
        """A row per group that has responses which count, by the first of these in the input.

        Its keys, its `rows` (responses, or rollouts), `first`, the index of its first row, how many
        of them `passed`, whether its rewards are `equal`, and their mean, `reward`.
        """
        groups, table = self.groups or NO_GROUPS, self.table
        valid = np.flatnonzero(table.scored[table.unit] & table.rows["valid"])
        first_of = np.zeros(len(table.units), np.int64)
        first_of[table.unit[valid[::-1]]] = valid[::-1]
        members, starts = groups.members, groups.offsets[:-1]
        first = np.minimum.reduceat(first_of[members], starts) if len(starts) else starts
        sums = np.add.reduceat(table.units["reward"][members], starts) if len(starts) else starts
        columns = {
            "first": first, "rows": groups.size, "equal": groups.equal, "passed": self.passed,
            "reward": sums / np.maximum(groups.size, 1),
        }  # fmt: skip
        keys = self.rows.select(key for key in ("batch", "group") if key in self.rows)[first]
        return keys.with_columns(pl.Series(name, x) for name, x in columns.items()).sort("first")

    def _prompt_groups(self) -> PromptGroup | None:
        """Return the statistics of groups."""
        if self.groups is None:
            return None
        sizes = np.unique(self.groups.size, return_counts=True)
        values, counts = (x.tolist()[:MOST_SIZES] for x in sizes)
        served = self.selection.columns
        return PromptGroup(
            by=[served.column(role) for role in ("batch", "group") if role in served],
            sizes=dict(zip(values, counts, strict=True)),
            prompts=self.group_rows["group"].n_unique(),
            pass_threshold=self.table.resolved.recipe.pass_threshold,
            pass_at_k=pass_at_k(self.groups.size, self.passed) if "reward" in self.rows else [],
        )

    def _worst_prompts(self) -> list[Json]:
        """Return the prompts that pass in none of their groups, the lowest mean reward first.

        Where none passes or all do, they are those of the lowest rewards. Groups of one response
        are left out.
        """
        if self.groups is None or "reward" not in self.rows:
            return []
        several = self.group_rows.filter(pl.col("rows") > 1)
        total, size = (pl.col("reward") * pl.col("rows")).sum(), pl.col("rows").sum()
        prompts = several.group_by("group").agg(
            pl.col("passed", "rows").sum(), total / size, pl.len().alias("groups"),
            pl.col("first").min(),
        )  # fmt: skip
        worst = prompts.sort(pl.col("passed") > 0, "reward", "first")
        never = int((worst["passed"] == 0).sum())
        count = never if 0 < never < len(worst) else min(_LOWEST, len(worst))
        return [
            {
                "prompt": prompt["group"], "groups": prompt["groups"], "passed": prompt["passed"],
                "responses": prompt["rows"], "reward": prompt["reward"],
                "place": self.place(prompt["first"]),
            }
            for prompt in worst[: min(count, self.evidence)].iter_rows(named=True)
        ]  # fmt: skip

    def _profiles(self) -> Json:
        """Return the profiles of groups and of lengths, as those of a run; without rewards none."""
        if "reward" not in self.rows:
            return {}
        table, groups = self.table, self.groups or NO_GROUPS
        recipe, rewards = table.resolved.recipe, table.units["reward"]
        passed = reaches(rewards, recipe.pass_threshold)
        signal = ~groups.equal & (groups.size > 1)
        with np.errstate(over="ignore"):  # rewards beyond float32
            tallies = profile_tallies(table.units, rewards, passed, groups, table.scored, signal)
        default = type(recipe).model_fields["pass_threshold"].default
        drawn = profiles(tallies, chosen=recipe.pass_threshold != default)
        return drawn if "tokens" in self.rows else {**drawn, "length": {}}

    # ---- what is said of them ----

    @cached_property
    def facts(self) -> Facts:
        """What is said of the input, without findings."""
        table, rows, reading, selection = self.table, self.rows, self.reading, self.selection
        measured = self._measured()
        both = {*LOG_PROB_PAIRS[0]} <= {*selection.tokens} and "engine_k3" in measured
        failures = "failure" in selection.columns
        total = int(rows["length"].sum()) if "length" in rows else None
        return Facts(
            inputs=[], findings=[], checks=[], seconds=0.0,
            responses=self.count,
            rollouts=int(table.units["known"].sum()) if self.by_rollout else None,
            tokens={"all": total, "policy": int(rows["tokens"].fill_nan(0).sum())}
            if "tokens" in rows else None,
            roles=role_facts(reading.reader.source, self.columns),
            facts=measured,
            prompt_groups=self._prompt_groups(),
            histograms=self._histograms(),
            token_columns=reading.columns,
            mismatch=self._mismatch() if both else None,
            input=input_facts(reading.reader.source, self.columns),
            rlpost_version=__version__,
            advantages={
                "column": selection.advantages, "nonfinite": reading.nonfinite_advantages,
                "recorded": selection.recorded,
            } if "advantage" in measured else None,
            failures=FailureFacts(
                selection.columns.column("failure"), table.resolved.recipe.failures,
                dict(reasons_of_failures(table.rows).most_common()),
            ) if failures else None,
            turns=bool((self.turns > 0).any()),
            entropy={
                "column": selection.entropy
                or selection.columns.column(policy_role(selection.tokens) or ""),
                "sampled": selection.entropy is None,
            } if "entropy" in measured else None,
            left_out=self._masked(),
            profiles=self._profiles(),
            worst_prompts=self._worst_prompts(),
        )  # fmt: skip

    def _masked(self) -> int:
        """Return how many responses the sample mask leaves out, here or in training."""
        if self.masked or "kept" not in self.rows:
            return self.table.left_out.get("sample_mask", 0)
        return int((~self.unmasked & self.included).sum())

    def _measured(self) -> dict[str, Json]:
        """Return the measures of responses, of groups, and of tokens."""
        populations, pairs, labels = self.populations()
        words = {"row": self.noun, "unit": "rollout" if self.by_rollout else "response"}
        measured = table_facts(populations, pairs, labels, **words)
        return measured | self.reading.sums.facts(labels, **words)

    def populations(self) -> tuple[dict[str, CountedRows], list[Pair], Labels]:
        """Return the populations of measures, with step and domain of each cell, and their labels.

        Steps are in numerical order if they are whole numbers, otherwise as in the input; domains
        are sorted by name.
        """
        table, rows, groups = self.table, self.rows, self.groups
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
        for name, role, known in (
            ("step", "batch", cells.steps),
            ("domain", "domain", cells.domains),
        ):
            if role in rows:
                present = [label for label in known if label is not None]
                order = step_order(present) if name == "step" else np.argsort([*map(str, present)])
                labels[name] = [present[place] for place in order]
        return populations, [(cells.steps[x], cells.domains[y]) for x, y in cells.pairs], labels

    def _histograms(self) -> dict[str, Histogram]:
        """Return the histograms of rewards and policy tokens that count, unless all are equal.

        And of advantages, without those that are 0.
        """
        rows, table, credit = self.rows, self.table, histogram(self.reading.tally)
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

    def _mismatch(self) -> Mismatch:
        """Return the causes of the difference of engine and trainer."""
        sample = self.reading.sample
        tokens = sample.compared(self.rows, self.selection.machines)
        if tokens is None or not len(tokens):
            return Mismatch()
        largest = sample.largest_tokens(self.rows, self.reading.files)
        return Mismatch(causes_of(tokens), len(tokens), largest)

    @property
    def log_probs(self) -> dict[str, TokenColumn]:
        """The columns of log-probs that were read, by role."""
        columns = self.reading.columns
        return {role: columns[role] for role in LOG_PROBS if role in columns}

    def repeated(self) -> tuple[NDArray[np.int64], int]:
        """Return the policy tokens of each row that another row of its rollout trains too, [n].

        And those of all rows.
        """
        trains, grouped = self.rows["rollout"].is_not_null().to_numpy(), "group" in self.rows
        return repeated_in(self.reading.segments, self.table.rows, trains, grouped=grouped)

    def signs_of_failures(self) -> dict[str, pl.Series]:
        """Return by sign the rows with reward exactly 0 that look like failures, [n] each.

        They have no token, log-probs of 0 alone, which no engine computed, or a finish reason that
        is neither that of a whole nor of a truncated response. Masked tokens alone are a matter of
        the mask. Two other signs were tried on generated files, and are worth nothing: a policy
        gives short wrong answers, too, and a step of many zeros may have hard prompts.
        """
        rows = self.rows
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


MISSING = "missing"
MOST_FILES = 5  # that are listed for each other type of a column


def input_facts(source: Source, columns: ColumnMap) -> InputFacts:
    """Return files and columns; no data page is read."""
    files = [
        FileFacts(str(file.path), footer.num_rows, _made_by(footer.metadata or {}))
        for file, footer in zip(source.files, source.footers, strict=True)
    ]
    roles = {column: role for role, column in columns.columns.items()}
    facts = []
    for name, paths in _types(source).items():
        first, *others = sorted(paths, key=lambda kind: kind == MISSING)
        listed = {kind: paths[kind][:MOST_FILES] for kind in paths} if others else {}
        counts = {kind: len(paths[kind]) for kind in others}
        facts.append(ColumnFacts(name, first, roles.get(name), counts, listed))
    return InputFacts(files, facts)


def role_facts(source: Source, columns: ColumnMap) -> dict[str, RoleFacts]:
    """Return the column of each role, how it was found, and its type in the first file."""
    types = {name: next(x for x in files if x != MISSING) for name, files in _types(source).items()}
    return {
        role: RoleFacts(column, columns.how[role], types[column], columns.ignored.get(role, []))
        for role, column in columns.columns.items()
    }


def _made_by(metadata: dict[bytes, bytes]) -> Json | None:
    """Return how rlpost wrote the file; None if it did not."""
    if b"rlpost.version" not in metadata:
        return None
    origin: Json = {"version": metadata[b"rlpost.version"].decode(errors="replace")}
    recipe = stored_object(metadata, b"rlpost.recipe")
    if recipe:
        origin |= {"estimator": recipe.get("estimator"), "recipe": recipe}
    if b"rlpost.format" in metadata:
        origin |= {
            "format": metadata[b"rlpost.format"].decode(errors="replace"),
            "missing_roles": stored_object(metadata, b"rlpost.missing_roles"),
        }
    return origin


def _types(source: Source) -> dict[str, dict[str, list[str]]]:
    """Return the files by type of each column; those without it are those of `MISSING`."""
    kinds_of = [
        {field.name: str(field.type) for field in schema}
        | {key: "hive partition" for key, _ in file.partitions if key not in schema.names}
        for schema, file in zip(source.schemas, source.files, strict=True)
    ]
    types: dict[str, dict[str, list[str]]] = {x: {} for kinds in kinds_of for x in kinds}
    for kinds, file in zip(kinds_of, source.files, strict=True):
        for name, files in types.items():
            files.setdefault(kinds.get(name, MISSING), []).append(str(file.path))
    return types
