"""The prompt groups of a table, and how many there are of each kind, by step and domain."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.io.input_paths import step_key_of
from rlpost.kernels.codes import joint_codes, keyed_extremes, last_rows
from rlpost.kernels.moments import reaches
from rlpost.kernels.segments import count_true, offsets_of, segment_min
from rlpost.pipeline.profiles import group_tallies, response_tallies
from rlpost.pipeline.stages.rewards import countable, group_statistics, total_rewards
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.profiles import Tallies
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe


LARGE = 128
"""Responses that hardly belong to one prompt."""


def key_counts(
    responses: Responses, sets: Integers, files: Integers, number: int
) -> tuple[dict[str, Integers], Integers]:
    """Return what speaks against the key of groups, [number] of each, and the smallest groups.

    It has `batches`, `groups`, and groups `of_domains` or `of_files` of which there are several.

    Args:
        responses: the table.
        sets: [N] the set of each response, ascending; a group of several sets counts in each.
        files: [N] the file of each.
        number: of sets.
    """
    group = joint_codes(sets, responses["group"])
    size, batch = np.bincount(group), joint_codes(sets, responses["batch"])
    set_of, least = sets[last_rows(group)], np.full(number, len(group))
    np.minimum.at(least, set_of, size)
    counts = {"batches": sets[last_rows(batch)], "groups": set_of}
    for name, kind in (("of_domains", responses["domain"]), ("of_files", files)):
        several = np.unique(group[kind != kind[last_rows(group)][group]])
        counts[name] = set_of[several]
    return {name: np.bincount(x, minlength=number) for name, x in counts.items()}, least


def mixed_domains(count: str, key: str, domain: str) -> str:
    """Return the text of groups that have responses of several domains."""
    return (
        f"{count} by `{key}` have responses of several `{domain}`: if sources number their prompts "
        "alike, a baseline compares answers to different prompts; --numerics batch=step_domain "
        "keeps domains apart"
    )


def joins_files(several: int, groups: int, files: Sequence[str]) -> bool:
    """Return whether files look like steps: by their names, or since most groups are in several."""
    steps = [step_key_of(PurePath(file)) for file in files]
    named = len({*steps}) == len(files) and None not in steps
    return several > (0 if named else groups / 2)


def mixed_files(count: str, key: str, files: Sequence[str]) -> str:
    """Return the text of groups that have responses of several files, without a step."""
    named = f"{PurePath(files[0]).name} to {PurePath(files[-1]).name}"
    return (
        f"{count} by `{key}` have responses of several of {len(files):,} files ({named}), and no "
        "column has the step: if files are steps, a baseline compares those of several policies; "
        "--from parquet takes steps from names such as step_7, --map batch=COLUMN from a column"
    )


class PromptGroups(NamedTuple):
    """The prompt groups of a table, of the responses that count; [G] each but `members`."""

    members: Integers
    """Rows, group by group."""
    offsets: Integers
    """[G+1] of the groups in `members`."""
    mean: Floats
    """Of the rewards."""
    equal: Mask
    """Several responses with equal rewards."""
    passing: Mask
    """Those of equal rewards pass."""
    cell: Integers
    """The cell of a group whose rows are of several is the first: in step order, then by the name
    of the domain."""

    @property
    def size(self) -> Integers:
        """The responses of each group."""
        return np.diff(self.offsets)


_NONE = np.zeros(0, np.int64)
NO_GROUPS = PromptGroups(_NONE, np.zeros(1, np.int64), np.zeros(0), _NONE > 0, _NONE > 0, _NONE)
"""Those of an input without a key of groups."""


def prompt_groups(
    responses: Responses, rewards: Floats, rows: Mask, pass_threshold: float
) -> PromptGroups:
    """Return the prompt groups of a table with a row for each response or rollout.

    Args:
        responses: the table.
        rewards: [N] raw rewards.
        rows: [N] the rows that count.
        pass_threshold: a response passes with at least this reward.
    """
    moments, constant = group_statistics(responses, rewards, rows=rows)
    members, offsets = members_of(responses["group"], rows)
    first, cell = members[offsets[:-1]], np.zeros(len(offsets) - 1, np.int64)
    if len(responses.cells.pairs) > 1:
        order, ranks = responses.cells.in_order
        rank = ranks[responses["cell"][members]].astype(np.float64)
        cell = order[segment_min(rank, offsets).astype(np.int64)]
    equal, passing = (
        constant[first] & (np.diff(offsets) > 1),
        reaches(rewards[first], pass_threshold),
    )
    return PromptGroups(members, offsets, moments.mean[first], equal, passing, cell)


def members_of(codes: Integers, rows: Mask) -> tuple[Integers, Integers]:
    """Return the chosen rows, those of a code together, and the offsets of the codes."""
    chosen = np.flatnonzero(rows)
    members = chosen[np.argsort(codes[chosen], kind="stable")]
    counts = np.unique(codes[members], return_counts=True)[1]
    return members, offsets_of(counts)


def profile_tallies(
    responses: Responses, rewards: Floats, passed: Mask, groups: PromptGroups, rows: Mask,
    signal: Mask,
) -> Tallies:  # fmt: skip
    """Return the tallies of which `profiles` makes those of an input.

    Args:
        responses: with a row for each response or rollout.
        rewards: [N] their rewards.
        passed: [N] those that pass.
        groups: of them; or NO_GROUPS.
        rows: [N] the responses that count.
        signal: [G] groups with signal.
    """
    mean = np.full(len(rewards), np.nan)
    mean[groups.members] = groups.mean.repeat(groups.size)
    passes = count_true(passed[groups.members], groups.offsets)
    return (
        *group_tallies(groups.size, passes, groups.mean, signal),
        *response_tallies(rewards, responses["tokens"], passed, mean, rows),
    )


class CellCounts(NamedTuple):
    """Whole numbers by cell, [cells] int64 each, which are no sums over rows."""

    counts: dict[str, Integers]
    spans: dict[str, tuple[Floats, Floats]]
    """The lowest and the highest of each, [cells]."""
    tallies: Tallies
    """Of all cells together, from `profiles`; empty if they are not asked for."""


def group_counts(
    responses: Responses, resolved: ResolvedRecipe, *, profiled: bool = True
) -> CellCounts:
    """Return how many groups of each kind there are, their sizes, and profiles of the input.

    Args:
        responses: with a row for each response or rollout.
        resolved: the recipe.
        profiled: count what the profiles of the input need.
    """
    recipe, cells = resolved.recipe, len(responses.cells.pairs)
    rows, rewards = countable(responses, recipe), total_rewards(responses)

    def tallies(groups: PromptGroups, signal: Mask) -> Tallies:
        if not profiled:
            return ()
        passed = reaches(rewards, recipe.pass_threshold)
        scored = rewards if resolved.rewarded else np.full(len(rewards), np.nan)
        return profile_tallies(responses, scored, passed, groups, rows, signal)

    if not resolved.grouped:
        return CellCounts({}, {}, tallies(NO_GROUPS, NO_GROUPS.equal))
    groups = prompt_groups(responses, rewards, rows, recipe.pass_threshold)
    size, several = groups.size, groups.size > 1
    kinds = {"groups": size > 0, "several": several, "single": ~several}
    if resolved.constant:
        credited = abs(responses["credit"].astype(np.float32)) >= resolved.least_advantage
        credited &= ~responses.columns.get("equal", np.zeros(len(responses), np.bool_))
        credited &= responses["kept"] & (responses["tokens"] > 0)
        kinds["with_signal"] = count_true(credited[groups.members], groups.offsets) > 0
    if resolved.rewarded:
        kinds |= {"equal_rewards": groups.equal, "all_pass": groups.equal & groups.passing}
    counts = {name: np.bincount(groups.cell[x], minlength=cells) for name, x in kinds.items()}
    for power, part in enumerate(SPREADS[:3]):
        counts[f"group_size.{part}"] = np.zeros(cells, np.int64)
        np.add.at(counts[f"group_size.{part}"], groups.cell, size**power)
    for name, of_component in component_groups(responses, recipe, rows).items():
        equal = of_component.cell[of_component.equal]
        counts[f"equal_component:{name}"] = np.bincount(equal, minlength=cells)
    signal = kinds.get("with_signal", np.ones(len(size), np.bool_))  # all train
    spans = {"group_size": keyed_extremes(size, groups.cell, cells)}
    return CellCounts(counts, spans, tallies(groups, signal))


def component_groups(responses: Responses, recipe: Recipe, rows: Mask) -> dict[str, PromptGroups]:
    """Return the groups of scored responses, by reward component; `equal` is of its values.

    Args:
        responses: with a row for each response or rollout.
        recipe: names the components.
        rows: [N] the rows that count.
    """
    values = {name: responses[f"component:{name}"] for name in recipe.reward_components or ()}
    return {
        name: prompt_groups(responses, x, rows & np.isfinite(x), 0.0) for name, x in values.items()
    }
