"""Tokens with both log-probs: a sample of windows of neighbours, and those that differ most.

The sample is of windows of consecutive policy tokens, those with the smallest hash of their content
up to a number of tokens. So it does not depend on chunks, on the order of rows or on files, and an
input with fewer tokens is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.causes import ComparedTokens
from rlpost.analysis.inspect.model import LargestToken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Block

    Integers = NDArray[np.int64]


MOST_TOKENS = 1 << 18
WINDOW = 64  # policy tokens
LARGEST = 10
LEAST_STUCK = 3  # steps with one version
MOST_LAG = 16  # of the freshest token; more is another count than that of steps
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


@dataclass
class TokenSample:
    """The sample of a stream of blocks."""

    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    """By name: `hash`, `row`, `size` of windows, and values of their tokens."""
    tokens: int = 0
    rows: int = 0
    """Responses of the chunks so far."""
    bound: int = np.iinfo(np.uint64).max
    """The largest hash of a window that is kept."""
    largest: list[tuple[float, int, int, float, float]] = field(default_factory=list)
    """|d|, row, position in its list, old, infer."""

    def add(self, block: Block, rows: Integers, extra: Mapping[str, NDArray[Any]]) -> None:
        """Add the policy tokens of responses.

        Args:
            block: with both log-probs.
            rows: [n] numbers of the responses in the input.
            extra: more values of all its tokens, [T] each.
        """
        policy = block.policy()
        offsets = policy.offsets
        lengths = np.diff(offsets)
        if not offsets[-1]:
            return
        self._add_largest(block, policy, rows)
        pieces = -(-lengths // WINDOW)
        owner = np.repeat(np.arange(len(lengths)), pieces)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = offsets[owner] + place * WINDOW
        end = np.minimum(first + WINDOW, offsets[owner + 1])
        hashes = _hashes(policy, first, end, place, lengths[owner])
        kept = np.flatnonzero(hashes <= np.uint64(self.bound))
        if not len(kept):
            return
        first, size, owner = first[kept], (end - first)[kept], owner[kept]
        index = np.repeat(first - np.cumsum(size) + size, size) + np.arange(int(size.sum()))
        since, turn = _places(block, policy, index, np.repeat(owner, size))
        part = {"hash": hashes[kept], "row": rows[owner], "size": size, "since": since}
        part |= {"later": turn, "old": policy.values["old_log_probs"][index]}
        part |= {"infer": policy.values["infer_log_probs"][index]}
        for name, values in extra.items():
            part[name] = (values if block.mask is None else values[block.mask])[index]
        self.parts.append(part)
        self.tokens += len(index)
        if self.tokens > 2 * MOST_TOKENS:
            self._prune()

    def _prune(self) -> None:
        """Keep the windows with the smallest hashes, as many as have MOST_TOKENS tokens."""
        names = [*self.parts[0]]
        every = {name: np.concatenate([part[name] for part in self.parts]) for name in names}
        order = np.lexsort((every["row"], every["hash"]))
        fits = np.cumsum(every["size"][order]) <= MOST_TOKENS
        fits[0] = True
        chosen = order[fits]
        starts = np.cumsum(every["size"]) - every["size"]
        size = every["size"][chosen]
        index = np.repeat(starts[chosen] - np.cumsum(size) + size, size)
        index += np.arange(int(size.sum()))
        of_windows = ("hash", "row", "size")
        self.parts = [{n: every[n][chosen if n in of_windows else index] for n in names}]
        self.tokens = int(size.sum())
        if not fits.all():
            self.bound = int(every["hash"][chosen[-1]])

    def _add_largest(self, block: Block, policy: Block, rows: Integers) -> None:
        """Add the tokens whose |d| is among the largest."""
        old, infer = policy.values["old_log_probs"], policy.values["infer_log_probs"]
        size = np.abs(old - infer)
        least = self.largest[-1][0] if len(self.largest) == LARGEST else 0.0
        places = np.flatnonzero(size > least)
        if len(places) > LARGEST:
            places = places[np.argpartition(-size[places], LARGEST - 1)[:LARGEST]]
        for place in places[np.isfinite(size[places])].tolist():
            own = int(np.searchsorted(policy.offsets, place, side="right")) - 1
            position = place - int(policy.offsets[own])
            if block.mask is not None:
                mask = block.mask[block.offsets[own] : block.offsets[own + 1]]
                position = int(np.flatnonzero(mask)[position])
            numbers = float(old[place]), float(infer[place])
            self.largest.append((float(size[place]), int(rows[own]), position, *numbers))
        self.largest.sort(key=lambda one: (-one[0], *one[1:]))
        del self.largest[LARGEST:]

    def largest_tokens(self, rows: pl.DataFrame, files: Sequence[str]) -> list[LargestToken]:
        """Return the tokens with the largest |d|, the largest first."""
        return [
            LargestToken(files[int(rows["file"][row])], int(rows["row"][row]), place, infer, old)
            for _, row, place, old, infer in self.largest
        ]

    def compared(self, rows: pl.DataFrame, machines: Sequence[str]) -> ComparedTokens | None:
        """Return the tokens of the sample with the labels of their rows; None if there are none.

        Args:
            rows: of the whole input.
            machines: columns of hosts, ranks or workers among them.
        """
        if not self.parts:
            return None
        self._prune()
        (part,) = self.parts
        window = np.repeat(np.arange(len(part["size"])), part["size"])
        row = part["row"][window]
        step, steps = _labels(rows["batch"]) if "batch" in rows else (None, [])
        versions = rows["version"].to_numpy().astype(np.float64) if "version" in rows else None
        lags = None if versions is None else _lags(versions, step, steps)
        version, lag = (None if one is None else one[row] for one in (versions, lags))
        if "version" in part:
            version = part["version"].astype(np.float64)
            lag = _lags(version, None if step is None else step[row], steps)
        labels = {name: _labels(rows[f"machine:{name}"]) for name in machines}
        return ComparedTokens(
            old=part["old"].astype(np.float64),
            infer=part["infer"].astype(np.float64),
            window=window,
            since=part["since"],
            later=part["later"],
            entropy=part["entropy"].astype(np.float64) if "entropy" in part else None,
            lag=lag,
            step=None if step is None else step[row],
            steps=steps,
            machines={name: (codes[row], own) for name, (codes, own) in labels.items()},
            stuck=None if version is None or step is None else _stuck(version, step[row], steps),
            first=_first_tokens(rows, lags, step, steps),
        ).finite()


def _first_tokens(
    rows: pl.DataFrame, lag: NDArray[np.float64] | None, step: Integers | None, steps: Sequence[Any]
) -> ComparedTokens | None:
    """Return the first tokens of responses, in windows of a context; None if it is unknown.

    Responses of one prompt have one context, but for later turns and after observations. Without a
    column of prompts, responses of a group are assumed to have one prompt.
    """
    prompts = "prompt" in rows
    if not prompts and "group" not in rows:
        return None
    keys = [key for key in ("batch", "group", "prompt") if key in rows]
    codes = rows.select(pl.struct(keys).rank("dense").cast(pl.Int64)).to_series().to_numpy()
    none = np.zeros(len(rows), np.int64)
    tokens = ComparedTokens(
        old=rows["first:old_log_probs"].to_numpy(),
        infer=rows["first:infer_log_probs"].to_numpy(),
        window=codes,
        since=none,
        later=none > 0,
        lag=lag,
        step=step,
        steps=steps,
        context="prompt" if prompts else "group, assumed to have one prompt",
    )
    known = ~rows["leading"].to_numpy() & _is_first_turn(rows)
    if prompts:
        known &= rows["prompt"].to_numpy() != 0
    tokens = tokens.chosen(known).finite()
    return tokens.chosen(np.argsort(tokens.window, kind="stable"))


def _is_first_turn(rows: pl.DataFrame) -> NDArray[np.bool_]:
    """Return whether a response is the first of its rollout; of several without turns, none is."""
    if "rollout" not in rows:
        return np.ones(len(rows), np.bool_)
    alone = pl.len().over("rollout") == 1
    first = pl.col("turn") == pl.col("turn").min().over("rollout") if "turn" in rows else False
    known = pl.col("rollout").is_null() | alone | first
    return rows.select(known.fill_null(value=False)).to_series().to_numpy()


def _hashes(
    policy: Block, first: Integers, end: Integers, place: Integers, lengths: Integers
) -> NDArray[np.uint64]:
    """Return the hash of each window: of its first, middle and last values, and its place."""
    total = place.astype(np.uint64) * _MIX[0] + lengths.astype(np.uint64)
    for role in ("infer_log_probs", "old_log_probs"):
        for at in (first, (first + end) // 2, end - 1):
            bits = policy.values[role][at].astype(np.float64).view(np.uint64)
            total = (total ^ (bits ^ (bits >> np.uint64(29)))) * _MIX[1]
            total ^= total >> np.uint64(32)
    return total * _MIX[0]


def _places(
    block: Block, policy: Block, index: Integers, owner: Integers
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return how many policy tokens of its turn come before each token, and whether it is later.

    Args:
        block: with observations.
        policy: without.
        index: [t] tokens of `policy`.
        owner: [t] their responses.
    """
    start = policy.offsets[owner]
    if block.mask is None:
        return index - start, np.zeros(len(index), np.bool_)
    begins = np.flatnonzero(block.mask[1:] & ~block.mask[:-1]) + 1
    before = np.cumsum(block.mask)
    turns = np.sort(np.concatenate([before[begins] - 1, policy.offsets[:-1]]))
    latest = turns[np.searchsorted(turns, index, side="right") - 1]
    latest = np.maximum(latest, start)
    return index - latest, latest > start


def _labels(keys: pl.Series) -> tuple[Integers, list[Any]]:
    """Return codes of keys in the order of the keys, -1 for null, and the keys."""
    labels = keys.drop_nulls().unique().sort()
    codes = pl.Series(np.arange(len(labels)))
    own = keys.replace_strict(labels, codes, default=-1, return_dtype=pl.Int64)
    return own.fill_null(-1).to_numpy(), labels.to_list()


def _lags(
    version: NDArray[np.float64], step: Integers | None, steps: Sequence[Any]
) -> NDArray[np.float64]:
    """Return the age of the policy that sampled each token, in versions.

    It is the step minus the version, if steps are numbers close to the versions. Else it counts
    from the newest version of the step, or of the input without steps.
    """
    if step is None or not (known := step >= 0).any():
        return np.nanmax(version, initial=-np.inf) - version
    if all(isinstance(one, int) for one in steps):
        lag = np.where(known, np.array(steps, np.float64)[step], np.nan) - version
        low = float(np.nanmin(lag, initial=np.inf))
        if -1 - len(steps) / 2 <= low <= MOST_LAG:
            return lag
    newest = np.full(len(steps), -np.inf)
    np.fmax.at(newest, step[known], version[known])
    return np.where(known, newest[step], np.nan) - version


def _stuck(version: NDArray[np.float64], step: Integers, steps: Sequence[Any]) -> Any:
    """Return the first of at least 3 last steps whose only version is the same; None if none."""
    low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    known = step >= 0
    np.fmin.at(low, step[known], version[known])
    np.fmax.at(high, step[known], version[known])
    same = (low == high) & (high == high[-1:])
    count = int(np.cumprod(same[::-1]).sum())
    return steps[-count] if count >= LEAST_STUCK else None
