"""Tokens with several log-probs: a sample of windows of neighbours, and those that differ most.

The sample is of windows of consecutive policy tokens, those with the smallest hash of their content
up to a number of tokens. So it does not depend on chunks, on the order of rows or on files, and an
input with fewer tokens is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.alignment import best_lag
from rlpost.analysis.inspect.causes import ComparedTokens
from rlpost.analysis.inspect.model import LargestToken, Shift
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.tokens import Block

    Integers = NDArray[np.int64]


MOST_TOKENS = 1 << 18
WINDOW = 64  # policy tokens
LARGEST = 10
LEAST_STUCK = 3  # steps with one version
MOST_LAG = 16  # of the freshest token; more is another count than that of steps
ROLES, OTHERS = ("infer_log_probs", "old_log_probs", "ref_log_probs"), ("entropy", "version")
"""The columns of tokens that are kept."""
_OF_WINDOWS = ("hash", "row", "size")
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


@dataclass
class TokenSample:
    """The sample of a stream of blocks."""

    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    """By name: `hash`, `row`, `size` of windows, and values of their tokens."""
    tokens: int = 0
    bound: int = np.iinfo(np.uint64).max
    """The largest hash of a window that is kept."""
    largest: list[tuple[float, int, int, float, float]] = field(default_factory=list)
    """|d|, row, position in its list, old, infer."""

    def add(self, block: Block, begin: int) -> None:
        """Add the policy tokens of responses of a chunk, whose first one has the number `begin`."""
        policy, rows = block.policy(), begin + block.places
        offsets = policy.offsets
        lengths = np.diff(offsets)
        present = [role for role in ROLES if role in policy.values]
        if not offsets[-1] or len(present) < 2:  # noqa: PLR2004
            return
        if {*LOG_PROB_PAIRS[0]} <= {*present}:
            self._add_largest(block, policy, rows)
        pieces = -(-lengths // WINDOW)
        owner = np.repeat(np.arange(len(lengths)), pieces)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = offsets[owner] + place * WINDOW
        end = np.minimum(first + WINDOW, offsets[owner + 1])
        hashes = _hashes(policy, present[:2], (first, end, place), lengths[owner])
        kept = np.flatnonzero(hashes <= np.uint64(self.bound))
        if not len(kept):
            return
        first, size, owner = first[kept], (end - first)[kept], owner[kept]
        index = _ranges(first, size)
        part = {"hash": hashes[kept], "row": rows[owner], "size": size}
        part |= {x: policy.values[x][index] for x in (*present, *OTHERS) if x in policy}
        unknown = np.full(len(index), np.nan)
        part |= {role: unknown for role in ROLES if role not in present}
        self.parts.append(part | _places(block, policy, index, np.repeat(owner, size)))
        self.tokens += len(index)
        if self.tokens > 2 * MOST_TOKENS:
            self._prune()

    def _prune(self) -> None:
        """Keep the windows with the smallest hashes, as many as have MOST_TOKENS tokens."""
        joined = {
            name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]
        }
        order = np.lexsort((joined["row"], joined["hash"]))
        fits = np.cumsum(joined["size"][order]) <= MOST_TOKENS
        fits[0] = True
        chosen = order[fits]
        starts = np.cumsum(joined["size"]) - joined["size"]
        size = joined["size"][chosen]
        index = _ranges(starts[chosen], size)
        self.parts = [
            {name: x[chosen if name in _OF_WINDOWS else index] for name, x in joined.items()}
        ]
        self.tokens = len(index)
        if not fits.all():
            self.bound = int(joined["hash"][chosen[-1]])

    def _add_largest(self, block: Block, policy: Block, rows: Integers) -> None:
        """Add the tokens whose |d| is among the largest."""
        old, infer = policy.values["old_log_probs"], policy.values["infer_log_probs"]
        size = np.abs(old - infer)
        least = self.largest[-1][0] if len(self.largest) == LARGEST else 0.0
        chosen = np.flatnonzero((size > least) & (size < np.inf))
        if not len(chosen):
            return
        if len(chosen) > LARGEST:
            chosen = chosen[np.argpartition(-size[chosen], LARGEST - 1)[:LARGEST]]
        place = chosen if block.mask is None else np.flatnonzero(block.mask)[chosen]
        row = np.searchsorted(block.offsets, place, side="right") - 1
        numbers = size[chosen], rows[row], place - block.offsets[row], old[chosen], infer[chosen]
        self.largest += zip(*(values.tolist() for values in numbers), strict=True)
        self.largest.sort(key=lambda token: (-token[0], *token[1:]))
        del self.largest[LARGEST:]

    def largest_tokens(self, rows: pl.DataFrame, files: Sequence[str]) -> list[LargestToken]:
        """Return the tokens with the largest |d|, the largest first."""
        file, number = rows["file"], rows["row"]
        return [
            LargestToken(files[int(file[row])], int(number[row]), place, infer, old)
            for _, row, place, old, infer in self.largest
        ]

    def _tokens(self) -> tuple[dict[str, NDArray[Any]], Integers, Integers]:
        """Return the values of the tokens, their windows, and the numbers of their responses."""
        self._prune()
        (part,) = self.parts
        window = np.repeat(np.arange(len(part["size"])), part["size"])
        values = {name: x for name, x in part.items() if name not in _OF_WINDOWS}
        return values, window, part["row"][window]

    def shifts(self, rows: pl.DataFrame) -> dict[tuple[str, str], dict[Any, Shift]]:
        """Return the best lag of each pair of columns, of all tokens (None) and of each step.

        A trainer may misalign lists from some step on.

        Args:
            rows: of the whole input.
        """
        if not self.parts:
            return {}
        values, window, row = self._tokens()
        codes, labels = _labels(rows["batch"]) if "batch" in rows else (np.full(len(rows), -1), [])
        order = np.argsort(codes[row], kind="stable")
        bounds = np.searchsorted(codes[row][order], np.arange(len(labels) + 1))
        places = {None: slice(None)} | {
            label: order[bounds[at] : bounds[at + 1]] for at, label in enumerate(labels)
        }
        return {
            (left, right): {
                label: shift
                for label, at in places.items()
                if (
                    shift := best_lag(
                        (left, right), values[left][at], values[right][at], window[at]
                    )
                )
            }
            for left, right in LOG_PROB_PAIRS
        }

    def compared(self, rows: pl.DataFrame, machines: Sequence[str]) -> ComparedTokens | None:
        """Return the tokens of the sample with the labels of their rows; None if there are none.

        Args:
            rows: of the whole input.
            machines: columns of hosts, ranks or workers among them.
        """
        if not self.parts:
            return None
        values, window, row = self._tokens()
        keys = {name: rows[f"machine:{name}"] for name in machines}
        keys |= {"step": rows["batch"]} if "batch" in rows else {}
        labels = {name: _labels(column) for name, column in keys.items()}
        labels = {name: (codes[row], names) for name, (codes, names) in labels.items()}
        step, steps = labels.get("step", (np.full(len(row), -1), []))
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            old, infer, entropy, version = (
                None if x is None else x.astype(np.float64)
                for x in map(values.get, (*LOG_PROB_PAIRS[0], *OTHERS))
            )
        if version is None and "version" in rows:
            version = rows["version"].to_numpy()[row].astype(np.float64)
        assert old is not None
        assert infer is not None
        tokens = ComparedTokens(
            old,
            infer,
            window,
            values["since"],
            values["until"],
            values["later"],
            entropy=entropy,
            lag=None if version is None else _lags(version, step, steps),
            labels=labels,
            stuck=None if version is None else _stuck(version, step, steps),
        )
        number = tokens.d if tokens.entropy is None else tokens.d + tokens.entropy
        return tokens.chosen(np.isfinite(number))


def _ranges(first: Integers, size: Integers) -> Integers:
    """Return the indices of ranges that begin at `first`, [sum of sizes]."""
    return np.repeat(first - np.cumsum(size) + size, size) + np.arange(int(size.sum()))


def _hashes(
    policy: Block, roles: Sequence[str], windows: tuple[Integers, Integers, Integers],
    lengths: Integers,
) -> NDArray[np.uint64]:  # fmt: skip
    """Return the hash of each window: of its first, middle and last values, and its place.

    Args:
        policy: the tokens.
        roles: of two columns.
        windows: where each begins and ends, and its number in the response.
        lengths: of the responses.
    """
    first, end, place = windows
    total = place.astype(np.uint64) * _MIX[0] + lengths.astype(np.uint64)
    for role in roles:
        for at in (first, (first + end) // 2, end - 1):
            bits = policy.values[role][at].astype(np.float64).view(np.uint64)
            total = (total ^ (bits ^ (bits >> np.uint64(29)))) * _MIX[1]
            total ^= total >> np.uint64(32)
    return total * _MIX[0]


def _places(
    block: Block, policy: Block, index: Integers, owner: Integers
) -> dict[str, NDArray[Any]]:
    """Return where in its turn each token is, and whether the turn is a later one, [t] each.

    Args:
        block: with observations.
        policy: without.
        index: [t] tokens of `policy`.
        owner: [t] their responses.
    """
    turns = policy.offsets
    if block.mask is not None:
        begins = np.flatnonzero(block.mask[1:] & ~block.mask[:-1]) + 1
        turns = np.union1d(np.cumsum(block.mask)[begins] - 1, turns)
    turn = np.searchsorted(turns, index, side="right")
    since, until = index - turns[turn - 1], turns[turn] - 1 - index
    return {"since": since, "until": until, "later": turns[turn - 1] > policy.offsets[owner]}


def _labels(keys: pl.Series) -> tuple[Integers, list[Any]]:
    """Return codes of keys in the order of the keys, -1 for null, and the keys."""
    labels = keys.drop_nulls().unique().sort()
    codes = pl.Series(np.arange(len(labels)))
    coded = keys.replace_strict(labels, codes, default=-1, return_dtype=pl.Int64)
    return coded.fill_null(-1).to_numpy(), labels.to_list()


def _lags(
    version: NDArray[np.float64], step: Integers, steps: Sequence[Any]
) -> NDArray[np.float64]:
    """Return the age of the policy that sampled each token, in versions.

    It is the step minus the version, if steps are numbers close to the versions. Else it counts
    from the newest version of the step, or of the input without steps.
    """
    known = step >= 0
    if not known.any():
        return np.nanmax(version, initial=-np.inf) - version
    if all(isinstance(label, int) for label in steps):
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
