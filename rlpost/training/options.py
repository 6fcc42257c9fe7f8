"""Checks of the options of `rlpost.load`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import wraps
from hashlib import sha256
from inspect import signature
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from rlpost.errors import UsageError, no_such, warn_caller
from rlpost.io.parquet.fingerprint import fingerprint_of
from rlpost.pipeline.columns import FINAL_MASK, lost_mask
from rlpost.training.order import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.io.parquet.source import Source
    from rlpost.training.columns import TrainingColumns


P = ParamSpec("P")
_NAMED_FILES = 16
_MOST, _MOST_RANKS = (1 << 62) - 1, 1 << 20


def warn_of_masks(source: Source, columns: TrainingColumns) -> None:
    """Warn if the recipe of the files masks responses or tokens, and the files lack the mask."""
    final, sample = columns.mask == FINAL_MASK, columns.sample_mask is not None
    if text := lost_mask(source, final=final, sample=sample):
        warn_caller(f"{text}, and all are trained on")


def check_options(
    batch_size: int | None,
    batch_tokens: int | None,
    layout: str,
    shuffle: int | None,
    last: str,
    together: str | None,
    drop_masked: object,
    **numbers: int,
) -> None:
    """Raise UsageError for options that are out of range or do not fit together."""
    least = {"rank": 0, "epoch": 0, "shuffle": 0}
    optional = {"batch_size": batch_size, "batch_tokens": batch_tokens, "shuffle": shuffle}
    given = {name: number for name, number in optional.items() if number is not None}
    for name, number in {**numbers, **given}.items():
        check_whole("load", name, number, least.get(name, 1))
    wrong = (
        (not {"batch_size", "batch_tokens"} & {*given}, "batch_size= or batch_tokens= is needed"),
        (
            {"batch_size", "batch_tokens"} <= {*given},
            f"batch_size={batch_size} and batch_tokens={batch_tokens}: only one of them is needed",
        ),
        (layout not in ("padded", "packed"), f"layout={layout!r}: padded or packed is needed"),
        (last not in ("even", "keep", "drop"), f"last={last!r}: even, keep or drop is needed"),
        (
            together not in (None, *UNITS),
            f"together={together!r}: {', '.join(UNITS)} or None is needed",
        ),
        (
            not isinstance(drop_masked, bool),
            f"drop_masked={drop_masked!r}: True or False is needed",
        ),
        (
            numbers["rank"] >= numbers["world_size"],
            f"rank={numbers['rank']}: less than world_size={numbers['world_size']} is needed",
        ),
    )
    for is_wrong, text in wrong:
        if is_wrong:
            raise UsageError(f"load: {text}")


def named_options(where: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a function raise UsageError, with the closest name, for an option that it lacks."""

    def wrapped(function: Callable[P, None]) -> Callable[P, None]:
        known = [name for name in signature(function).parameters if name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in known:
                    raise UsageError(no_such(f"{where}: no option {name!r}", name, known))
            function(*args, **kwargs)

        return checked

    return wrapped


def check_whole(where: str, name: str, number: object, least: int) -> None:
    """Raise UsageError if a number is no whole number from `least` on, of 64 bits at most."""
    most = _MOST_RANKS if name == "world_size" else _MOST
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        too_large = isinstance(number, int) and number > most
        kind = f"a whole number from {least}" + (f" to {most}" if too_large else "")
        needed = f"a seed ({kind})" if name == "shuffle" else kind
        raise UsageError(f"{where}: {name}={number!r}: {needed} is needed")


def check_columns_map(columns_map: object) -> None:
    """Raise UsageError if it does not map roles to columns."""
    pairs = columns_map.items() if isinstance(columns_map, Mapping) else [(None,)]
    if columns_map is not None and any(not isinstance(x, str) for pair in pairs for x in pair):
        raise UsageError(
            f"load: columns_map={columns_map!r}: a dict of role and column is needed, such as "
            "{'reward': 'score'}"
        )


def rollout_steps(steps: object) -> range | list[int | str] | None:
    """Return the rollout steps to train on, sorted; None for all.

    Raises:
        UsageError: they are no collection of whole numbers or texts.
    """
    if steps is None or (isinstance(steps, range) and steps):
        return steps
    listed: list[Any] = []
    if isinstance(steps, Collection) and not isinstance(steps, str | bytes | Mapping):
        listed = [one.item() if isinstance(one, np.generic) else one for one in steps]
    if not listed or any(isinstance(x, bool) or not isinstance(x, int | str) for x in listed):
        raise UsageError(
            f"load: steps={steps!r}: a list of rollout steps is needed, such as [3] or "
            "range(10, 20)"
        )
    return sorted(listed, key=lambda one: (isinstance(one, str), one))


def file_facts(source: Source) -> list[list[Any]]:
    """Return the name, the rows and a digest of the identity of each file.

    The identity is the size, the footer and the time of change or the ETag.

    Many files are one entry after the first ones, since each batch has a state.
    """
    facts: list[list[Any]] = [
        [
            str(file.relative),
            footer.num_rows,
            _digest([digest, *(fingerprint or fingerprint_of(file.path) or ())]),
        ]
        for file, footer, digest, fingerprint in zip(
            source.files, source.footers, source.footer_digests, source.fingerprints, strict=True
        )
    ]
    shown, rest = facts[:_NAMED_FILES], facts[_NAMED_FILES:]
    if rest:
        shown.append([f"{len(rest)} more files", sum(one[1] for one in rest), _digest(rest)])
    return shown


def _digest(numbers: list[Any]) -> str:
    return sha256(json.dumps(numbers).encode()).hexdigest()[:8]


def file_difference(state: Sequence[Sequence[Any]], here: Sequence[Sequence[Any]]) -> str:
    """Return the first file in which a state differs, and how."""
    for was, own in zip_longest(state, here):
        if was == own:
            continue
        if was is None or own is None:
            name, rows, _ = was or own
            return f"{name} ({rows:,} rows) is {'new' if was is None else 'missing'}"
        if was[0] != own[0]:
            return f"{was[0]} ({was[1]:,} rows) was in the place of {own[0]} ({own[1]:,} rows)"
        if was[1] != own[1]:
            return f"{own[0]} had {was[1]:,} rows and has {own[1]:,}"
        return f"{own[0]} was written again"
    return "they are others"


def difference(state: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the first option in which a state differs, by its name in `load`."""
    names = {"size": "batch_size", "tokens": "batch_tokens", "seed": "shuffle"}
    for name, value in here.items():
        if state.get(name) != value:
            was, own = state.get(name), value
            if name == "padded":
                was, own = ("padded" if one else "packed" for one in (was, own))
            shown = "layout" if name == "padded" else names.get(name, name)
            return f"{shown} was {was!r} and is {own!r}"
    return "it has other options"
