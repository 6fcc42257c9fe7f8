"""Findings of a replay: what a difference looks like, and which change reproduces the recording."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.findings.causes import causes
from rlpost.analysis.replay.findings.evidence import Evidence, finding
from rlpost.analysis.replay.findings.relations import general_relations, relations
from rlpost.analysis.replay.findings.roundings import ROUNDINGS
from rlpost.analysis.replay.findings.scans import scan_of
from rlpost.analysis.replay.findings.sets import set_relations
from rlpost.analysis.replay.findings.subsets import OUTLIERS, subsets
from rlpost.analysis.replay.findings.tested import WHOLE, listed
from rlpost.errors import DataError, UsageError
from rlpost.pipeline.coupling import coupling_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.findings.evidence import Json
    from rlpost.recipe.recipe import Recipe

    Mask = NDArray[np.bool_]
    Codes = NDArray[np.int64]

MOST = 5
"""Findings of the first stage that differs."""
_LATER = 2
"""Findings of each later one."""
_EXACT = ("shift", *ROUNDINGS, "decimals", "eps-inside-root", "other-tokens", "other-rows")
"""Relations that no option and no other input makes."""
_SAMPLE_TOKENS = 150_000
"""Changes and relations are tested on whole steps, or groups, of so many tokens."""
_STEP = 0.2
"""A step differs if so many of its elements do."""
_FEW = 3
_MOST_RESPONSES = 0.5
"""Responses of a value of a column differ if so many of them do."""


def findings(stages: Sequence[Replayed], recipe: Recipe, replayer: Replayer) -> list[Json]:
    """Return what the differences of recorded stages look like, by stage.

    Args:
        stages: each computed from what was recorded before it.
        recipe: as the user sets it.
        replayer: of the recorded stages.

    Returns:
        Findings as `of_stage` returns them: at most five of the first stage that differs, and two
        of each later one that no change of an earlier one reproduces, with the first change. If
        none differs: of numbers outside of the policy tokens, or within the rounding of equal
        rewards.
    """
    part = [one for one in stages if not one.difference.equal]
    if not part:
        return _near(stages)
    found = of_stage(part[0], recipe, replayer)
    first = found[0] if found and found[0]["explains"] >= WHOLE else {}
    changed: Recipe | None = first.get("recipe")
    typed = " ".join(f"`{option}`" for option in first.get("options", ()))
    before = f"with {typed}: " if changed is not None else ""
    for own in part[1:]:
        if any(own.name in one["reproduces"] for one in found):
            continue
        later = own if changed is None else replayer.stage(changed, own.name)
        if later is not None and not later.difference.equal:
            new = of_stage(later, changed or recipe, replayer)[:_LATER]
            found += [one | {"text": f"{before}{one['text']}"} for one in new]
    found = _together(found)
    return [{key: value for key, value in one.items() if key != "recipe"} for one in found]


def _together(found: Sequence[Json]) -> list[Json]:
    """Return findings, with those of several stages that are the same as one."""
    sets: dict[tuple[str, str], list[Json]] = {}
    for one in found:
        same = one["text"].replace(f"`{one['stage']}`", "", 1)
        sets.setdefault((one["finding"], same), []).append(one)
    out = []
    for own in sets.values():
        first, names = own[0], listed([one["stage"] for one in own])
        text = first["text"].replace(f"`{first['stage']}`", names, 1)
        out.append(first | {"text": text, "explains": min(one["explains"] for one in own)})
    return out


def of_stage(first: Replayed, recipe: Recipe, replayer: Replayer) -> list[Json]:
    """Return what the difference of a stage looks like, the best finding first.

    Args:
        first: the stage, which differs.
        recipe: as the user sets it.
        replayer: of the recorded stages.

    Returns:
        At most five mappings: `finding` (an ID), `stage`, `text` (a sentence), `options` (as typed,
        which reproduce the recorded numbers, or none), `explains` (share of the differing elements;
        of large inputs, of those in a sample), `reproduces` (the stages that the change makes
        equal).
        Changes that reproduce the recorded numbers come first; then relations of the numbers.
    """
    seen = Evidence(first, recipe, replayer)
    sample = _sample(seen)
    related = relations(sample)
    inside = [*subsets(seen)]
    exact = {one["finding"] for one in (*related, *inside) if one["explains"] >= WHOLE}
    found = [] if exact & {*_EXACT} else causes(sample)
    whole = [one for one in found if one["explains"] >= WHOLE]
    others = [one for one in found if one["explains"] < WHOLE] + related
    found = [*whole, *sorted(others, key=lambda one: -round(one["explains"], 2)), *inside]
    if not any(one["explains"] >= WHOLE for one in found):
        found += _parts(seen)
    if not found:
        found = [*_scan(sample)] or set_relations(sample) or general_relations(sample)
    return [_named(one, first.name) for one in _best(found)]


def _named(one: Json, stage: str) -> Json:
    """Return a finding whose text names its stage."""
    text = one["text"].replace("the recorded numbers", f"the recorded `{stage}`")
    text = text if f"`{stage}`" in text else f"`{stage}`: {text}"
    return one | {"text": text, "stage": stage}


def _best(found: list[Json]) -> list[Json]:
    """Return the first finding of each ID, at most five."""
    best: dict[str, Json] = {}
    for one in found:
        best.setdefault(one["finding"], one)
    return list(best.values())[:MOST]


def _near(stages: Sequence[Replayed]) -> list[Json]:
    """Return what differs in stages that are equal: rounding, and tokens that do not count."""
    found = []
    rounded = [one for one in stages if one.rounding]
    outside = [one for one in stages if one.outside]
    if rounded:
        text = (
            f"only groups of equal rewards differ, in {_most(one.rounding for one in rounded)} "
            f"numbers of {listed([one.name for one in rounded])}: recorded is the rounding of "
            "their float32 mean, divided by ε, where computed is 0"
        )
        found.append(finding("constant-groups", text, 1.0) | {"stage": rounded[0].name})
    if outside:
        text = (
            f"only {_most(one.outside for one in outside)} tokens outside the mask differ in "
            f"{listed([one.name for one in outside])}: observation tokens, or those of dropped "
            "responses; they do not count"
        )
        found.append(finding("masked-tokens", text, 1.0) | {"stage": outside[0].name})
    return found


def _most(counts: Iterable[int]) -> str:
    """Return the one count of several stages, or the largest."""
    known = {*counts}
    return f"{max(known):,}" if len(known) == 1 else f"up to {max(known):,}"


def _sample(seen: Evidence) -> Evidence:
    """Return the evidence of a sample of large inputs: whole steps, or groups.

    Half of them have differences and half have none, as far as there are such.
    """
    rollouts = seen.replayer.rollouts
    if rollouts.offsets[-1] <= _SAMPLE_TOKENS:
        return seen
    alone = coupling_of(seen.resolved).scope in ("response", "group")
    codes = rollouts.groups if alone and "group" in rollouts.columns else rollouts.codes("batch")
    differ = np.zeros(int(codes.max()) + 1, np.bool_)
    differ[codes[seen.rows[seen.wrong]]] = True
    place = np.where(differ, 2 * np.cumsum(differ) - 2, 2 * np.cumsum(~differ) - 1)
    order = np.argsort(place, kind="stable")
    tokens = np.bincount(codes, rollouts.lengths)[order]
    count = max(1, int(np.searchsorted(tokens.cumsum(), _SAMPLE_TOKENS, "right")))
    taken = np.zeros(len(differ), np.bool_)
    taken[order[:count]] = True
    return _part(seen, np.flatnonzero(taken[codes])) or seen


def _parts(seen: Evidence) -> Iterator[Json]:
    """Yield the steps, or the values of another column, that differ, if others do not."""
    rollouts = seen.replayer.rollouts
    roles = [role for role in ("batch", "truncated", "domain") if role in rollouts.columns]
    sets = {rollouts.columns.column(role): rollouts.codes(role) for role in roles} | rollouts.sets
    for name, codes in sets.items():
        step = "batch" in roles and name == rollouts.columns.column("batch")
        differ = _differing(seen, codes, _STEP if step else _MOST_RESPONSES)
        if differ is None:
            continue
        rows = np.flatnonzero(differ[codes])
        inside = float(np.isin(seen.rows[seen.wrong], rows).mean())
        at = [int(np.argmax(codes == code)) for code in np.flatnonzero(differ)]
        labels = [str(rollouts.table.column(name)[row].as_py()) for row in at]
        listed = ", ".join(labels[:_FEW]) + (", ..." if len(labels) > _FEW else "")
        s, many = ("s", "") if len(labels) > 1 else ("", "s")
        what = f"only step{s} {listed} of {len(np.unique(codes))} differ{many}"
        if not step:
            what = f"only responses with `{name}` {listed} differ"
        within = _within(seen, rows) if step else _among(seen, rows)
        text = f"{what}: {within[0]['text']}" if within else what
        options = within[0]["options"] if within else []
        yield finding("some-steps" if step else "some-responses", text, inside, *options)
        return


def _differing(seen: Evidence, codes: Codes, least: float) -> Mask | None:
    """Return which sets of responses differ; None if all do, or some in part."""
    total, wrong = (np.bincount(codes[seen.rows[some]]) for some in (seen.chosen, seen.wrong))
    wrong = np.pad(wrong, (0, len(total) - len(wrong)))
    rows = np.unique(seen.rows[seen.wrong])
    sizes = np.bincount(codes, minlength=len(total))
    responses = np.bincount(codes[rows], minlength=len(total)) / np.maximum(sizes, 1)
    share = wrong / np.maximum(total, 1)
    differ = (share >= _STEP) | (responses >= least)
    equal = (share <= OUTLIERS * _STEP) & ~differ & (total > 0)
    some = differ.any() and equal.any() and (differ | equal | (total == 0)).all()
    enough = len(rows) >= _FEW and wrong[differ].sum() >= (1 - OUTLIERS) * wrong.sum()
    return differ if some and enough else None


def _scan(seen: Evidence) -> Iterator[Json]:
    """Yield that numbers follow from one another, with other coefficients, or other rewards."""
    scan = scan_of(seen)
    if scan is None or not scan.solved:
        return
    follows = "each recorded number follows from the next one"
    if scan.others:
        what = scan.text(seen.recipe, seen.first.name)
        text = f"{follows} by another scan than the recipe's: {what}"
        yield finding("scan-terms", text, scan.share)
        return
    if scan.other_rewards(seen):
        text = (
            f"{follows} as by the recipe, from other rewards, or other values after the last token"
        )
        yield finding("scan-rewards", text, scan.share)


def _within(seen: Evidence, rows: Codes) -> list[Json]:
    """Return the findings of some steps alone."""
    part = _part(seen, rows)
    inner = None if part is None else _sample(part)
    return [] if inner is None else [*causes(inner), *relations(inner), *general_relations(inner)]


def _among(seen: Evidence, rows: Codes) -> list[Json]:
    """Return the relations of some responses, computed with all others; none of large inputs."""
    if len(seen.recorded) > _SAMPLE_TOKENS:
        return []
    chosen = seen.chosen & np.isin(seen.rows, rows)
    first = replace(seen.first, difference=replace(seen.difference, chosen=chosen))
    inner = Evidence(first, seen.recipe, seen.replayer)
    return [*relations(inner), *general_relations(inner)]


def _part(seen: Evidence, rows: Codes) -> Evidence | None:
    """Return the evidence of some rows alone; None if nothing differs in them."""
    part = seen.replayer.rollouts.take(rows, "a part")
    replayer = Replayer(part, seen.replayer.tolerance)
    try:
        first = replayer.stage(seen.recipe, seen.first.name)
    except (UsageError, DataError):
        return None
    if first is None or first.difference.equal:
        return None
    return Evidence(first, seen.recipe, replayer)
