"""The picture of an input or of a run, from measures and profiles: what trains, what does not."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlpost.display import picture
from rlpost.display.picture import Bin, Blocks, PictureLine, Share
from rlpost.display.text import first_of, mean_beside, number, percent, percents
from rlpost.pipeline.measures import SIGNS, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]
_TOKENS = {"negative": ("A<0", "■", "red"), "zero": ("A=0", "·", "dim"),
           "positive": ("A>0", "■", "green")}  # fmt: skip
_KINDS = {"pass": "pass", "fail": "fail", "above": "above mean", "below": "below",
          "all": ""}  # fmt: skip
_GAPS = {
    "engine·old": ("engine_k1", "engine_gap_size", "engine_gap"),
    "old·ref": ("ref_gap", "ref_gap_size", "ref_gap_size"),
}
"""The measures of a mean, and of a mean size in a run and in inspect."""
_WORST = 6  # rows


def picture_of(
    profiles: Mapping[str, Json], facts: Mapping[str, Json], findings: Sequence[Json],
    stages: Sequence[tuple[int, str]], *ends: str, signs: str = "tokens",
    equal: str = "no signal",
) -> Iterator[PictureLine]:  # fmt: skip
    """Yield the lines of an input or of a run.

    Args:
        profiles: groups, lengths and advantages.
        facts: the measures by name.
        findings: plain data, the worst first.
        stages: how many responses are left, and after what; none for no line.
        ends: what follows the stages.
        signs: what has advantages.
        equal: what groups of equal rewards are.
    """
    yield from _profiles(profiles)
    yield from _signs(facts, signs)
    yield from _lengths(profiles, facts)
    if stages:
        yield from _flow(stages, *ends)
    yield from _drift(facts)
    yield from _steps(facts, equal)
    yield from _worst(findings)


def _profiles(profiles: Mapping[str, Json]) -> Iterator[PictureLine]:
    """Yield groups by their passes or rewards."""
    groups = profiles.get("groups")
    if groups:
        columns = zip(groups["labels"], groups["with"], groups["without"], strict=True)
        yield picture.bins(groups["by"], [Bin(*column) for column in columns], "group")


def _signs(facts: Mapping[str, Json], what: str) -> Iterator[PictureLine]:
    """Yield policy tokens, or responses, by the sign of their advantage, and shares of Σ|A|."""
    entries = {sign: whole(facts, f"advantage_{sign}") for sign in SIGNS}
    if not entries["zero"]["count"]:
        return
    means = [entries[sign]["mean"] or 0.0 for sign in _TOKENS]
    parts = [
        Share(f"{label} {percent}", mean, drawn, style)
        for mean, percent, (label, drawn, style) in zip(
            means, percents(means), _TOKENS.values(), strict=True
        )
    ]
    above = whole(facts, "mass_positive")["value"]
    note = "" if above is None else "of Σ|A| " + " and ".join(percents([1 - above, above]))
    yield picture.shares(what, parts, note)


def _lengths(profiles: Mapping[str, Json], facts: Mapping[str, Json]) -> Iterator[PictureLine]:
    """Yield lengths by what responses did, and the share that a limit cut off."""
    length = dict(profiles.get("length") or {})
    if not length:
        return
    edges = length.pop("edges")
    cut = whole(facts, "truncated")["mean"]
    after = f", {_share(cut)} cut" if cut else ""
    parts = [Blocks(_KINDS[kind], counts) for kind, counts in length.items() if sum(counts)]
    parts.append(Blocks(f"to {edges[-1]:,.0f} tokens{after}", ()))
    yield picture.blocks("length", parts)


def _drift(facts: Mapping[str, Json]) -> Iterator[PictureLine]:
    """Yield mean and mean size of the differences of log-probs that a run read."""
    texts = []
    for name, (mean, *sizes) in _GAPS.items():
        size = next((measure for measure in sizes if measure in facts), sizes[0])
        values = whole(facts, mean)["mean"], whole(facts, size)["mean"]
        if None not in values:
            texts.append(f"{name} {number(values[0], digits=2)} ±{number(values[1], digits=2)}")
    if texts:
        yield picture.words("drift", f"{'   '.join(texts)}   nats a token")


def _steps(facts: Mapping[str, Json], equal: str) -> Iterator[PictureLine]:
    """Yield the rewards and the groups without signal over the steps."""
    parts = []
    for name, measure, share in (
        ("reward", "reward", False),
        (equal, "with_signal" if "with_signal" in facts else "equal_rewards", True),
    ):
        steps = facts.get(measure, {}).get("step", {"label": []})
        if len(steps["label"]) < 2 or all(x is None for x in steps["mean"]):  # noqa: PLR2004
            continue
        values: Sequence[float | None] = steps["mean"]
        if measure == "with_signal":
            values = [None if x is None else 1 - x for x in values]
        elif not share:
            values = [mean_beside(*pair) for pair in zip(values, steps["std"], strict=True)]
        ends = [_share(x) if share else number(x, digits=2) for x in (values[0], values[-1])]
        known = [x for x in values if x is not None]
        bounds = (0.0, 1.0) if share else (min(known), max(known))
        parts.append(Blocks(f"{name} {ends[0]}", values, ends[1], bounds))
    if parts:
        yield picture.blocks("steps", parts, counted=True)


def _flow(stages: Sequence[tuple[int, str]], *ends: str) -> Iterator[PictureLine]:
    """Yield how many responses are left at each stage, without those that change nothing."""
    changes = (now for before, now in pairwise(stages) if now[0] != before[0])
    texts = [f"{count:,} {what}".strip() for count, what in (stages[0], *changes)]
    if len(texts) + len(ends) > 1:
        yield picture.words("flow", " → ".join([*texts, *ends]))


def _worst(findings: Sequence[Json]) -> Iterator[PictureLine]:
    """Yield the rows of the first finding that has any."""
    for finding in findings:
        if rows := finding["rows"]:
            files = ["", *(row.rpartition(":")[0] for row in rows)]
            pairs = zip(rows, pairwise(files), strict=True)
            places = [x.removeprefix(file) if file == before else x for x, (before, file) in pairs]
            yield picture.words("worst", f"{finding['check']}: {first_of(places, _WORST)}")
            return


def _share(share: float | None) -> str:
    """Return a share as whole percents, but the smallest."""
    text = percent(share)
    if share is None or text[:1] in "<>":
        return text
    return f"{100 * share:.0f} %" if 0.005 <= share <= 0.995 else text  # noqa: PLR2004
