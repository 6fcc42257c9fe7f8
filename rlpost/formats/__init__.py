"""The dump formats that rlpost reads: one module each, registered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError
from rlpost.formats import (
    areal,
    generic,
    grail,
    logging_board,
    miles,
    ms_swift,
    nemo_rl,
    open_instruct,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    verl,
)
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from pathlib import Path

    from rlpost.formats.base import Format


FORMATS: dict[str, Format] = {
    dump_format.name: dump_format
    for dump_format in (
        nemo_rl.FORMAT,
        slime.ROLLOUT,
        slime.TRAIN,
        miles.FORMAT,
        prime_rl.TRACES,
        prime_rl.TOKENS,
        open_instruct.FORMAT,
        roll.BOARD,
        logging_board.FORMAT,
        grail.FORMAT,
        roll.ROLLOUT,
        verl.FORMAT,
        trl.FORMAT,
        ms_swift.FORMAT,
        areal.FORMAT,
        skyrl.FORMAT,
        generic.JSONL,
        generic.PARQUET,
    )
}
"""Every format by its name: those with token data, those of texts, anybody's own."""


def format_named(name: str) -> Format:
    """The format of that name; a UsageError with the nearest ones if there is none."""
    if name not in FORMATS:
        near = closest(name, FORMATS) or f" (there are {', '.join(FORMATS)})"
        raise UsageError(f"--from {name}: no such format{near}")
    return FORMATS[name]


def detect(path: Path) -> Format | None:
    """The one format whose sniff knows this file; None where none does.

    Raises:
        UsageError: several do; the candidates are named.
    """
    found = [
        one for one in FORMATS.values() if path.name.endswith(one.suffixes) and one.sniff(path)
    ]
    if len(found) > 1:
        names = " or ".join(one.name for one in found)
        raise UsageError(f"{path}: may be of {names}; say which with --from NAME")
    return found[0] if found else None
