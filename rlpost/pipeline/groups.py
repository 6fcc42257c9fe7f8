"""The prompt groups of a table, and how many there are of each kind, by step and domain."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.io.input_paths import step_key_of
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


class KeyCounts(NamedTuple):
    """What speaks against the key of groups; the counts of several tables add up."""

    batches: int = 0
    groups: int = 0
    prompts: int = 0
    """Keys over all batches."""
    least: int = 0
    """Responses of the smallest group."""
    of_domains: int = 0
    """Groups of several domains."""
    of_files: int = 0
    """Groups of several files."""

    def __or__(self, other: KeyCounts) -> KeyCounts:
        """Return the counts of both."""
        sums = KeyCounts(*(a + b for a, b in zip(self, other, strict=True)))
        least = min(filter(None, (self.least, other.least)), default=0)
        return sums._replace(prompts=max(self.prompts, other.prompts), least=least)

    @property
    def of_one_prompt(self) -> bool:
        """Whether the key is the same in all steps, or in a step of many responses."""
        same = self.prompts == 1 < self.batches
        return same or (0 < self.groups <= self.batches and self.least >= LARGE)


NO_KEYS = KeyCounts()


def key_counts(responses: Responses, first_rows: Sequence[int]) -> KeyCounts:
    """Return the counts of a table.

    Args:
        responses: the table.
        first_rows: of each file in it, and of the end.
    """
    group, batch = responses["group"], responses["batch"]
    sizes = np.bincount(group)
    sizes = sizes[sizes > 0]
    files = np.repeat(np.arange(len(first_rows) - 1), np.diff(first_rows))
    return KeyCounts(
        batches=len(np.unique(batch)),
        groups=len(sizes),
        prompts=responses.notes.get("prompts", 0),
        least=int(sizes.min(initial=len(group))),
        of_domains=_of_several(group, responses["domain"]),
        of_files=_of_several(group, files) if len(files) == len(group) else 0,
    )


def _of_several(group: Integers, kind: Integers) -> int:
    """Return how many groups have rows of several kinds, [N] codes each."""
    if not len(group) or kind.min() == kind.max():
        return 0
    last = np.zeros(int(group.max()) + 1, np.int64)
    last[group] = kind
    return len(np.unique(group[kind != last[group]]))


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


class CellCounts(NamedTuple):
    """Whole numbers by cell, [cells] int64 each, which are no sums over rows."""

    counts: dict[str, Integers]
    spans: dict[str, tuple[Floats, Floats]]
    """The lowest and the highest of each, [cells]."""
    tallies: Tallies
    """Of all cells together, from `profiles`."""


def group_counts(responses: Responses, resolved: ResolvedRecipe) -> CellCounts:
    """Return how many groups of each kind there are, their sizes, and profiles of the input.

    Args:
        responses: with a row for each response or rollout.
        resolved: the recipe.
    """
    recipe, cells = resolved.recipe, len(responses.cells.pairs)
    rows, rewards = countable(responses, recipe), total_rewards(responses)
    passed = reaches(rewards, recipe.pass_threshold)
    scored = rewards if resolved.rewarded else np.full(len(rewards), np.nan)
    if not resolved.grouped:
        own = np.full(len(rewards), np.nan)
        none = np.zeros(0, np.int64)
        tallies = (
            *group_tallies(none, none, own[:0], none > 0),
            *response_tallies(scored, responses["tokens"], passed, own, rows),
        )
        return CellCounts({}, {}, tallies)
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
    mean = np.full(len(rewards), np.nan)
    mean[groups.members] = groups.mean.repeat(size)
    passes = count_true(passed[groups.members], groups.offsets)
    tallies = (
        *group_tallies(size, passes, groups.mean, kinds.get("with_signal", ~groups.equal)),
        *response_tallies(scored, responses["tokens"], passed, mean, rows),
    )
    low, high = np.full(cells, np.inf), np.full(cells, -np.inf)
    np.minimum.at(low, groups.cell, size)
    np.maximum.at(high, groups.cell, size)
    return CellCounts(counts, {"group_size": (low, high)}, tallies)


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


def equal_components(responses: Responses, recipe: Recipe, rows: Mask) -> Counter[str]:
    """Count the groups of several scored responses in which a reward component has one value.

    Arguments as of `component_groups`.
    """
    groups = component_groups(responses, recipe, rows)
    return Counter({name: int(of_component.equal.sum()) for name, of_component in groups.items()})
