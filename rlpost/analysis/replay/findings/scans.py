"""Scans solved from the recorded numbers: the terms of which returns and advantages are sums.

Along a response each number follows from the next one. For an advantage of gae it is
A = r - V + γV' + γλA', for its return G = r + γ(1 - λ)V' + γλG', and without a critic G = r + γG'.
V', A' and G' are those of the next token; r is -β·KL, but for the last token. So least squares over
neighbours has the coefficients that the trainer used, several at once, and what is left on the last
tokens are its rewards, whatever these were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.base import ENOUGH, Explanation, check
from rlpost.analysis.replay.findings.evidence import column_of, neighbours
from rlpost.analysis.replay.search.sample_facts import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

STAGES = ("raw_advantages", "returns", "advantages")
_REWARDS = "token_level_rewards"
_PAIRS = 20
"""Pairs of tokens that each coefficient needs."""
_VARY = 0.5
"""Share of pairs whose two numbers must differ: equal ones fit any scan."""
_TRIMMED = 0.9
_ROUNDS = 4
_NEAR = 0.02
_HOLD = 0.9
"""Share of pairs that must hold; the others may be next to a reward on another token."""
_SAME = 2e-3
_ERRORS = 5.0
"""Coefficients are the recipe's within so many standard errors."""
_NAMES = {
    "next": "the next token's number",
    "V": "the value",
    "V'": "the next token's value",
    "KL": "the KL",
}


@dataclass(frozen=True)
class ScanCoefficients:
    """The coefficients of a scan, by term."""

    own: dict[str, float]
    """Those of the recipe."""
    solved: dict[str, float]
    """Those of the recorded numbers: the recipe's, where they are about these; empty if the
    recorded numbers are no scan, so that no other coefficients can be what differs."""
    rewards: Numbers
    """[T] token rewards that the recorded numbers imply, KL penalty included."""
    share: float = 0.0
    """Share of the pairs of neighbours that the solved coefficients explain."""

    @property
    def known(self) -> set[str]:
        """The options whose values the coefficients are."""
        return {"gamma", "lam", "lambda_policy", "lambda_value"} | (
            {"kl_coef"} if "KL" in self.own else set()
        )

    @property
    def others(self) -> list[str]:
        """The terms whose coefficients are not the recipe's."""
        return [name for name, one in self.solved.items() if one != self.own[name]]

    def options(self, recipe: Recipe, stage: str) -> dict[str, float]:
        """Return the other values of options; none if a coefficient is that of no option."""
        critic, found, others = "V" in self.own, {}, self.others
        if "V" in others:
            return {}
        if "KL" in others:
            found["kl_coef"] = -self.solved["KL"]
        if {"next", "V'"} & {*others}:
            later = found["gamma"] = self.solved["next"]
            if critic:
                gamma = self.solved["V'"] + (later if stage == "returns" else 0.0)
                found |= {"gamma": gamma, "lam": later / gamma if gamma else 0.0}
        own = {"gamma": recipe.gamma, "lam": self.lam(recipe, stage)}
        rounded = {name: 1.0 if abs(one - 1) < _SAME else one for name, one in found.items()}
        return {n: one for n, one in rounded.items() if n not in own or abs(one - own[n]) > _SAME}

    @staticmethod
    def lam(recipe: Recipe, stage: str) -> float:
        """Return the λ of a stage."""
        other = recipe.lambda_value if stage == "returns" else recipe.lambda_policy
        return recipe.lam if other is None else other

    def text(self, recipe: Recipe, stage: str) -> str:
        """Return the coefficients that are not the recipe's."""
        options = self.options(recipe, stage)
        if options:
            own = {"gamma": "γ", "lam": "λ", "kl_coef": "β"}
            return ", ".join(f"{own[name]} = {plain(one, 4):g}" for name, one in options.items())
        return ", ".join(
            f"{plain(self.solved[name], 4):g} x {_NAMES[name]} (not {self.own[name]:.4g})"
            for name in self.others
        )

    def other_rewards(self, seen: Evidence) -> bool:
        """Return whether the token rewards that the numbers imply are not the recipe's."""
        rollouts = seen.replayer.rollouts
        lists = pa.ListArray.from_arrays(rollouts.offsets.astype(np.int32), pa.array(self.rewards))
        stage = seen.replayer.assuming(_REWARDS, lists).stage(seen.recipe, _REWARDS)
        return stage is not None and not stage.difference.equal


_FOLLOWS = "each recorded number follows from the next one"


@check("last relation")
def scan_terms(seen: Evidence) -> Iterator[Explanation]:
    """Each recorded number follows from the next one, as in a return, with other coefficients.

    The text has them: γ, λ and β, or those of values and KL, also if several differ at once.
    Compare them with the trainer's settings.
    """
    scan = scan_of(seen)
    if scan is not None and scan.others:
        text = f"{_FOLLOWS} by another scan than the recipe's"
        yield Explanation(f"{text}: {scan.text(seen.recipe, seen.first.name)}", scan.share)


@check("last relation")
def scan_rewards(seen: Evidence) -> Iterator[Explanation]:
    """Each recorded number follows from the next one, but from other rewards, or a later value.

    After the end of a response there is no value, or 0. Check whether the trainer reads that of
    padding there, and which token rewards it adds up.
    """
    scan = scan_of(seen)
    if scan is not None and scan.solved and not scan.others and scan.other_rewards(seen):
        text = "as by the recipe, from other rewards, or other values after the last token"
        yield Explanation(f"{_FOLLOWS} {text}", scan.share)


def scan_of(seen: Evidence) -> ScanCoefficients | None:
    """Return the scan of the recorded numbers of a stage; None if the computed ones are none."""
    own, terms = _terms(seen)
    base = column_of(seen.replayer, seen.recipe, _REWARDS) if own else None
    if base is None or len(base) != len(seen.recorded):
        return None
    tokens = np.flatnonzero(seen.chosen)
    left, right = neighbours(seen.rows, 1, tokens)
    ends = np.setdiff1d(tokens, left)
    if seen.recipe.numerics.observations != "skip":
        near = right == left + 1
        left, right = left[near], right[near]
    vary = np.abs(seen.recorded[right] - seen.recorded[left]) > seen.tolerance[left]
    if len(left) < _PAIRS * len(own) or vary.mean() < _VARY:
        return None
    fixed = np.zeros_like(base) if "KL" in own else base  # with recorded token rewards
    where = {name: right if name in ("next", "V'") else left for name in own}
    columns = {name: values[where[name]] for name, values in terms.items()}
    ours = columns | {"next": seen.computed[right]}
    if _holds(seen, left, seen.computed[left] - fixed[left], ours, own).mean() < ENOUGH:
        return None
    theirs = seen.recorded[left] - fixed[left]
    solved = _solved(theirs, columns, own)
    as_own = _holds(seen, left, theirs, columns, own)
    holds = np.zeros(1, np.bool_) if solved is None else _holds(seen, left, theirs, columns, solved)
    if as_own.mean() >= max(_HOLD, holds.mean() - _NEAR):
        solved, holds = own, as_own
    if solved is None or holds.mean() < _HOLD:
        return ScanCoefficients(own, {}, base)
    implied = base.copy()
    rest = sum(solved[name] * values for name, values in columns.items() if name != "KL")
    some = ~holds if solved == own else np.ones_like(holds)
    implied[left[some]] = (seen.recorded[left] - rest)[some]
    implied[ends] = seen.recorded[ends] - (solved["V"] * terms["V"][ends] if "V" in own else 0.0)
    return ScanCoefficients(own, solved, implied, float(holds.mean()))


def _terms(seen: Evidence) -> tuple[dict[str, float], dict[str, Numbers]]:
    """Return the coefficients of the recipe, and the numbers that they are of; none if no scan."""
    recipe, stage, estimator = seen.recipe, seen.first.name, seen.resolved.estimator
    discounts = "gamma" in estimator.options and "token_rewards" in estimator.columns
    if not seen.by_token or not discounts or stage not in STAGES:
        return {}, {}
    columns, critic = seen.columns(), "values" in estimator.columns
    known = _REWARDS in seen.first.used
    own, terms = {"next": recipe.gamma}, {"next": seen.recorded}
    if critic:
        lam = ScanCoefficients.lam(recipe, stage)
        own["next"] *= lam
        own["V"] = 0.0 if stage == "returns" else -1.0
        own["V'"] = recipe.gamma * (1 - lam) if stage == "returns" else recipe.gamma
        terms["V"] = terms["V'"] = columns[seen.replayer.rollouts.columns.column("values")]
    if "kl" in columns and not known:
        own["KL"] = -recipe.kl_coef if recipe.numerics.kl_credit == "return" else 0.0
        terms["KL"] = columns["kl"]
    return own, terms


def _holds(
    seen: Evidence,
    left: Codes,
    numbers: Numbers,
    terms: Mapping[str, Numbers],
    by: Mapping[str, float],
) -> NDArray[np.bool_]:
    """Return which numbers are the sum of terms, within the tolerance of all of these."""
    parts = [by[name] * values for name, values in terms.items()]
    size = np.abs(numbers) + sum(np.abs(part) for part in parts)
    near = seen.difference.slack[left] + seen.difference.relative * size
    return np.asarray(np.abs(numbers - sum(parts)) <= near)


def _solved(
    numbers: Numbers, terms: Mapping[str, Numbers], own: Mapping[str, float]
) -> dict[str, float] | None:
    """Return the coefficients of least squares; the recipe's, where they are about these."""
    matrix = np.stack([*terms.values()], axis=1)
    size = np.sqrt((matrix**2).mean(axis=0))
    use = np.isfinite(matrix).all(axis=1) & np.isfinite(numbers)
    some = size > 0
    scaled = matrix[:, some] / size[some]
    for _ in range(_ROUNDS):
        found, _, rank, _ = np.linalg.lstsq(scaled[use], numbers[use], rcond=1e-6)
        if rank < some.sum():
            return None
        residuals = np.abs(numbers - scaled @ found)
        use = np.isfinite(residuals) & (residuals <= np.nanquantile(residuals, _TRIMMED))
    spread = np.sqrt(
        (residuals[use] ** 2).mean() * np.diag(np.linalg.inv(scaled[use].T @ scaled[use]))
    )
    solved = dict(own)
    names = [name for name, one in zip(terms, some, strict=True) if one]
    for name, one, deviation, by in zip(names, found, spread, size[some], strict=True):
        value, error = float(one / by), float(deviation / by)
        if abs(value - own[name]) > max(_SAME * abs(own[name]), _ERRORS * error, _SAME / 10):
            solved[name] = 0.0 if abs(value) <= max(_ERRORS * error, _SAME / 10) else value
    return solved
