"""Why rollout engine and trainer differ: causes that compete for the gap.

Each cause is judged on what the causes before it leave: filled tokens are left out, others aligned,
and tokens that outliers, another context, an old policy or a failed sync explain are left out, too.
What is left is numerical noise, other weights, or unexplained; beside a temperature or truncation,
whose size by token is not known, it is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.model import Cause
from rlpost.display.text import percent
from rlpost.kernels import mismatch as evidence
from rlpost.kernels.divergence import confident_disagreement
from rlpost.kernels.mismatch import LARGEST_NOISE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.analysis.inspect.model import Certainty, Label, Side
    from rlpost.kernels.mismatch import Codes, Estimate, Flags, Floats


LEAST_TOKENS = 512  # fewer show no cause
LEAST_LEFT = 64  # tokens that a cause is judged on
LEAST_GAP = 1.25e-3
"""Root mean square of d, nats, below which nothing is named.

Kernels of float32 stay below 1e-4, and noise of up to 1e-3 is no gap; a float16 engine has 1.6e-3.
"""
LEAST_EFFECT = 1e-4
"""k3, nats: a cause of less has no measurable effect, so nothing is advised.

The effective sample size of token weights is then over 99.98 %.
"""
SURE_Z, LEAST_Z = 10.0, 5.0
LEAST_WINDOWS = 8  # of a step alone: fewer have no standard error
MISSING_MASS = 3e-3  # that a mean ratio is below 1
BFLOAT16 = 2.0**-6  # of a log-prob: more than rounding to 8 bits changes
ROUNDED = 0.95  # of the tokens, that differ by no more: top-p has up to 0.91, rounding over 0.98
CORRELATED = 0.1  # squared correlation of d and surprisal
OTHER_CONTEXT = 1.7  # times larger |d|: drifts and lags have up to 1.5
OTHER_WEIGHTS = 3.0  # times larger |d| of steps, machines, first or last tokens
FILLED, LEAST_FILLED = 1e-3, 16  # of the tokens, that have one value where the other is another
TYPICAL = 0.75  # of the median surprisal of uncertain tokens, that filled ones have
UNCERTAIN = 0.1  # nats that a token and its difference have, which no fill value explains
OUTLIERS = 0.4  # of the gap
FEW = 0.1  # of the tokens
OUTLIERS_OF_HEAT = 0.03  # of the gap: what a temperature makes is bounded
LOCAL = 0.5  # of 2: how far outliers are from random tokens
PLACES = 40  # tokens of a turn; later ones are one place
CONFIDENT = 1e-3  # of the tokens
SHARP = 0.02  # of the entropy, that tokens are less surprising than sampling makes them
RARE, LEAST_RARE = 0.02, 32.0  # of the rare tokens that are expected, and how many these are
LUMPS = 0.1  # of the gap, that an estimate by similar contexts may leave
NAMED = 0.01  # of the gap: causes that the line of a finding names beside the first
REMEDIES = {
    "fill-value": "write the log-probs of these tokens, or set their mask to 0: a fill value is no "
    "log-prob",
    "shift": "shift one column by one token: the first engine log-prob is of the first sampled "
    "token",
    "few-tokens": "look at the tokens that differ most: replay the routing of experts (verl "
    "`router_replay.mode`, slime `--use-rollout-routing-replay`), compare kernels and retokenised "
    "text, or mask the tokens with --is-mask",
    "truncated-sampling": "sample from the whole vocabulary (`top_p=1`, `top_k=-1`, `min_p=0`), or "
    "replay the sampling mask in the trainer (vLLM `return_sampling_mask`)",
    "temperature": "compute both log-probs at the temperature that tokens are sampled at (vLLM "
    "`logprobs_mode=processed_logprobs`, verl `rollout.temperature`, TRL `temperature`, slime "
    "`--rollout-temperature`)",
    "stale-weights": "bound the policy's age (verl `async_training.staleness_threshold`, prime-rl "
    "`max_off_policy_steps`, AReaL `max_head_offpolicyness`), or correct it with --is-weight",
    "failed-sync": "compare checksums of the weights on both sides after each update (vLLM `POST "
    "/weight_checker`, SGLang `POST /weights_checker`, slime `--check-weight-update-equal`), "
    "restart engines that are behind, and train in the engine's precision (TRL `bf16=True`): small "
    "float32 updates round away in bfloat16",
    "template": "send the engine's token ids to the trainer instead of text, and use one BOS and "
    "one chat template (vLLM and SGLang `--chat-template`, verl "
    "`actor_rollout_ref.model.custom_chat_template`, prime-rl `tokenizer.chat_template`, NeMo-RL "
    "`policy.tokenizer.chat_template`)",
    "last-token": "compare how both sides end a response: the stop token, the end of the chat "
    "template, and options that change its probability (`min_tokens`, `ignore_eos`, a logit bias)",
    "precision": "use one precision on both sides (vLLM `dtype`, NeMo-RL `policy.precision`), and "
    "float32 for logits and log-softmax; float16 has 8 times finer steps than bfloat16",
    "other": "look at the tokens that differ most, and compare both sides on one prompt",
}
"""By the name of the cause, with the options of frameworks that do it."""
SAMPLING = "truncated-sampling", "temperature"
UNKNOWN = "other"


@dataclass(frozen=True)
class ComparedTokens:
    """Policy tokens that are compared, in order within windows of neighbours; [t] each."""

    old: Floats
    infer: Floats
    window: Codes
    since: Codes
    """Policy tokens before it in its turn."""
    until: Codes
    """Policy tokens after it in its turn."""
    later: Flags
    """Of a turn after an observation."""
    entropy: Floats | None = None
    lag: Floats | None = None
    """Versions between the policy that sampled and the one that trains; NaN if unknown."""
    labels: Mapping[str, tuple[Codes, Sequence[Label]]] = field(default_factory=dict)
    """By `step` and columns of hosts, ranks or workers: codes, -1 if unknown, and sorted labels."""
    stuck: Label | None = None
    """The first of at least 3 last steps over which the engine's version stays the same."""

    def chosen(self, keep: Flags) -> ComparedTokens:
        """Return some of the tokens."""
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        arrays: dict[str, Any] = {n: x[keep] for n, x in values if isinstance(x, np.ndarray)}
        arrays["window"] = evidence.codes_of(arrays["window"])
        labels = {name: (codes[keep], names) for name, (codes, names) in self.labels.items()}
        return replace(self, **arrays, labels=labels)

    @property
    def d(self) -> Floats:
        """The log-ratio old - infer."""
        return self.old - self.infer

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.old)


def causes_of(tokens: ComparedTokens) -> list[Cause]:
    """Return the causes of the gap, the largest share first; none of a small gap."""
    if len(tokens) < LEAST_TOKENS:
        return []
    case = Case(tokens, tokens.d)
    effect = case.size**2 / 2  # k3, nearly
    for judge in JUDGES if case.size >= LEAST_GAP else ():
        if len(case.rest) >= LEAST_LEFT and (case.size >= LEAST_GAP or judge is remainder):
            case = judge(case)
    causes = [
        replace(cause, advice="") if 0 < cause.share * effect < LEAST_EFFECT else cause
        for cause in unlogged_sampling(case, tokens).causes
    ]
    return sorted(causes, key=lambda cause: -cause.share)


def unexplained(causes: Sequence[Cause]) -> float:
    """Return the share of the gap that no known cause explains; 0 without a gap."""
    known = sum(cause.share for cause in causes if cause.name != UNKNOWN)
    return max(0.0, 1.0 - known) if any(cause.share for cause in causes) else 0.0


def likeliest(causes: Sequence[Cause]) -> str:
    """Return `likeliest cause: temperature (58 % of the gap), then stale-weights (38 %)`, or ''."""
    known = [cause for cause in causes if cause.name != UNKNOWN]
    named = [f"{cause.name} ({percent(cause.share)})" for cause in known if cause.share >= NAMED]
    parts = [f"likeliest cause: {', then '.join(named)}".replace(")", " of the gap)", 1)]
    if not named:
        parts = ["no known cause explains the gap"] if len(known) < len(causes) else []
    if named and (rest := unexplained(causes)) >= NAMED:
        parts.append(f"{percent(rest)} unexplained")
    if unlogged := " or ".join(cause.name for cause in known if not cause.share):
        parts.append(f"tokens were not sampled from these log-probs: {unlogged}")
    return "; ".join(parts)


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
    def size(self) -> float:
        """Root mean square of what is left of d, nats."""
        return _size(self.rest)

    def has(self, *names: str) -> bool:
        """Return whether one of these causes was named."""
        return any(cause.name in names for cause in self.causes)

    def named(
        self, name: str, share: float, z: float, text: str, change: Side = "either",
        **estimate: Any,
    ) -> Case:  # fmt: skip
        """Return the case with a cause of this share of the whole gap; a second share is added."""
        numbers = {key: _rounded(value) for key, value in estimate.items()}
        sure: Certainty = "high" if abs(z) >= SURE_Z else "medium" if abs(z) >= LEAST_Z else "low"
        cause = Cause(name, _rounded(share), numbers, text, sure, change, REMEDIES[name])
        causes = {known.name: known for known in self.causes}
        if name in causes:
            cause = replace(causes[name], share=_rounded(causes[name].share + share))
        return replace(self, causes=(*(causes | {name: cause}).values(),))

    def without(
        self, keep: Flags, name: str, z: float, text: str, *, left: float | None = None,
        change: Side = "either", **estimate: Any,
    ) -> Case:  # fmt: skip
        """Return the case of the tokens that do not have this cause.

        Its share is that by which the mean square of d is less; `left` is what is left, if that is
        known otherwise.
        """
        if left is None or not self.exact:
            squares = evidence.capped_squares(self.rest if self.exact else self.tokens.d)
            left = min(float(squares[keep].mean() / squares.mean()), 1.0) if keep.any() else 0.0
        case = self.named(name, self.share * (1 - left), z, text, change, **estimate)
        tokens = self.tokens.chosen(keep)
        return replace(case, tokens=tokens, rest=self.rest[keep], share=self.share * left)

    def larger(
        self, chosen: Flags, others: Flags, alike: Codes, least: float
    ) -> tuple[float, float] | None:
        """Return how many times as far off chosen tokens are as like others, and z.

        None unless that is more than chance, over `least`, and explains a part of the gap.
        """
        ratio = evidence.size_ratio(self.rest, chosen, others, alike, self.tokens.window)
        if ratio is None or ratio.value <= np.log(least) or ratio.z(0.0) < LEAST_Z:
            return None
        # The geometric mean can be larger by tokens that hardly differ, which explains nothing.
        if _size(self.rest[chosen]) <= _size(self.rest[others]):
            return None
        return float(np.exp(ratio.value)), ratio.z(0.0)


def _size(d: Floats) -> float:
    return float(evidence.capped_squares(d).mean() ** 0.5) if len(d) else 0.0


def _plus(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ± {estimate.error:.1g}"


def _first_of(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels[:4])) + " and more" * (len(labels) > 4)  # noqa: PLR2004


def _rounded(value: Any) -> Any:
    """Return a number with 4 digits: more are noise."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# Judges, in the order in which they are heard: each returns the case that it leaves.


def filled(case: Case) -> Case:
    """One column has a single value, such as 0, where the other has log-probs: a fill value.

    Where truncation leaves one token, or noise is clipped at 0, a column has one value, too, but
    that of likely tokens.
    """
    tokens = case.tokens
    sides: tuple[tuple[Side, Floats, Floats], ...] = (
        ("engine", tokens.infer, tokens.old), ("trainer", tokens.old, tokens.infer)
    )  # fmt: skip
    for side, values, other in sides:
        everywhere = bool(values.min() == values.max()) and np.median(np.abs(tokens.d)) > 0
        uncertain = everywhere | ((other < -UNCERTAIN) & (np.abs(tokens.d) > UNCERTAIN))
        numbers, counts = np.unique(values[uncertain], return_counts=True)
        count = int(counts.max(initial=0))
        if count < max(FILLED * len(tokens), LEAST_FILLED):
            continue
        value = float(numbers[counts.argmax()])
        chosen = uncertain & (values == value)
        of_likely = TYPICAL * np.median(other[other < -UNCERTAIN]) if not everywhere else 0.0
        if np.median(other[chosen]) > of_likely:
            continue
        text = f"{side} log-probs are exactly {value:g} in {count:,} of {len(tokens):,} tokens "
        text += "where the other side's are not: a fill value"
        return case.without(values != value, "fill-value", count**0.5, text, change=side,
                            value=value)  # fmt: skip
    return case


def shift(case: Case) -> Case:
    """One column is a token ahead of the other, in all steps or some: neighbours match better."""
    tokens = case.tokens
    codes, labels = tokens.labels.get("step", (np.zeros(len(tokens), np.int64), ["all"]))
    first = np.unique(tokens.window, return_index=True)[1]
    steps, windows = np.unique(codes[first], return_counts=True)
    parts = {step: _lag(case, codes == step) for step in steps[windows >= LEAST_WINDOWS].tolist()}
    whole = _lag(case, np.ones(len(tokens), np.bool_))
    lag, z, *means = max([whole, *parts.values()], key=lambda x: x[1])
    if z < LEAST_Z:
        return case
    all_but = whole[0] == lag and whole[1] >= LEAST_Z  # a step that is not sure alone counts then
    sure = [step for step, x in parts.items() if x[0] == lag and (all_but or x[1] >= LEAST_Z)]
    shifted = np.isin(codes, sure) | (all_but & ~np.isin(codes, [*parts]))
    inner, ends = np.zeros(len(tokens), np.bool_), slice(None, -1) if lag > 0 else slice(1, None)
    inner[ends] = tokens.window[1:] == tokens.window[:-1]
    infer = np.where(shifted, np.roll(tokens.infer, -lag), tokens.infer)
    aligned = replace(tokens, infer=infer).chosen(inner | ~shifted)
    left = min((_size(aligned.d) / case.size) ** 2, 1.0)
    names = [labels[step] for step in sure if step >= 0]
    where = "" if shifted.all() else f" in step {_first_of(names)}"
    text = f"engine log-probs are those of the token {'before' if lag > 0 else 'after'}{where}: "
    text += f"mean |Δ| {means[0]:.3g} nats moved by one, {means[1]:.3g} as stored"
    case = case.named("shift", case.share * (1 - left), z, text, lag=lag)
    return replace(case, tokens=aligned, rest=aligned.d, share=case.share * left)


def _lag(case: Case, chosen: Flags) -> tuple[int, float, float, float]:
    """Return the lag at which some tokens match best, its z, and their mean |Δ| there and at 0."""
    tokens = case.tokens
    old, infer, window = tokens.old[chosen], tokens.infer[chosen], tokens.window[chosen]
    means = evidence.differences_by_shift(old, infer, window)
    lag = min(evidence.LAGS, key=lambda lag: (means[lag].value, abs(lag)))
    best, zero = means[lag], means[0]
    error = (best.error**2 + zero.error**2) ** 0.5
    z = (zero.value - best.value) / error if error and lag else 0.0
    return lag, z, best.value, zero.value


def few_tokens(case: Case) -> Case:
    """Few tokens carry the gap, at no place of turns, step or machine."""
    tokens, total = case.tokens, len(case.rest)
    chosen, share = evidence.heavy_tail(case.rest, tokens.infer, LEAST_GAP)
    least = OUTLIERS_OF_HEAT if case.has(*SAMPLING) else OUTLIERS
    count = int(np.count_nonzero(chosen))
    if not 0 < count <= FEW * total or share < least:
        return case
    labels = [np.minimum(tokens.since, PLACES), np.minimum(tokens.until, PLACES)]
    labels += [tokens.later.astype(np.int64), *(codes for codes, _ in tokens.labels.values())]
    labels += [] if tokens.lag is None else [evidence.quantile_bins(np.nan_to_num(tokens.lag))]
    if any(evidence.clustering(chosen, codes) > LOCAL for codes in labels):
        return case
    nats, others = _size(case.rest[chosen]), _size(case.rest[~chosen])
    text = f"{count:,} of {total:,} tokens ({100 * count / total:.2g} %) differ by {nats:.3g} nats"
    text += f", the others by {others:.3g} (root mean square)"
    return case.without(~chosen, "few-tokens", count**0.5, text, tokens=count / total, nats=nats)


def truncated_sampling(case: Case) -> Case:
    """The engine renormalises over the tokens that top-p, top-k or min-p keep."""
    d = case.tokens.d
    mass = evidence.mean_ratio(d, case.tokens.window)
    rounded = np.abs(d) <= np.abs(case.tokens.infer) * BFLOAT16 + LEAST_GAP
    if 1 - mass.value < MISSING_MASS or -mass.z(1.0) < LEAST_Z or rounded.mean() > ROUNDED:
        return case
    text = f"the trainer gives {mass.value:.4f} ± {mass.error:.1g} of its probability to what was "
    text += f"sampled from; engine log-probs are higher in {100 * float((d < 0).mean()):.3g} % of "
    text += "tokens"
    edge = float(np.quantile(np.exp(np.minimum(d, 0.0)), 0.01))
    case = case.named(
        "truncated-sampling", 0.0, mass.z(1.0), text,
        kept_mass=mass.value, error=mass.error, lowest_mass=edge,
    )  # fmt: skip
    return replace(case, rest=np.maximum(d, 0.0), exact=False)  # it makes no token likelier


def temperature(case: Case) -> Case:
    """One side divides logits by a temperature, or by another one."""
    tokens, d = case.tokens, case.tokens.d
    if case.has("truncated-sampling") and case.size < 0.1 * _size(d):
        return case
    origin = evidence.sampled_column(d, tokens.window)
    engine = origin.engine
    side, sign = ("engine", 1) if engine else ("trainer", -1)
    heat = evidence.temperature(
        sign * d, tokens.infer if engine else tokens.old, tokens.entropy, tokens.window
    )
    if heat is None or abs(heat.z) < LEAST_Z or min(heat.correlation**2, heat.share) < CORRELATED:
        return case
    if abs(heat.value.z(1.0)) <= 1:  # noise alone can make it
        return case
    # The side that tokens were not sampled from has the other temperature.
    change: Side = "either" if not origin.z >= LEAST_Z else "trainer" if engine else "engine"
    value = heat.value
    if tokens.lag is not None and tokens.entropy is None:  # which staleness would bias
        fresh = tokens.chosen(tokens.lag == np.nanmin(tokens.lag))
        sampled = fresh.infer if engine else fresh.old
        least = evidence.temperature(sign * fresh.d, sampled, None, fresh.window)
        value = value if least is None else least.value
    text = f"log-ratio and surprisal correlate (r = {heat.correlation:+.2f}): {side} "
    text += f"log-probs are those of T = {value.value:.3f} ± {value.error:.1g} times the other's; "
    text += f"mean ratio trainer / engine {_plus(origin.forward)}, engine / trainer "
    text += _plus(origin.backward)
    if change != "either":
        text += f": tokens were sampled from {side} log-probs; divide {change} logits by "
        text += f"{value.value:.3f}"
    known = tokens.entropy is not None and case.exact  # else it has what is left at the end
    case = case.named(
        "temperature", case.share * heat.share if known else 0.0, heat.z, text, change,
        temperature=value.value, error=value.error, side=side,
        mean_ratio=origin.forward.value, mean_inverse_ratio=origin.backward.value,
    )  # fmt: skip
    share = case.share * (1 - heat.share) if known else case.share
    return replace(case, rest=d - sign * heat.explained, exact=known, share=share)


def places(case: Case) -> Case:
    """Tokens at the start or the end of responses or turns differ most: inputs are others there."""
    if case.has("temperature") and case.has("truncated-sampling"):
        return case
    tokens, later = case.tokens, case.tokens.later
    first, last, anywhere = tokens.since == 0, tokens.until == 0, later | ~later
    alike = evidence.quantile_bins(tokens.infer)
    at_place = alike * (PLACES + 1) + np.minimum(tokens.since, PLACES)
    turns = "turns" if later.any() else "responses"
    for name, chosen, among, like, least, where in (
        ("template", first & later, later, alike, OTHER_WEIGHTS, "first tokens after observations"),
        ("template", first & ~later, ~later, alike, OTHER_WEIGHTS, "first tokens of responses"),
        ("last-token", last, anywhere, alike, OTHER_WEIGHTS, f"last tokens of {turns}"),
        ("template", later, anywhere, at_place, OTHER_CONTEXT, "tokens after observations"),
        ("template", ~later, anywhere, at_place, OTHER_CONTEXT, "tokens of first turns"),
    ):
        larger = case.larger(chosen, among & ~chosen, like, least)
        if larger is not None:
            text = f"{where} are {larger[0]:.3g} times as far off as others of the same log-prob "
            text += "(geometric mean)"
            return case.without(~chosen, name, larger[1], text, ratio=larger[0], where=where)
    return case


def stale_weights(case: Case) -> Case:
    """The gap grows with the versions between sampling and training."""
    tokens = case.tokens
    if tokens.lag is None:
        return case
    growth = evidence.lag_slope(evidence.capped_squares(case.rest), tokens.lag, tokens.window)
    if growth is None or growth.slope.z(0.0) < LEAST_Z:
        return case
    sizes = [f"{size:.3g} at lag {lag:g}" for lag, size in growth.by_lag.items()]
    text = f"the gap grows with the policy's age: {sizes[0]}, {sizes[-1]} (root mean square, nats)"
    name = "stale-weights"
    if tokens.stuck is not None:
        name = "failed-sync"
        text = f"the engine's version stays the same from step {tokens.stuck} on; {text}"
    return case.without(
        tokens.lag == np.nanmin(tokens.lag), name, growth.slope.z(0.0), text, left=growth.floor,
        change="engine", floor=growth.floor, slope=growth.slope.value, error=growth.slope.error,
    )  # fmt: skip


def failed_sync(case: Case) -> Case:
    """On some machines or in some steps, the engine has other weights."""
    alike = evidence.quantile_bins(case.tokens.infer)
    for column, (codes, labels) in case.tokens.labels.items():
        codes_of_larger = evidence.larger_labels(case.rest, codes)
        chosen = np.isin(codes, codes_of_larger)
        others = (codes >= 0) & ~chosen
        larger = case.larger(chosen, others, alike, OTHER_WEIGHTS)
        if larger is not None and _size(case.rest[chosen]) ** 2 / 2 >= LEAST_EFFECT:
            names = [labels[code] for code in codes_of_larger]
            text = f"{column} {_first_of(names)}: "
            text += f"tokens differ by {larger[0]:.3g} times as much as elsewhere (geometric mean)"
            return case.without(
                others, "failed-sync", larger[1], text, change="engine",
                column=column, labels=names, ratio=larger[0],
            )  # fmt: skip
    return case


def remainder(case: Case) -> Case:
    """What is left: numerical noise, other weights, or no known cause."""
    tokens, size = case.tokens, case.size
    if case.has(*SAMPLING) and (not case.exact or case.share < LUMPS):
        return _left_to_sampling(case)
    if size < LEAST_GAP:
        return case
    sides: dict[Side, Floats] = {"engine": tokens.infer, "trainer": tokens.old}
    grids = {side: grid for side, values in sides.items() if (grid := evidence.grid_of(values))}
    lag = np.zeros(0) if tokens.lag is None else tokens.lag[np.isfinite(tokens.lag)]
    wrong = float(confident_disagreement(tokens.infer, np.abs(case.rest)).mean())
    side: Side = "engine" if len(lag) else "either"
    name, z, text = UNKNOWN, 0.0, f"{size:.3g} nats that no evidence explains"
    if grids:
        text = " and ".join(f"{side} log-probs are in {grid}" for side, grid in grids.items())
        name, z, text = "precision", SURE_Z, f"{text}; Δ is {size:.3g} nats"
        side = next(iter(grids)) if len(grids) == 1 else "either"
    elif size < LARGEST_NOISE:
        text = f"noise of {size:.3g} nats (root mean square) in all positions, on both sides of 0"
        name, z, side = "precision", LEAST_Z, "either"
    elif wrong > CONFIDENT and not lag.any() and not case.causes:
        text = f"the engine is sure (≥ 0.5) and the trainer is 2 nats off in {100 * wrong:.2g} % "
        name, z, text, side = "failed-sync", LEAST_Z, text + "of tokens, everywhere", "either"
    elif not case.has("stale-weights", "failed-sync") and (not len(lag) or lag.all()):
        ages = "their age is unknown without policy versions"
        if len(lag):
            ages = f"the policy that sampled is {lag.min():g} to {lag.max():g} versions older"
        text = f"Δ of {size:.3g} nats in all positions, too much for numerical noise; {ages}"
        name = "stale-weights"
    return case.named(name, case.share, z, text, side, nats=size, **grids)


def _left_to_sampling(case: Case) -> Case:
    """Return the case in which temperature and truncation have what is left.

    Of both, truncation has the square of the logarithm of the mass that it kept.
    """
    part = {"temperature": 1.0, "truncated-sampling": 1.0}
    if case.has("temperature") and case.has("truncated-sampling"):
        mass = next(x.estimate["kept_mass"] for x in case.causes if "kept_mass" in x.estimate)
        mean = float(evidence.capped_squares(case.tokens.d).mean())
        part["truncated-sampling"] = min(float(np.log(mass)) ** 2 / mean, 1.0)
        part["temperature"] -= part["truncated-sampling"]
    causes = tuple(
        replace(cause, share=_rounded(cause.share + case.share * part.get(cause.name, 0.0)))
        for cause in case.causes
    )
    return replace(case, causes=causes, share=0.0)


def unlogged_sampling(case: Case, tokens: ComparedTokens) -> Case:
    """Tokens were sampled from a sharper or flatter distribution than that of both log-probs.

    Their mean surprisal is then not the entropy, by more than the gap can make it: a mean over two
    policies differs by at most its deviation times the root of their χ², about that of d.

    Args:
        case: with the causes of the gap.
        tokens: all of them, not what the causes left.
    """
    if tokens.entropy is None or case.has(*SAMPLING):
        return case
    deficit = evidence.entropy_deficit(tokens.old, tokens.entropy, tokens.window)
    spread = float(np.std(tokens.old + tokens.entropy) / max(tokens.entropy.mean(), 1e-12))
    if abs(deficit.value) < max(SHARP, spread * _size(tokens.d)) or abs(deficit.z(0.0)) < LEAST_Z:
        return case
    names, z, how = ["temperature"], deficit.z(0.0), "more"
    count, expected = evidence.rare_tokens(tokens.old, tokens.entropy)
    text = "surprising than the entropy of the log-probs: these are not of the distribution that "
    text += "was sampled from"
    if deficit.value < 0:
        how = "less"
        text += f"; where a token has over 95 %, {count:,} others were sampled: "
        text += f"{expected:,.0f} would be without temperature and truncation"
        if expected < LEAST_RARE:  # too few to tell which of the two it is
            names, z = ["temperature", *["truncated-sampling"] * (count < expected)], 0.0
        elif count < RARE * expected:
            names = ["truncated-sampling"]
    text = f"tokens are {100 * abs(deficit.value):.2g} % {how} {text}"
    for name in names:
        case = case.named(name, 0.0, z, text, "both", surprisal=deficit.value, error=deficit.error)
    return case


JUDGES: tuple[Callable[[Case], Case], ...] = (
    filled, shift, few_tokens, truncated_sampling, temperature, few_tokens, stale_weights,
    failed_sync, places, stale_weights, failed_sync, few_tokens, remainder,
)  # fmt: skip
