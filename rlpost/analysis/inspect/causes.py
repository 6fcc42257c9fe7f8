"""Why rollout engine and trainer differ: causes that compete for the gap.

Each cause is judged on what the causes before it leave: tokens are aligned, outliers are taken out,
tokens that another context, an old policy or a failed sync explains are left out. Temperature and
truncation are constants among tokens that were sampled in one context, so causes beside them are
judged there. What is left is numerical noise, other weights, or unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.model import Cause
from rlpost.analysis.inspect.remedies import REMEDIES
from rlpost.display.text import percent
from rlpost.kernels import mismatch as evidence
from rlpost.kernels.divergence import confident_disagreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.analysis.inspect.model import Certainty, Label, Side
    from rlpost.kernels.mismatch import Codes, Estimate, Flags, Floats


LEAST_TOKENS = 512  # fewer show no cause
LEAST_PAIRS = 64  # of one context
LEAST_GAP = 1.25e-3
"""Root mean square of d, nats, below which nothing is named.

Kernels of float32 stay below 1e-4, and noise of up to 1e-3 is no gap; a float16 engine has 1.6e-3.
"""
SURE_Z, LEAST_Z = 10.0, 5.0
LARGEST_NOISE = 0.03  # nats, root mean square: a k3 of 0.0005; bfloat16 kernels have 0.01
MISSING_MASS = 3e-3  # that a mean ratio is below 1
CORRELATED = 0.1  # squared correlation of d and surprisal
OTHER_CONTEXT = 1.7  # times larger |d|: drifts and lags have up to 1.5
OTHER_WEIGHTS = 3.0  # times larger |d| of steps or machines
OUTLIERS = 0.4  # of the gap
OUTLIERS_OF_HEAT = 0.03  # of the gap: what a temperature makes is bounded
MOST_OUTLIERS = 0.05  # of the tokens: more are not few
LOCAL = 0.5  # of 2: how far outliers are from random tokens
PLACES = 40  # tokens of a turn; later ones are one place
CONFIDENT = 1e-3  # of the tokens
SHARP = 0.02  # of the entropy, that tokens are less surprising than sampling makes them
NAMED = 0.01  # of the gap: causes that the line of a finding names beside the first
SAMPLING = "truncated-sampling", "temperature"
WEIGHTS = "stale-weights", "failed-sync"
UNKNOWN = "other"


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
    steps: Sequence[Label] = ()
    machines: Mapping[str, tuple[Codes, Sequence[Label]]] = field(default_factory=dict)
    """By column of hosts, ranks or workers: codes and labels."""
    stuck: Label | None = None
    """The first of at least 3 last steps over which the engine's version stays the same."""
    first: ComparedTokens | None = None
    """The first tokens of responses, in windows of one context: of one prompt."""
    context: str = "prompt"
    """What the tokens of a window of `first` have in common."""

    def chosen(self, keep: Flags | Codes) -> ComparedTokens:
        """Return some of the tokens."""
        arrays: dict[str, Any] = {
            name: None if (one := getattr(self, name)) is None else one[keep]
            for name in ("old", "infer", "since", "later", "entropy", "lag", "step")
        }
        machines = {name: (codes[keep], own) for name, (codes, own) in self.machines.items()}
        window = evidence.codes_of(self.window[keep])
        return replace(self, **arrays, window=window, machines=machines)

    def finite(self) -> ComparedTokens:
        """Return the tokens whose numbers are."""
        finite = np.isfinite(self.old) & np.isfinite(self.infer)
        if self.entropy is not None:
            finite &= np.isfinite(self.entropy)
        return self if finite.all() else self.chosen(finite)

    @property
    def d(self) -> Floats:
        """The log-ratio old - infer."""
        return self.old - self.infer

    @property
    def alike(self) -> Codes:
        """Codes of tokens with similar log-probs."""
        return evidence.quantile_bins(self.infer)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.old)


def causes_of(tokens: ComparedTokens) -> list[Cause]:
    """Return the causes of the gap, the largest share first; none of a small gap."""
    if len(tokens) < LEAST_TOKENS:
        return []
    case = Case(tokens, tokens.d)
    if case.size < LEAST_GAP:
        return [*unlogged_sampling(case).causes]
    for judge in JUDGES:
        if len(case.rest) >= LEAST_PAIRS:
            case = judge(case)
    if (
        {"temperature"}
        <= {one.name for one in case.causes}
        <= {"temperature", "precision", *SAMPLING}
    ):
        case = other_context(case, tokens)
    return sorted(case.causes, key=lambda one: -one.share)


def unexplained(causes: Sequence[Cause]) -> float:
    """Return the share of the gap that no known cause explains."""
    return max(0.0, 1.0 - sum(one.share for one in causes if one.name != UNKNOWN))


def percentages(shares: Sequence[float]) -> list[str]:
    """Return shares as percentages that add up as the shares do: their running sum is rounded.

    >>> percentages([0.6595, 0.3405]), percentages([0.9996, 0.0004])
    (['66.0 %', '34.0 %'], ['>99.9 %', '<0.1 %'])
    """
    parts = np.round(np.diff(np.round(np.cumsum([0.0, *shares]), 3)), 3).tolist()
    both = zip(parts, shares, strict=True)
    return [percent(part if 0 < part < 1 else share) for part, share in both]


def likeliest(causes: Sequence[Cause]) -> str:
    """Return `likeliest cause: temperature (58 % of the gap), then stale-weights (38 %)`, or ''."""
    known = [one for one in causes if one.name != UNKNOWN]
    if not known:
        return "no known cause explains the gap" if causes else ""
    first, *others = known
    if not first.share:
        return f"both sides agree, but tokens were not sampled from these log-probs: {first.name}"
    shares = percentages([one.share for one in known])
    named = [
        f"{one.name} ({text})"
        for one, text in zip(others, shares[1:], strict=True)
        if one.share >= NAMED
    ]
    more = f", then {', '.join(named)}" if named else ""
    if (rest := unexplained(causes)) >= NAMED:
        more += f"; {percent(rest)} unexplained"
    return f"likeliest cause: {first.name} ({shares[0]} of the gap){more}"


@dataclass(frozen=True)
class Case:
    """What is left of the gap, and the causes of the rest."""

    tokens: ComparedTokens
    rest: Floats
    """[t] what is left of d."""
    share: float = 1.0
    """Of the gap, that `rest` has."""
    causes: tuple[Cause, ...] = ()
    exact: bool = True
    """Whether nothing of `rest` is left from a cause whose size by token is unknown."""

    @property
    def squares(self) -> Floats:
        """The squares of what is left of d, [t]."""
        return evidence.capped_squares(self.rest)

    @property
    def size(self) -> float:
        """Root mean square of what is left of d, nats."""
        return _size(self.rest)

    def has(self, *names: str) -> bool:
        """Return whether one of these causes was found."""
        return any(one.name in names for one in self.causes)

    def named(
        self, name: str, share: float, z: float, text: str, change: Side = "either",
        **estimate: Any,
    ) -> Case:  # fmt: skip
        """Return the case with a cause of this share of the whole gap; a second share is added."""
        numbers = {key: _rounded(value) for key, value in estimate.items()}
        remedy, share = REMEDIES[name], _rounded(share)
        cause = Cause(
            name, share, numbers, text, _sure(abs(z)), change, remedy.advice, remedy.options
        )
        if not self.has(name):
            return replace(self, causes=(*self.causes, cause))
        return self.changed(name, lambda one: replace(one, share=_rounded(one.share + share)))

    def changed(self, name: str, change: Callable[[Cause], Cause]) -> Case:
        """Return the case with another cause of this name."""
        causes = tuple(change(one) if one.name == name else one for one in self.causes)
        return replace(self, causes=causes)

    def without(
        self, keep: Flags, name: str, z: float, text: str, *, left: float | None = None,
        change: Side = "either", **estimate: Any,
    ) -> Case:  # fmt: skip
        """Return the case of the tokens that do not have this cause.

        Its share is that by which the mean square of d is less; `left` is what is left, if that is
        known otherwise.
        """
        if left is None or not self.exact:
            squares = self.squares if self.exact else evidence.capped_squares(self.tokens.d)
            left = min(float(squares[keep].mean() / squares.mean()), 1.0) if keep.any() else 0.0
        case = self.named(name, self.share * (1 - left), z, text, change, **estimate)
        tokens = self.tokens.chosen(keep)
        return replace(case, tokens=tokens, rest=self.rest[keep], share=self.share * left)


def _size(d: Floats) -> float:
    return float(evidence.capped_squares(d).mean() ** 0.5) if len(d) else 0.0


def _sure(z: float) -> Certainty:
    return "high" if z >= SURE_Z else "medium" if z >= LEAST_Z else "low"


def _plus(one: Estimate) -> str:
    return f"{one.value:.3f} ± {one.error:.1g}"


def _rounded(value: Any) -> Any:
    """Return a number with 4 digits: more are noise."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _is_larger(found: Estimate | None, times: float) -> bool:
    """Return whether a logarithm of a ratio is more than chance and over that of `times`."""
    return found is not None and found.value > np.log(times) and found.z(0.0) >= LEAST_Z


# Judges, in the order in which they are heard: each returns the case that it leaves.


def shift(case: Case) -> Case:
    """One column is a token ahead of the other: neighbours match better than the same token."""
    tokens = case.tokens
    means = evidence.differences_by_shift(tokens.old, tokens.infer, tokens.window)
    lag = min(evidence.LAGS, key=lambda one: (means[one].value, abs(one)))
    best, zero = means[lag], means[0]
    error = (best.error**2 + zero.error**2) ** 0.5
    z = (zero.value - best.value) / error if error else 0.0
    if lag == 0 or z < LEAST_Z:
        return case
    ends = slice(None, -1) if lag > 0 else slice(1, None)
    inner = np.zeros(len(tokens), np.bool_)
    inner[ends] = tokens.window[1:] == tokens.window[:-1]
    aligned = replace(tokens, infer=np.roll(tokens.infer, -lag), first=None).chosen(inner)
    left = min((_size(aligned.d) / case.size) ** 2, 1.0)
    text = f"engine log-probs are those of the token {'before' if lag > 0 else 'after'}: mean |Δ| "
    text += f"{best.value:.3g} nats moved by one, {zero.value:.3g} as stored"
    case = case.named("shift", 1 - left, z, text, lag=lag)
    return replace(case, tokens=aligned, rest=aligned.d, share=left)


def few_tokens(case: Case) -> Case:
    """Few tokens carry the gap, at no place of turns, step or machine."""
    tokens = case.tokens
    tail = evidence.heavy_tail(case.rest, tokens.infer, LEAST_GAP)
    count, total = int(np.count_nonzero(tail.tokens)), len(case.rest)
    if not 0 < count <= MOST_OUTLIERS * total or tail.share < (
        OUTLIERS if case.exact else OUTLIERS_OF_HEAT
    ):
        return case
    nats, others = _size(case.rest[tail.tokens]), _size(case.rest[~tail.tokens])
    text = f"{count:,} of {total:,} tokens ({100 * count / total:.2g} %) differ by {nats:.3g} nats"
    labels = [np.minimum(tokens.since, PLACES), tokens.later.astype(np.int64)]
    labels += [codes for codes, _ in tokens.machines.values()]
    labels += [] if tokens.step is None else [tokens.step]
    labels += [] if tokens.lag is None else [evidence.quantile_bins(np.nan_to_num(tokens.lag))]
    if any(_clusters(tail.tokens, codes) for codes in labels):
        return case
    text += f", the others by {others:.3g} (root mean square)"
    if case.has("truncated-sampling") and not case.exact:
        case = _with_kept_mass(case, ~tail.tokens)
    return case.without(
        ~tail.tokens, "few-tokens", count**0.5, text, tokens=count / total, nats=nats
    )


def _clusters(chosen: Flags, labels: Codes) -> bool:
    return evidence.clustering(chosen, labels) > LOCAL


def truncated_sampling(case: Case) -> Case:
    """The engine renormalises over the tokens that top-p, top-k or min-p keep."""
    tokens, d = case.tokens, case.tokens.d
    mass = evidence.mean_ratio(d, tokens.window)
    if 1 - mass.value < MISSING_MASS or -mass.z(1.0) < LEAST_Z:
        return case
    case = case.named("truncated-sampling", 0.0, mass.z(1.0), "")
    case = _with_kept_mass(case, np.ones(len(d), np.bool_))
    return replace(case, rest=np.maximum(d, 0.0), exact=False)  # it makes no token likelier


def _with_kept_mass(case: Case, keep: Flags) -> Case:
    """Return the case with the mass that truncated sampling kept, of some of its tokens."""
    d = case.tokens.d[keep]
    mass = evidence.mean_ratio(d, evidence.codes_of(case.tokens.window[keep]))
    lower = 100 * float((d < 0).mean())
    text = f"the trainer gives {mass.value:.4f} ± {mass.error:.1g} of its probability to what was "
    text += f"sampled from; engine log-probs are higher in {lower:.3g} % of tokens"
    edge = float(np.quantile(np.exp(np.minimum(d, 0.0)), 0.01))
    numbers = {"kept_mass": mass.value, "error": mass.error, "lowest_mass": edge}
    estimate = {name: _rounded(value) for name, value in numbers.items()}
    return case.changed(
        "truncated-sampling", lambda one: replace(one, evidence=text, estimate=estimate)
    )


def temperature(case: Case) -> Case:
    """One side divides logits by a temperature, or by another one."""
    tokens, d = case.tokens, case.tokens.d
    if case.has("truncated-sampling") and _size(case.rest) < 0.1 * _size(d):
        return case
    origin = evidence.sampled_column(d, tokens.window)
    engine = origin.engine
    sampled, sign = (tokens.infer, 1) if engine else (tokens.old, -1)
    found = evidence.temperature(sign * d, sampled, tokens.entropy, tokens.window)
    if found is None or abs(found.value.z(1.0)) < LEAST_Z:
        return case
    if min(found.correlation**2, found.share) < CORRELATED:
        return case
    side, value = "engine" if engine else "trainer", found.value
    # The side that tokens were not sampled from has the other temperature.
    change: Side = "either" if not origin.z >= LEAST_Z else "trainer" if engine else "engine"
    if tokens.lag is not None and tokens.entropy is None:  # which staleness would bias
        fresh = tokens.chosen(tokens.lag == np.nanmin(tokens.lag))
        sampled, of_fresh = (fresh.infer if engine else fresh.old), sign * fresh.d
        least = evidence.temperature(of_fresh, sampled, None, fresh.window)
        value = value if least is None else least.value
    text = f"log-ratio and surprisal correlate (r = {found.correlation:+.2f}): {side} "
    text += f"log-probs are those of T = {value.value:.3f} ± {value.error:.1g} times the other's; "
    text += f"mean ratio trainer / engine {_plus(origin.forward)}, engine / trainer "
    text += _plus(origin.backward)
    if change != "either":
        text += f": tokens were sampled from {side} log-probs; divide {change} logits by "
        text += f"{value.value:.3f}"
    case = case.named(
        "temperature", 0.0, found.value.z(1.0), text, change,
        temperature=value.value, error=value.error, side=side,
        mean_ratio=origin.forward.value, mean_inverse_ratio=origin.backward.value,
    )  # fmt: skip
    return replace(case, rest=d - sign * found.explained, exact=False)


def template(case: Case) -> Case:
    """First tokens, later turns or first turns differ most: the trainer has other inputs."""
    if case.has("temperature") and case.has("truncated-sampling"):
        return case
    tokens, rest, later = case.tokens, case.rest, case.tokens.later
    for turns, where in ((later, "after an observation"), (~later, "of responses")):
        early = turns & (tokens.since == 0)
        found = evidence.size_ratio(rest, early, turns & ~early, tokens.alike, tokens.window)
        if found is not None and _is_larger(found, OTHER_WEIGHTS):
            times = float(np.exp(found.value))
            text = f"the first token {where}: {times:.3g} times as far off as later tokens of the "
            text += "same log-prob (geometric mean)"
            return case.without(
                ~early, "template", found.z(0.0), text, ratio=times, first_tokens=1, where=where
            )
    places = tokens.alike * (PLACES + 1) + np.minimum(tokens.since, PLACES)
    for turns, where, others in (
        (later, "after an observation", "the first turn"),
        (~later, "of first turns", "later turns: something before the response, such as BOS"),
    ):
        found = evidence.size_ratio(rest, turns, ~turns, places, tokens.window)
        if found is not None and _is_larger(found, OTHER_CONTEXT):
            times = float(np.exp(found.value))
            text = f"tokens {where} differ by {times:.3g} times as much as like ones of {others} "
            text += "(geometric mean)"
            # Other inputs change all that is left, unless a temperature is still to be judged.
            keep = ~turns & (turns is later and not case.exact)
            return case.without(keep, "template", found.z(0.0), text, ratio=times, where=where)
    return case


def other_context(case: Case, tokens: ComparedTokens) -> Case:
    """Outliers at some places of turns, which a temperature does not explain: other inputs."""
    heated = temperature(Case(tokens, tokens.d))
    tail = evidence.heavy_tail(heated.rest, tokens.infer, LEAST_GAP)
    if tail.share < OUTLIERS or not _clusters(tail.tokens, np.minimum(tokens.since, PLACES)):
        return case
    squares = evidence.capped_squares(tokens.d)
    share = float(squares[tail.tokens].sum() / squares.sum())
    causes = tuple(replace(one, share=_rounded(one.share * (1 - share))) for one in case.causes)
    text = f"{np.count_nonzero(tail.tokens):,} outliers beside the temperature, at some places of "
    text += "turns"
    case = replace(case, causes=causes)
    return case.named("template", share, 0.0, text, tokens=float(tail.tokens.mean()))


def within_contexts(case: Case) -> Case:
    """Judge what temperature and truncation leave among tokens of one context, and their shares."""
    sampling = [one for one in case.causes if one.name in SAMPLING]
    if not sampling:
        return case
    whole = float(evidence.capped_squares(case.tokens.d).mean())
    pairs, left = _pairs_of_contexts(case), 0.0
    if pairs is None:
        text = "causes beside it are unknown: too few responses share a prompt"
    else:
        case, left = pairs, min(pairs.size**2 / whole, 1.0)
        text = f"causes beside it are judged by the first tokens of {len(case.rest):,} pairs of "
        text += f"responses with one {case.tokens.context}"
    shares = {one.name: case.share * (1 - left) for one in sampling}
    if len(shares) > 1:
        kept = next(one.estimate["kept_mass"] for one in sampling if "kept_mass" in one.estimate)
        part = min(float(np.log(kept)) ** 2 / whole, 1.0)
        shares = {n: s * (part if n == SAMPLING[0] else 1 - part) for n, s in shares.items()}
    for name, share in shares.items():
        case = case.changed(
            name,
            lambda one, share=share: replace(one, share=_rounded(share)),  # type: ignore[misc]
        )
    last = sampling[-1].name
    case = case.changed(last, lambda one: replace(one, evidence=f"{one.evidence}; {text}"))
    return replace(case, share=case.share * left)


def _pairs_of_contexts(case: Case) -> Case | None:
    """Return the case of pairs of first tokens of one context; None if there are too few."""
    first = case.tokens.first
    if first is None or len(first) < LEAST_PAIRS:
        return None
    heated = case.has("temperature")
    pairs = evidence.within_contexts(first.d, -first.infer, first.window, heated=heated)
    if len(pairs.rest) < LEAST_PAIRS:
        return None
    tokens = first.chosen(pairs.first)
    tokens = replace(tokens, infer=np.minimum(tokens.infer, first.infer[pairs.first + 1]))
    if first.lag is not None:
        lags = np.fmax(first.lag[pairs.first], first.lag[pairs.first + 1])
        tokens = replace(tokens, lag=lags)
    return replace(case, tokens=tokens, rest=pairs.rest, exact=True)


def stale_weights(case: Case) -> Case:
    """The gap grows with the versions between sampling and training."""
    tokens = case.tokens
    if tokens.lag is None:
        return case
    found = evidence.lag_slope(case.squares, tokens.lag, tokens.window)
    if found is None or found.slope.z(0.0) < LEAST_Z:
        return case
    sizes = [f"{size:.3g} at lag {lag:g}" for lag, size in found.by_lag.items()]
    shown = sizes if len(sizes) <= 4 else [*sizes[:2], *sizes[-1:]]  # noqa: PLR2004
    text = f"the gap grows with the policy's age: {', '.join(shown)} (root mean square"
    text += ", nats)" if case.exact else " of what the causes before it leave, nats)"
    name = "stale-weights"
    if tokens.stuck is not None:
        name = "failed-sync"
        text = f"the engine's version stays the same from step {tokens.stuck} on; {text}"
    if negative := float((tokens.lag < 0).mean()):
        text += f"; {100 * negative:.2g} % of tokens are of a version newer than the step"
    least = np.nanmin(tokens.lag)
    if (first := tokens.first) is not None and first.lag is not None:
        case = replace(case, tokens=replace(tokens, first=first.chosen(first.lag == least)))
    return case.without(
        tokens.lag == least, name, found.slope.z(0.0), text, left=found.floor, change="engine",
        floor=found.floor, slope=found.slope.value, error=found.slope.error,
    )  # fmt: skip


def failed_sync(case: Case) -> Case:
    """On some machines or in some steps, the engine has other weights."""
    tokens = case.tokens
    columns = dict(tokens.machines)
    if tokens.step is not None:
        columns["step"] = tokens.step, tokens.steps
    for column, (codes, labels) in columns.items():
        larger = evidence.larger_labels(case.rest, codes)
        chosen = np.isin(codes, larger)
        others = (codes >= 0) & ~chosen
        found = evidence.size_ratio(case.rest, chosen, others, tokens.alike, tokens.window)
        # The geometric mean can be larger by tokens that hardly differ, which explains nothing.
        explains = _size(case.rest[chosen]) > _size(case.rest[others])
        if found is not None and explains and _is_larger(found, OTHER_WEIGHTS):
            names, times = [labels[code] for code in larger], float(np.exp(found.value))
            text = f"{column} {_listed(names)}: tokens differ by {times:.3g} times as much as "
            text += "elsewhere (geometric mean)"
            if (first := tokens.first) is not None and first.step is not None and column == "step":
                first = first.chosen(~np.isin(first.step, larger))
                case = replace(case, tokens=replace(tokens, first=first))
            return case.without(
                others, "failed-sync", found.z(0.0), text, change="engine",
                column=column, labels=names, ratio=times,
            )  # fmt: skip
    return case


def _listed(names: Sequence[Label]) -> str:
    most = 4
    text = ", ".join(str(one) for one in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def remainder(case: Case) -> Case:
    """What is left: numerical noise, other weights, or no known cause."""
    tokens, size, share = case.tokens, case.size, case.share
    if size < LEAST_GAP or not case.exact:
        return case
    sides: dict[Side, Floats] = {"engine": tokens.infer, "trainer": tokens.old}
    grids = {side: grid for side, values in sides.items() if (grid := evidence.grid_of(values))}
    if grids:
        text = " and ".join(f"{side} log-probs are in {grid}" for side, grid in grids.items())
        text = f"{text}; Δ is {size:.3g} nats"
        side: Side = next(iter(grids)) if len(grids) == 1 else "either"
        return case.named("precision", share, SURE_Z, text, side, nats=size, **grids)
    if size < LARGEST_NOISE:
        text = f"noise of {size:.3g} nats (root mean square) in all positions, on both sides of 0"
        return case.named("precision", share, LEAST_Z, text, nats=size)
    lag = np.zeros(0) if tokens.lag is None else tokens.lag[np.isfinite(tokens.lag)]
    wrong = float(confident_disagreement(tokens.infer, np.abs(case.rest)).mean())
    if wrong > CONFIDENT and not lag.any() and not case.causes:
        text = f"the engine is sure (≥ 0.5) and the trainer is 2 nats off in {100 * wrong:.2g} % "
        text += "of tokens, everywhere"
        return case.named("failed-sync", share, LEAST_Z, text, confident_disagreement=wrong)
    if not case.has(*WEIGHTS) and (not len(lag) or lag.all()):
        text = f"Δ of {size:.3g} nats in all positions, too much for numerical noise; {_ages(lag)}"
        change: Side = "engine" if len(lag) else "either"
        return case.named("stale-weights", share, 0.0, text, change, nats=size)
    return case.named(UNKNOWN, share, 0.0, f"{size:.3g} nats that no evidence explains", nats=size)


def _ages(lag: Floats) -> str:
    if not len(lag):
        return "their age is unknown without policy versions"
    low, high = lag.min(), lag.max()
    ages = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    unit = "version" if ages == "1" else "versions"
    return f"the policy that sampled is {ages} {unit} older than the one that trains"


def unlogged_sampling(case: Case) -> Case:
    """Both sides agree, but tokens were sampled from a sharper or flatter distribution."""
    tokens = case.tokens
    if tokens.entropy is None:
        return case
    found = evidence.entropy_deficit(tokens.old, tokens.entropy, tokens.window)
    if abs(found.value) < SHARP or abs(found.z(0.0)) < LEAST_Z:
        return case
    name = "truncated-sampling" if found.value < 0 else "temperature"
    how = "less" if found.value < 0 else "more"
    text = f"tokens are {100 * abs(found.value):.2g} % {how} surprising than the entropy of the "
    text += "log-probs: these are not of the distribution that was sampled from"
    estimate = {"surprisal": found.value, "error": found.error}
    return case.named(name, 0.0, found.z(0.0), text, "both", **estimate)


JUDGES: tuple[Callable[[Case], Case], ...] = (
    shift, few_tokens, truncated_sampling, temperature, few_tokens, stale_weights, failed_sync,
    template, within_contexts, stale_weights, failed_sync, few_tokens, remainder,
)  # fmt: skip
