"""Findings of a replay: what a difference looks like, and which change reproduces the recording."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlpost.analysis.replay.findings.base import FINDINGS, Explanation, explained
from rlpost.analysis.replay.findings.causes import causes
from rlpost.analysis.replay.findings.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.analysis.replay.compute import Replayed, Replayer
    from rlpost.analysis.replay.findings.base import Phase, ReplayFinding
    from rlpost.recipe.recipe import Recipe

_MOST = 5
"""Findings of the first stage that differs."""
_LATER = 2
"""Findings of each later one."""


def findings(stages: Sequence[Replayed], recipe: Recipe, replayer: Replayer) -> list[ReplayFinding]:
    """Return what the differences of recorded stages look like, and what is not compared.

    Args:
        stages: each computed from what was recorded before it.
        recipe: as the user sets it.
        replayer: of the recorded stages.

    Returns:
        Numbers that are not compared; then, of the first stage that differs, at most five findings,
        and two of each later one that no change of an earlier one reproduces, with the first
        change. If no stage differs: notes about numbers that differ and count as equal.
    """
    found = [*_of_stages("not compared", stages, replayer)]
    differing = [one for one in stages if not one.difference.equal]
    if not differing:
        return [*found, *_of_stages("note", stages, replayer)]
    explanations = of_stage(differing[0], recipe, replayer)
    changed, options = _first_change(explanations)
    for own in differing[1:]:
        if any(own.name in one.reproduces for one in explanations):
            continue
        later = own if changed is None else replayer.stage(changed, own.name)
        if later is not None and not later.difference.equal:
            new = of_stage(later, changed or recipe, replayer)[:_LATER]
            explanations += [replace(one, after=options) for one in new]
    return [*found, *explanations]


def _of_stages(
    phase: Phase, stages: Sequence[Replayed], replayer: Replayer
) -> Iterator[ReplayFinding]:
    for stage in stages:
        for check in FINDINGS.of(phase):
            found = check.run(stage, replayer.rollouts)
            yield from (explained(check, one, stage.name) for one in found)


def _first_change(found: Sequence[ReplayFinding]) -> tuple[Recipe | None, tuple[str, ...]]:
    """Return the recipe and the options of the first finding, if they reproduce the stage."""
    if found and found[0].whole and found[0].recipe is not None:
        return found[0].recipe, found[0].options
    return None, ()


def of_stage(stage: Replayed, recipe: Recipe, replayer: Replayer) -> list[ReplayFinding]:
    """Return what the difference of a stage looks like, the best finding first, five at most.

    Changes that reproduce all its numbers come first, then what explains the most.

    Args:
        stage: differs.
        recipe: as the user sets it.
        replayer: of the recorded stages.
    """
    seen = Evidence(stage, recipe, replayer)
    sample = seen.sample()
    found = _explanations(sample)
    if not any(one.whole for one in found):
        found += _parts(seen)
    return (found or _last(sample))[:_MOST]


def _explanations(seen: Evidence, *, changes: bool = True) -> list[ReplayFinding]:
    """Return the changes and relations that explain numbers, the best first."""
    related = [*_relations("relation", seen)] or [*_relations("second relation", seen)]
    exact = any(one.whole and FINDINGS[one.name].exact for one in related)
    changed = causes(seen) if changes and not exact else []
    whole = [one for one in changed if one.whole]
    others = [*(one for one in changed if not one.whole), *related]
    return [*whole, *sorted(others, key=lambda one: -round(one.explains, 2))]


def _relations(phase: Phase, seen: Evidence) -> Iterator[ReplayFinding]:
    """Yield the first explanation of each check of a phase."""
    for check in FINDINGS.of(phase):
        one = next(check.run(seen), None)
        if one is not None:
            yield explained(check, one, seen.first.name)


def _last(seen: Evidence) -> list[ReplayFinding]:
    """Return the first of the relations that explain the least."""
    one = next(_relations("last relation", seen), None)
    return [] if one is None else [one]


def _parts(seen: Evidence) -> Iterator[ReplayFinding]:
    """Yield the first part of each check, with the explanation of its own numbers."""
    for check in FINDINGS.of("part"):
        part = next(check.run(seen), None)
        if part is None:
            continue
        inside = None if part.inside is None else part.inside.sample()
        found = [] if inside is None else _explanations(inside, changes=part.alone) or _last(inside)
        text = f"{part.text}: {found[0].text}" if found else part.text
        options = found[0].options if found else ()
        yield explained(check, Explanation(text, part.explains, options), seen.first.name)
