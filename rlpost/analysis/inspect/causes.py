"""Why rollout engine and trainer differ: causes that compete for the gap.

Each cause is judged on what the causes before it leave: tokens are aligned, outliers are taken out,
what a temperature explains is subtracted, what depends on position, lag, step or machine is
accounted for. What is left is numerical noise, other weights, or unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlpost.analysis.inspect.model import Cause
from rlpost.display.text import percent
from rlpost.kernels import mismatch as evidence
from rlpost.kernels.divergence import confident_disagreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.analysis.inspect.model import Json, Label
    from rlpost.kernels.mismatch import Codes, Flags, Floats, SameContext


LEAST_TOKENS = 512  # fewer show no cause
LEAST_GAP = 1e-3
"""Root mean square of d, nats, below which nothing is named: float32 kernels stay below 1e-4."""
SURE_Z, LIKELY_Z = 10.0, 5.0
LARGEST_NOISE = 0.03  # nats, root mean square: a k3 of 0.0005; bfloat16 kernels have 0.01
SHIFTED = 0.7  # of the mean difference at lag 0
OUTLIERS = 0.4  # of the gap
OUTLIERS_OF_HEAT = 0.03
MOST_OUTLIERS = 0.05  # of the tokens: more are not few
KEPT_MASS = 3e-3  # that a mean ratio is below 1
HEAVY_TAIL = 0.15  # of Σ exp(d) in 1 % of the tokens
ONE_SIDED = 0.02  # of the gap in tokens that the trainer finds likelier
CORRELATED = 0.1  # squared correlation of d and surprisal
LEAST_HEAT = 0.01  # |T - 1|
EARLY, EARLY_TRUNCATED = 3.0, 12.0  # times the d² of later tokens
EARLY_LOG = 0.5  # of log |d|
LEAST_EXCESS = 0.02  # of the gap
JUMP = 4.0  # times the mean square before
FIRST_SHARE = 0.8  # of the gap
LOCAL = 0.5  # of 2: how far outliers are from random tokens
OUTLIER_NATS, OUTLIER_SHARE = 1.0, 1e-3  # one of both: kernels have rare, smaller outliers
TURNS = 0.55  # of log |d|, between first and later turns
AT_FLOOR = -2.0  # of log |d|: first turns hardly differ at all
JUMP_OF_LOG = 0.7  # of log |d|: most tokens differ more, not only the largest
PLACED = 0.1  # of the gap in outliers at some places of turns
JUMP_OF_STEP = 9.0  # times the mean square before: what steps change differs by itself
POSITIVE = 0.025  # of the tokens
POSITIVE_NATS = 0.3
SLOPE = 0.3  # of 1 - T, within contexts
CONFIDENT = 1e-3  # of the tokens
LEAST_OTHER = 0.1  # of the gap
MODEL_ERROR = 0.2  # of what a temperature explains: entropies of order T and 1 differ
SHARP = 0.02  # of the entropy, that tokens are less surprising than sampling makes them
PLACES = 40  # of turns
LEAST_OUTLIERS = 16
FIRST_TOKENS = (1, 4, 16, 64)


@dataclass(frozen=True)
class ComparedTokens:
    """Policy tokens that are compared, in order within windows of neighbours; [t] each."""

    old: Floats
    infer: Floats
    window: Codes
    since: Codes
    """Policy tokens before it in its turn."""
    later: Flags
    """Of a turn after an observation."""
    entropy: Floats | None = None
    lag: Floats | None = None
    """Versions between the policy that sampled and the one that trains; NaN if unknown."""
    step: Codes | None = None
    """Codes in order; -1 without a step."""
    steps: list[Label] = field(default_factory=list)
    machines: Mapping[str, tuple[Codes, list[Label]]] = field(default_factory=dict)
    """By column of hosts, ranks or workers: codes and labels."""
    contexts: SameContext | None = None
    """Of the first tokens of each prompt's responses."""
    stuck: Label | None = None
    """The first of at least 3 last steps over which the engine's version stays the same."""

    def chosen(self, keep: Flags | Codes) -> ComparedTokens:
        """Return some of the tokens."""
        arrays: dict[str, Any] = {
            name: None if (one := getattr(self, name)) is None else one[keep]
            for name in ("old", "infer", "since", "later", "entropy", "lag", "step")
        }
        machines = {name: (codes[keep], own) for name, (codes, own) in self.machines.items()}
        window = np.unique(self.window[keep], return_inverse=True)[1].reshape(-1)
        return replace(self, **arrays, window=window, machines=machines)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.old)


def causes_of(tokens: ComparedTokens) -> list[Cause]:
    """Return the causes of the gap, the largest share first; none of a small gap."""
    if len(tokens) < LEAST_TOKENS:
        return []
    case = Case(tokens)
    if case.size() >= LEAST_GAP:
        for judge in JUDGES:
            if len(case.tokens) >= LEAST_TOKENS:
                judge(case)
    elif tokens.entropy is not None:
        unlogged_sampling(case)
    return sorted(case.causes, key=lambda one: -one.share)


def likeliest(causes: Sequence[Cause]) -> str:
    """Return `likeliest cause: temperature (98.5 % of the gap), then precision`; or nothing."""
    if not causes:
        return ""
    first, *others = causes
    more = f", then {', '.join(one.name for one in others)}" if others else ""
    return f"likeliest cause: {first.name} ({percent(first.share)} of the gap){more}"


@dataclass
class Case:
    """The gap that is left, and what was found."""

    tokens: ComparedTokens
    causes: list[Cause] = field(default_factory=list)
    left: float = 1.0
    """Share of the gap in `tokens`: what aligning them or taking some out has not explained."""
    rest: Floats = field(default_factory=lambda: np.zeros(0))
    """[t] what is left of d."""
    unexplained: float = 1.0
    """Of the gap in `tokens`, what no cause explains so far."""
    error: float = 0.0
    """Nats of `rest` that are the error of a formula, not of the data."""

    def __post_init__(self) -> None:
        """Start with the whole gap."""
        self.rest = self.tokens.old - self.tokens.infer

    @property
    def squares(self) -> Floats:
        """The squares of what is left of d, [t]."""
        return evidence.capped_squares(self.rest)

    def size(self) -> float:
        """Return the root mean square of what is left of d, nats."""
        return float(self.squares.mean() ** 0.5) if len(self.rest) else 0.0

    def has(self, name: str) -> bool:
        """Return whether a cause was found."""
        return any(one.name == name for one in self.causes)

    def add(self, name: str, share: float, z: float, text: str, **estimate: Any) -> None:
        """Add a cause that explains this share of what `tokens` have, and is not explained yet."""
        part = min(max(share, 0.0), self.unexplained)
        self.unexplained -= part
        self._append(name, part * self.left, z, text, estimate)

    def replaced(
        self, tokens: ComparedTokens, name: str, z: float, text: str, **estimate: Any
    ) -> None:
        """Add a cause whose share is what the gap of these tokens is less by."""
        before, count = float(self.squares.sum()), len(self.tokens)
        self.tokens, self.rest = tokens, tokens.old - tokens.infer
        after = float(self.squares.sum())
        if name == "shift":
            after *= count / max(len(tokens), 1)
        kept = min(after / before, 1.0) if before else 1.0
        self._append(name, self.left * (1 - kept), z, text, estimate)
        self.left *= kept

    def _append(self, name: str, share: float, z: float, text: str, estimate: Json) -> None:
        numbers = {key: _rounded(value) for key, value in estimate.items()}
        self.causes.append(Cause(name, _rounded(share), numbers, text, _sure(abs(z)), ADVICE[name]))


def _sure(z: float) -> Literal["high", "medium", "low"]:
    return "high" if z >= SURE_Z else "medium" if z >= LIKELY_Z else "low"


def _rounded(value: Any) -> Any:
    """Return a number with 4 digits: more are noise."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# Judges, in the order in which they are heard.


def shift(case: Case) -> None:
    """One column is a token ahead of the other: neighbours match better than the same token."""
    tokens = case.tokens
    means = evidence.differences_by_shift(tokens.old, tokens.infer, tokens.window)
    lag = min(evidence.LAGS, key=lambda one: (means[one].value, abs(one)))
    best, zero = means[lag], means[0]
    error = (best.error**2 + zero.error**2) ** 0.5
    z = (zero.value - best.value) / error if error else 0.0
    if lag == 0 or best.value > SHIFTED * zero.value or z < LIKELY_Z:
        return
    ends = slice(None, -1) if lag > 0 else slice(1, None)
    inner = np.zeros(len(tokens), np.bool_)
    inner[ends] = tokens.window[1:] == tokens.window[:-1]
    aligned = replace(tokens, infer=np.roll(tokens.infer, -lag)).chosen(inner)
    case.replaced(
        aligned, "shift", z,
        f"engine log-probs are those of the token {'before' if lag > 0 else 'after'}: mean |Δ| "
        f"{best.value:.3g} nats moved by one, {zero.value:.3g} as stored",
        lag=lag,
    )  # fmt: skip


def few_tokens(case: Case) -> None:
    """Few tokens carry the gap, and the others have a small one."""
    tail = evidence.heavy_tail(case.rest, case.tokens.infer)
    count, total = int(np.count_nonzero(tail.tokens)), len(case.tokens)
    # A temperature is bounded: it has no outliers, even if its size by token is unknown.
    least = OUTLIERS_OF_HEAT if case.has("temperature") else OUTLIERS
    if case.has("few-tokens") or tail.share < least or not 0 < count <= MOST_OUTLIERS * total:
        return
    if _is_local(case, tail.tokens):
        return
    rest = case.rest[~tail.tokens]
    size = float(evidence.capped_squares(rest).mean() ** 0.5)
    outside = float(evidence.capped_squares(case.rest[tail.tokens]).mean() ** 0.5)
    if outside < OUTLIER_NATS and count < OUTLIER_SHARE * total:
        return
    kept = case.tokens.chosen(~tail.tokens)
    share, left = tail.share * case.unexplained, case.unexplained * (1 - tail.share)
    if case.has("temperature") and case.tokens.entropy is None:
        share, left = tail.share, 0.0
        case.causes = [replace(one, share=_rounded(one.share * (1 - share))) for one in case.causes]
        case.unexplained = share
    case.add(
        "few-tokens", share, count**0.5,
        f"{count:,} of {total:,} tokens ({100 * count / total:.2g} %) differ by {outside:.3g} "
        f"nats, the others by {size:.3g} (root mean square)",
        tokens=count / total, nats=outside,
    )  # fmt: skip
    case.tokens, case.rest, case.unexplained = kept, rest, left


def _is_local(case: Case, chosen: Flags) -> bool:
    """Return whether tokens cluster at places of turns, or in some lags, steps or machines."""
    tokens = case.tokens
    labels = [np.minimum(tokens.since, PLACES), tokens.later.astype(np.int64)]
    labels += [codes for codes, _ in tokens.machines.values()]
    labels += [] if tokens.step is None else [tokens.step]
    if tokens.lag is not None and np.isfinite(tokens.lag).all():
        labels.append(evidence.quantile_bins(tokens.lag))
    return any(evidence.clustering(chosen, codes) > LOCAL for codes in labels)


def likelier_tokens(case: Case) -> None:
    """Few tokens that the trainer finds likelier, which truncated sampling can't explain."""
    if case.has("few-tokens") or not case.has("truncated-sampling"):
        return
    up = case.rest > LEAST_GAP
    count, squares = int(np.count_nonzero(up)), case.squares
    size = float(squares[up].mean() ** 0.5) if count else 0.0
    if not LEAST_OUTLIERS <= count <= POSITIVE * len(up) or size < POSITIVE_NATS:
        return
    if case.has("temperature") or _is_local(case, up):
        return
    text = f"{count:,} tokens are likelier for the trainer, by {size:.3g} nats (root mean square)"
    share = 2 * float(squares[up].sum() / squares.sum())
    case.unexplained = max(case.unexplained, share)
    case.add("few-tokens", share, count**0.5, text, tokens=2 * count / len(up), nats=size)
    case.tokens, case.rest = case.tokens.chosen(~up), case.rest[~up]


def truncated_sampling(case: Case) -> None:
    """The engine renormalises over the tokens that top-p, top-k or min-p keep."""
    tokens, d = case.tokens, case.tokens.old - case.tokens.infer
    for side, signed in (("engine", d), ("trainer", -d)):
        found = evidence.mean_ratio(signed, tokens.window)
        missing, z = 1 - found.mean.value, -found.mean.z(1.0)
        one_sided = found.positive < ONE_SIDED
        least = KEPT_MASS if one_sided else max(KEPT_MASS, 2 * (found.tail - 0.01) * 0.1)
        if missing < least or z < LIKELY_Z or (not one_sided and found.tail > HEAVY_TAIL):
            continue
        if side == "trainer" and not one_sided:
            continue
        masses = np.exp(np.minimum(signed, 0.0))
        edge = float(np.quantile(masses, 0.01))
        share = 1 - 2 * found.positive
        if not one_sided:
            share = float(evidence.capped_squares(np.log1p(-missing)) / (d @ d / len(d)))
        case.add(
            "truncated-sampling", share, z,
            f"the {'trainer' if side == 'engine' else 'engine'} gives {found.mean.value:.4f} ± "
            f"{found.mean.error:.1g} of its probability to what was sampled from; "
            f"{side} log-probs are higher in {100 * (signed < 0).mean():.3g} % of tokens",
            kept_mass=found.mean.value, error=found.mean.error, lowest_mass=edge, side=side,
        )  # fmt: skip
        return


def temperature(case: Case) -> None:
    """One side divides logits by a temperature, or by another one."""
    tokens = case.tokens
    if case.has("truncated-sampling"):
        positive = evidence.mean_ratio(case.rest, tokens.window).positive
        if min(positive, 1 - positive) < ONE_SIDED:
            return
    chosen = _of_lowest_lag(tokens)
    own, d = tokens.chosen(chosen), case.rest[chosen]
    # ComparedTokens were sampled from the column whose mean inverse ratio is nearer to 1.
    forward, backward = (
        abs(np.log(evidence.mean_ratio(sign * d, own.window).mean.value)) for sign in (1, -1)
    )
    engine = forward <= backward
    sampled, sign = (own.infer, 1) if engine else (own.old, -1)
    found = evidence.temperature(sign * d, sampled, own.entropy, own.window)
    if found is None or found.correlation**2 < CORRELATED:
        return
    heat, z = found.value.value, found.value.z(1.0)
    if tokens.contexts is not None and own.entropy is None:
        slope = tokens.contexts.slope  # 1 - T of the engine's column, 1/T - 1 of the trainer's
        if slope * (1 - heat) * sign < SLOPE * (1 - heat) ** 2:
            return
    if abs(heat - 1) < LEAST_HEAT or abs(z) < LIKELY_Z:
        return
    if own.entropy is not None and found.share < 0.3 * found.correlation**2:
        return
    side = "engine" if engine else "trainer"
    case.add(
        "temperature", found.share * case.unexplained if own.entropy is None else found.share, z,
        f"log-ratio and surprisal rise together (r = {found.correlation:+.2f}): {side} "
        f"log-probs are those of T = {heat:.3f} ± {found.value.error:.1g} times the other's",
        temperature=heat, error=found.value.error, side=side,
    )  # fmt: skip
    if own.entropy is not None and len(own) == len(tokens):
        case.rest = case.rest - sign * found.explained
        case.error = MODEL_ERROR * float(found.explained.std())


def _of_lowest_lag(tokens: ComparedTokens) -> Flags:
    """Return the tokens of the lowest lag, where staleness disturbs least, if they are enough."""
    every = np.ones(len(tokens), np.bool_)
    if tokens.lag is None or not np.isfinite(tokens.lag).any():
        return every
    lowest = tokens.lag == np.nanmin(tokens.lag)
    return lowest if np.count_nonzero(lowest) >= 4 * LEAST_TOKENS else every


def first_tokens(case: Case) -> None:
    """The first tokens of responses or turns differ most: the trainer reads another context."""
    if case.has("template"):
        return
    tokens, squares = case.tokens, case.squares
    sizes = np.log(np.abs(case.rest) + 1e-5)
    strata = evidence.quantile_bins(tokens.infer)
    least = EARLY_TRUNCATED if case.has("truncated-sampling") else EARLY
    best: tuple[evidence.LabelSize, int, str] | None = None
    for turns, words in ((tokens.later, "after an observation"), (~tokens.later, "of responses")):
        longest = int(tokens.since[turns].max(initial=0))
        for first in FIRST_TOKENS:
            early = turns & (tokens.since < first)
            late = ~early & (tokens.since >= min(max(first, longest // 2), 4 * first))
            if min(np.count_nonzero(early), np.count_nonzero(late)) < evidence.STRATA:
                continue
            if sizes[early].mean() - sizes[late].mean() < EARLY_LOG:  # few large tokens
                continue
            labels = np.where(early, 0, -1)
            found = evidence.sizes_by_label(squares, labels, strata, tokens.window, late)[0]
            low = found.ratio.value - 2 * found.ratio.error
            if low > least and (best is None or found.excess > 1.2 * best[0].excess):
                best = found, first, words
    if best is None or best[0].excess < LEAST_EXCESS:
        return
    found, first, words = best
    which = "the first token" if first == 1 else f"the first {first} tokens"
    size = found.ratio.value**0.5
    case.add(
        "template", found.excess, max(found.ratio.z(1.0), LIKELY_Z),
        f"{which} {words}: {size:.3g} times as far off as later tokens of the same log-prob",
        ratio=size, first_tokens=first, where=words,
    )  # fmt: skip


def turns_differ(case: Case) -> None:
    """First turns differ otherwise than later ones: BOS, or the markers between turns."""
    tokens, rest = case.tokens, case.rest
    first = tokens.later & (tokens.since < 1)
    squares = case.squares
    if case.has("truncated-sampling"):  # which depends on the context
        return
    if squares[first].sum() > FIRST_SHARE * squares.sum():  # the first token alone
        return
    found = evidence.first_against_later(
        rest, tokens.infer, tokens.since, tokens.later, tokens.window
    )
    if found is None:
        return
    if abs(found.value) < TURNS or abs(found.z(0.0)) < LIKELY_Z:
        return
    times = f"{np.exp(abs(found.value)):.3g} times as much"
    if found.value < 0:
        where, share = "after an observation", float(squares[tokens.later].sum() / squares.sum())
        share = 1.0 if found.value < AT_FLOOR else share
        text = f"tokens after an observation differ by {times} as like ones of the first turn"
    else:
        where, share = "of first turns", 1.0
        text = f"tokens of first turns differ by {times} as like ones of later turns: something "
        text += "before the response, such as BOS"
    z = max(abs(found.z(0.0)), LIKELY_Z)
    case.add("template", share, z, f"{text} (geometric mean)", ratio=found.value, where=where)


def stale_weights(case: Case) -> None:
    """The gap grows with the versions between sampling and training."""
    tokens = case.tokens
    if tokens.lag is None:
        return
    found = evidence.lag_slope(case.squares, tokens.lag, tokens.window)
    if found is None or found.slope.z(0.0) < LIKELY_Z or 1 - found.floor < LEAST_EXCESS:
        return
    sizes = [f"{size:.3g} at lag {lag:g}" for lag, size in found.by_lag.items()]
    shown = sizes if len(sizes) <= 4 else [*sizes[:2], *sizes[-1:]]  # noqa: PLR2004
    stuck = tokens.stuck is not None
    text = f"the gap grows with the policy's age: {', '.join(shown)} (root mean square, nats)"
    if stuck:
        text = f"the engine's version stays the same from step {tokens.stuck} on; {text}"
    negative = float((tokens.lag < 0).mean())
    if negative:
        text += f"; {100 * negative:.2g} % of tokens are of a version newer than the step"
    case.add(
        "failed-sync" if stuck else "stale-weights", 1 - found.floor, found.slope.z(0.0), text,
        floor=found.floor, slope=found.slope.value, error=found.slope.error,
    )  # fmt: skip
    lowest = tokens.lag == np.nanmin(tokens.lag)
    if np.count_nonzero(lowest) >= LEAST_TOKENS:  # what is left is judged where weights are fresh
        case.tokens, case.rest = tokens.chosen(lowest), case.rest[lowest]


def failed_sync(case: Case) -> None:
    """From some step on, or on one machine, the engine has other weights."""
    tokens, squares = case.tokens, case.squares
    strata = evidence.quantile_bins(tokens.infer)
    for column, (codes, labels) in tokens.machines.items():
        sizes = {
            code: float(squares[codes == code].mean()) for code in np.unique(codes[codes >= 0])
        }
        middle = float(np.median([*sizes.values()])) if len(sizes) > 1 else np.inf
        others = np.isin(codes, [code for code, size in sizes.items() if size <= 2 * middle])
        if len(sizes) == 2:  # noqa: PLR2004
            others = codes == min(sizes, key=lambda code: sizes[code])
        found = evidence.sizes_by_label(squares, codes, strata, tokens.window, others)
        bad = {code: one for code, one in found.items() if one.ratio.value > JUMP}
        bad = {code: one for code, one in bad.items() if one.ratio.z(1.0) >= LIKELY_Z}
        excess = sum(one.excess for one in bad.values())
        if bad and excess >= LEAST_EXCESS:
            names = ", ".join(str(labels[code]) for code in bad)
            worst = max(bad.values(), key=lambda one: one.ratio.value)
            case.add(
                "failed-sync", excess, worst.ratio.z(1.0),
                f"{column} {names}: differs by {worst.ratio.value**0.5:.3g} times as much as the "
                "others",
                column=column, labels=[labels[code] for code in bad],
                ratio=worst.ratio.value**0.5,
            )  # fmt: skip
            keep = ~np.isin(codes, [*bad])
            case.tokens, case.rest = tokens.chosen(keep), case.rest[keep]
            return
    jump = None
    if tokens.step is not None:
        jump = evidence.jump_of(squares, tokens.step, tokens.window)
    if jump and jump.ratio > JUMP_OF_STEP and jump.z >= LIKELY_Z and jump.excess >= LEAST_EXCESS:
        assert tokens.step is not None
        size, after = np.log(np.abs(case.rest) + 1e-5), tokens.step >= jump.index
        if size[after].mean() - size[~after].mean() < JUMP_OF_LOG:
            return
        label = tokens.steps[jump.index]
        case.add(
            "failed-sync", jump.excess, jump.z,
            f"from step {label} on, tokens differ by {jump.ratio**0.5:.3g} times as much as before",
            step=label, ratio=jump.ratio**0.5,
        )  # fmt: skip
        keep = (tokens.step < jump.index) & (tokens.step >= 0)
        case.tokens, case.rest = tokens.chosen(keep), case.rest[keep]


def remainder(case: Case) -> None:
    """What is left: numerical noise, other weights, or no known cause."""
    size, share = _remaining(case)
    others = ("stale-weights", "failed-sync", "template", "few-tokens")
    if case.has("temperature") and not any(map(case.has, others)):
        placed_outliers(case)
    if size < LEAST_GAP:
        return
    sides = {"engine": case.tokens.infer, "trainer": case.tokens.old}
    grids = {side: grid for side, values in sides.items() if (grid := evidence.grid_of(values))}
    if grids:
        text = " and ".join(f"{side} log-probs are in {grid}" for side, grid in grids.items())
        case.add("precision", share, SURE_Z, f"{text}; Δ is {size:.3g} nats", nats=size, **grids)
    elif size < LARGEST_NOISE:
        case.add(
            "precision", share, LIKELY_Z,
            f"noise of {size:.3g} nats (root mean square) in all positions, on both sides of 0",
            nats=size,
        )  # fmt: skip
    elif not (case.has("stale-weights") or case.has("failed-sync")):
        other_weights(case, size, share)
    elif share >= LEAST_OTHER:
        case.add("other", share, 0.0, f"{size:.3g} nats are left", nats=size)


def placed_outliers(case: Case) -> None:
    """Outliers at some places of turns, which a temperature does not explain: another context."""
    tail = evidence.heavy_tail(case.rest, case.tokens.infer)
    places = np.minimum(case.tokens.since, PLACES)
    if tail.share < PLACED or evidence.clustering(tail.tokens, places) < LOCAL:
        return
    share = max(case.unexplained, tail.share) * tail.share
    case.unexplained = max(case.unexplained, share)
    count = np.count_nonzero(tail.tokens)
    text = f"{count:,} outliers beside the temperature, at some places of turns"
    case.add("template", share, 0.0, text, tokens=float(tail.tokens.mean()))


def _remaining(case: Case) -> tuple[float, float]:
    """Return the nats that are left beyond the errors of formulas, and their share of the gap.

    By token it is not known what truncation leaves, and what a temperature leaves without
    entropies. Tokens of one context show it; else, noise is as large on the other side of 0.
    """
    size, share = case.size(), case.unexplained
    heat, truncated = case.has("temperature"), case.has("truncated-sampling")
    if case.tokens.contexts is not None and (heat or truncated) and not case.has("stale-weights"):
        noise = case.tokens.contexts.noise
        return noise, min(case.unexplained, (noise / max(case.size(), noise, 1e-12)) ** 2)
    if heat and case.tokens.entropy is None:
        return 0.0, 0.0
    if truncated:
        up = 2 * evidence.mean_ratio(case.rest, case.tokens.window).positive
        size, share = size * up**0.5, min(share, up)
    return max(size**2 - case.error**2, 0.0) ** 0.5, share


def other_weights(case: Case, size: float, share: float) -> None:
    """The sides have other weights or inputs everywhere: by versions old ones, or not synced."""
    tokens = case.tokens
    lag = np.zeros(0) if tokens.lag is None else tokens.lag[np.isfinite(tokens.lag)]
    wrong = float(confident_disagreement(tokens.infer, np.abs(case.rest)).mean())
    if wrong > CONFIDENT and not lag.any():
        case.add(
            "failed-sync", share, LIKELY_Z,
            f"the engine is sure (≥ 0.5) and the trainer is 2 nats off in {100 * wrong:.2g} % of "
            "tokens, everywhere",
            confident_disagreement=wrong,
        )  # fmt: skip
    elif not len(lag) or lag.all():
        age = "" if len(lag) else "; no policy versions give their age"
        text = f"Δ of {size:.3g} nats in all positions, too much for numerical noise{age}"
        case.add("stale-weights", share, 0.0, text, nats=size)
    else:
        case.add("other", share, 0.0, f"{size:.3g} nats that no evidence explains", nats=size)


def unlogged_sampling(case: Case) -> None:
    """Both sides agree, but tokens were sampled from a sharper or flatter distribution."""
    tokens = case.tokens
    assert tokens.entropy is not None
    found = evidence.entropy_deficit(tokens.old, tokens.entropy, tokens.window)
    if abs(found.value) < SHARP or abs(found.z(0.0)) < LIKELY_Z:
        return
    name = "truncated-sampling" if found.value < 0 else "temperature"
    how = "less" if found.value < 0 else "more"
    case.add(
        name, 0.0, found.z(0.0),
        f"tokens are {100 * abs(found.value):.2g} % {how} surprising than the entropy of the "
        "log-probs: these are not of the distribution that was sampled from",
        surprisal=found.value, error=found.error,
    )  # fmt: skip


JUDGES: tuple[Callable[[Case], None], ...] = (
    shift, few_tokens, truncated_sampling, temperature, few_tokens, likelier_tokens,
    stale_weights, failed_sync, turns_differ, first_tokens, remainder,
)  # fmt: skip
ADVICE = {
    "temperature": "make both log-probs those of the sampling temperature: vLLM "
    "`logprobs_mode=processed_logprobs`; trainer logits / temperature (verl "
    "`rollout.temperature`, TRL `temperature`, slime `--rollout-temperature`)",
    "truncated-sampling": "sample from the whole vocabulary (`top_p=1`, `top_k=-1`, `min_p=0`), or "
    "replay the sampling mask in the trainer (vLLM `return_sampling_mask`)",
    "stale-weights": "bound the policy's age (verl `async_training.staleness_threshold`, prime-rl "
    "`max_off_policy_steps`, AReaL `max_head_offpolicyness`), or correct it with --is-weight",
    "failed-sync": "compare checksums of the weights on engine and trainer after each update, and "
    "restart engines that are behind",
    "precision": "use one precision on both sides: log-softmax and logits in float32 (vLLM "
    "`dtype`; NeMo-RL `policy.precision`; fp16 has 8 times finer steps than bf16)",
    "shift": "shift one column by one token; the first engine log-prob is of the first sampled "
    "token",
    "template": "send the engine's token ids to the trainer instead of text, and compare BOS and "
    "chat template of both",
    "few-tokens": "look at the tokens below: routed experts (replay the routing: verl "
    "`router_replay.mode`, slime `--use-rollout-routing-replay`), kernels, or retokenised text; or "
    "mask them with --is-mask",
    "other": "look at the tokens below, and compare both sides on one prompt",
}
"""What to do about a cause."""
