"""`inspect`: statistics and findings of rollout files, as a tree of dataclasses."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost._version import __version__
from rlpost.analysis.findings import Place
from rlpost.analysis.inspect.advantages import advantage_facts
from rlpost.analysis.inspect.alignment import ENDS, mask_facts, shifts_of
from rlpost.analysis.inspect.causes import causes_of
from rlpost.analysis.inspect.components import component_facts
from rlpost.analysis.inspect.critic import critic_facts
from rlpost.analysis.inspect.entropy import entropy_facts
from rlpost.analysis.inspect.failures import failure_facts
from rlpost.analysis.inspect.findings import FINDINGS, CheckInput, run_checks
from rlpost.analysis.inspect.footers import input_facts, role_facts, stored_shares
from rlpost.analysis.inspect.model import Facts, Mismatch, TokenFacts
from rlpost.analysis.inspect.prefixes import SegmentReader
from rlpost.analysis.inspect.reading import read
from rlpost.analysis.inspect.responses import (
    group_facts,
    group_table,
    length_facts,
    reward_facts,
    slices_of,
    table_of,
    token_counts,
    truncation,
)
from rlpost.analysis.inspect.selection import (
    LOG_PROB_PAIRS,
    LOG_PROBS,
    select_columns,
)
from rlpost.analysis.inspect.statistics import quantiles_of, spread_of
from rlpost.analysis.inspect.tokens import (
    column_facts,
    duplicates_of,
    mismatch_facts,
)
from rlpost.errors import UsageError, no_such
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, location_of
from rlpost.pipeline.columns import LENGTH, absent, lacks_of, mask_is_result, without_effect
from rlpost.pipeline.resolved import outcome_roles, resolve_recipe
from rlpost.recipe.input_columns import recorded_advantages, resolve_input
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import InputFacts, RoleFacts
    from rlpost.analysis.inspect.reading import ChunkUser
    from rlpost.analysis.inspect.selection import ColumnSelection, PassResult
    from rlpost.display.reporter import Reporter
    from rlpost.io.input_paths import InputPaths
    from rlpost.kernels.moments import Mask
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Attempts, Failures, RolloutReward
    from rlpost.recipe.roles import ColumnMap, Unit


def stored(
    inputs: Sequence[PathText], *, columns_map: Mapping[str, str] | None = None
) -> tuple[InputFacts, dict[str, RoleFacts]]:
    """Return the contents of the files' footers, and the column of each role; read no rows.

    Raises:
        UsageError, DataError, ReadWriteError: as `inspect`.
    """
    source = Source(find_inputs(inputs))
    columns = resolve_input(source, columns_map or {})
    if select_columns(source, columns, with_tokens=False).lengths is None:
        columns = columns.without([LENGTH])
    return input_facts(source, columns), role_facts(source, columns)


def inspect(inputs: PathText | Sequence[PathText], **options: Any) -> Facts:
    """Return statistics and findings of rollout files; `options` as of `inspect_source`.

    The files are read once, in chunks of about half a million tokens. If a column may leave rows
    out, keys and flags of rows are read before. Only a few numbers per response stay in memory.
    Numbers that `rlpost advantages` also reports are the same.
    """
    inputs = [inputs] if isinstance(inputs, PathText) else inputs
    return inspect_source(Source(find_inputs(inputs)), inputs, **options)


def inspect_source(
    source: Source,
    inputs: Sequence[PathText],
    *,
    columns_map: Mapping[str, str] | None = None,
    tokens: bool = True,
    pass_threshold: float = 1.0,
    unit: Unit | None = None,
    rollout_reward: RolloutReward = "equal",
    failures: Failures = "drop",
    attempts: Attempts = "all",
    reward_components: Mapping[str, float] = MappingProxyType({}),
    ignore: Sequence[str] = (),
    evidence: int = 5,
    partial: bool = False,
    critic_and_entropy: bool = True,
    beside: Sequence[ChunkUser] = (),
    reporter: Reporter | None = None,
) -> Facts:
    """Return statistics and findings of an open source.

    Args:
        source: the files of `inputs`.
        inputs: as typed.
        columns_map: this and the other options as of `rlpost.inspect`.
        tokens: likewise.
        pass_threshold: likewise.
        unit: likewise.
        rollout_reward: likewise.
        failures: likewise.
        attempts: likewise.
        reward_components: columns whose weighted sum is the reward, with their weights.
        ignore: likewise.
        evidence: likewise.
        partial: the source has the rows of a condition alone, so its groups may lack some.
        critic_and_entropy: likewise.
        beside: get the chunks of the same pass.
        reporter: gets the progress.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.inspect`.
    """
    start = time.perf_counter()
    _check_names(ignore)
    columns = _columns(source, columns_map or {}, reward_components)
    chosen = unit or ("rollout" if columns.is_mapped("rollout") else None)
    recipe = Recipe(
        estimator="raw",
        unit=_unit(source, columns, unit, rollout_reward),
        rollout_reward=rollout_reward,
        failures=failures,
        attempts=attempts,
        pass_threshold=pass_threshold,
        reward_components=tuple(reward_components) or None,
        component_weights=tuple(reward_components.values()) or None,
    )
    if lacking := {role: why for role, why in outcome_roles(recipe).items() if role not in columns}:
        raise absent(source, columns, lacking, lacks_of(source))
    selection = select_columns(
        source, columns, with_tokens=tokens, unit=recipe.unit or "row",
        components=reward_components, critic_and_entropy=critic_and_entropy,
        recorded=recorded_advantages(source, columns, columns_map or {}),
    )  # fmt: skip
    columns = _with_lengths(columns, selection)
    segments = None if selection.ids is None else SegmentReader(selection.ids)
    resolved = resolve_recipe(recipe, selection.columns)
    masked = selection.kept is not None and (
        columns.is_mapped("sample_mask") or not mask_is_result(source)
    )
    users = [*beside, *([segments] if segments else [])]
    counted = _counted(source, selection, resolved, masked=masked)
    reading = read(source, selection, users, reporter, counted)
    rows = reading.rows
    table = table_of(rows, resolved, masked=masked)
    groups = group_table(rows, table)
    rewarded = "reward" in rows
    data = CheckInput(
        reading=reading,
        table=table,
        input=input_facts(source, columns),
        group_rows=groups,
        groups=group_facts(groups, selection.columns, resolved),
        rewards=reward_facts(table, selection.reward_column if rewarded else None),
        lengths=length_facts(reading, table.counted),
        masks=mask_facts(reading),
        tokens=_token_facts(reading),
        mismatch=_mismatch(reading),
        repeated=_repeated(segments, rows, table) if segments and len(rows) else None,
        chosen_unit=chosen,
        failures=failure_facts(
            rows, table, selection.columns.columns.get("failure"), masked=masked
        ),
        evidence=evidence,
        partial=partial,
    )
    findings, checks = run_checks(data, ignore)
    return Facts(
        inputs=[str(location_of(path)) for path in inputs],
        input=data.input,
        roles=role_facts(source, columns),
        responses=len(rows),
        rollouts=int(table.units["known"].sum()) if resolved.unit == "rollout" else None,
        tokens=token_counts(rows),
        groups=data.groups,
        rewards=data.rewards,
        lengths=data.lengths,
        masks=data.masks,
        token_facts=data.tokens,
        mismatch=data.mismatch,
        steps=slices_of(rows, table, groups, "batch"),
        domains=slices_of(rows, table, groups, "domain"),
        findings=findings,
        checks=checks,
        seconds=time.perf_counter() - start,
        rlpost_version=__version__,
        advantages=advantage_facts(reading),
        truncated=truncation(table, selection.columns),
        left_out=reading.totals.count("left_out"),
        uncounted=table.left_out,
        components=component_facts(reading, table, stored_shares(source, reward_components)),
        failures=data.failures,
        critic=critic_facts(reading),
        entropy=entropy_facts(reading),
    )


def _counted(
    source: Source, selection: ColumnSelection, resolved: ResolvedRecipe, *, masked: bool
) -> Mask | None:
    """Return the rows that are not left out, [N]; None if all count, or if no tokens are read.

    That takes the keys, failures and attempts of all rows, which are read before their tokens.
    """
    recipe = resolved.recipe
    failures = resolved.failures and recipe.failures == "drop"
    chooses = masked or failures or (resolved.attempts and recipe.attempts == "newest")
    if not chooses or (not selection.tokens and selection.entropy is None):
        return None
    rows = read(source, selection.of_rows()).rows
    counted: Mask = table_of(rows, resolved, masked=masked).rows["left_out"] == 0
    return None if counted.all() else counted


def _repeated(
    segments: SegmentReader, rows: pl.DataFrame, table: CountedTable
) -> tuple[NDArray[np.int64], int]:
    """Return what `SegmentReader.repeated` returns of the rows that have a rollout id."""
    trains = rows["rollout"].is_not_null().to_numpy()
    return segments.repeated(table.rows, trains, grouped="group" in rows)


def with_names(facts: Facts, inputs: Sequence[str], made_of: InputPaths) -> Facts:
    """Return facts that name the inputs and their rows in place of those of temporary files.

    Args:
        facts: of the temporary files.
        inputs: as typed.
        made_of: what temporary files and folders are made of.
    """
    files = [replace(file, path=made_of.named(file.path)) for file in facts.input.files]
    findings = [
        replace(finding, rows=tuple(_named(place, made_of) for place in finding.rows))
        for finding in facts.findings
    ]
    stored = replace(facts.input, files=files)
    return replace(facts, inputs=list(inputs), input=stored, findings=findings)


def _named(place: Place, made_of: InputPaths) -> Place:
    row = None if place.row is None else made_of.row(place.file, place.row)
    return Place(made_of.named(place.file), row)


def _check_names(ignore: Sequence[str]) -> None:
    """Raise UsageError if there is no check of a name."""
    for name in ignore:
        if name not in FINDINGS:
            every = "`rlpost inspect --about checks` lists the checks"
            raise UsageError(no_such(f"--ignore {name}: no check {name!r}", name, FINDINGS, every))


def _columns(
    source: Source,
    columns_map: Mapping[str, str],
    components: Mapping[str, float],
) -> ColumnMap:
    """Return the column of each role; raises the errors of the arguments of `inspect`."""
    named = {f"component:{name}": name for name in components}
    if components and "reward" in columns_map:
        raise UsageError(
            f"--map reward={columns_map['reward']}: --reward-components takes its place; leave one "
            "of them out"
        )
    columns = resolve_input(source, columns_map, named)
    return columns.without(("reward",)) if components else columns


def _unit(source: Source, columns: ColumnMap, chosen: Unit | None, reward: RolloutReward) -> Unit:
    """Return what statistics of responses count; raises the errors of `inspect`."""
    unit = columns.unit(chosen)
    if unit == "row" and reward != "equal":
        raise UsageError(
            f"--rollout-reward {reward} has no effect if each row counts",
            tip="--map rollout=COLUMN",
        )
    needed = ("rollout", "group") if chosen == "rollout" else ()
    if lacking := {role: "--unit rollout" for role in needed if role not in columns}:
        raise absent(source, columns, lacking, lacks_of(source))
    return unit


def _with_lengths(columns: ColumnMap, selection: ColumnSelection) -> ColumnMap:
    """Return the columns, with that of lengths only if it is read; raises if it was chosen."""
    if selection.lists is not None and columns.how.get(LENGTH) == "map":
        raise without_effect(f"--map {LENGTH}={columns.column(LENGTH)}")
    return columns if selection.lengths is not None else columns.without([LENGTH])


def _mismatch(reading: PassResult) -> Mismatch | None:
    """Return engine against trainer, with the causes; None without both log-probs."""
    gap, rows = mismatch_facts(reading.totals), reading.rows
    tokens = reading.sample.compared(rows, reading.selection.machines)
    if gap is None or tokens is None or not len(tokens):
        return gap
    return replace(
        gap,
        causes=causes_of(tokens),
        sampled=len(tokens),
        largest=reading.sample.largest_tokens(rows, reading.files),
    )


def _token_facts(reading: PassResult) -> TokenFacts | None:
    """Return the statistics of tokens; None if no column of tokens or texts was read."""
    roles, rows, totals = reading.selection.tokens, reading.rows, reading.totals
    if not roles and "copy" not in rows:
        return None
    pairs = [pair for pair in LOG_PROB_PAIRS if totals.count(f"{'/'.join(pair)}.tokens")]
    kl = rows["kl"].to_numpy() if "kl" in rows else np.zeros(0)
    kl = kl[np.isfinite(kl)]
    return TokenFacts(
        columns={role: column_facts(role, reading) for role in roles},
        kl=spread_of(kl) if len(kl) else None,
        kl_clamped=totals.count("kl.clamped"),
        kl_quantiles=quantiles_of(kl),
        identical={
            (name := "/".join(pair)): totals.mean(f"{name}.equal", f"{name}.tokens") or 0.0
            for pair in pairs
        },
        shifts=shifts_of(reading, pairs),
        edges={
            role: {end: int((rows[f"{end}:{role}"].fill_nan(0) > 0).sum()) for end in ENDS}
            for role in roles
            if role in LOG_PROBS
        },
        duplicates=duplicates_of(reading),
    )
