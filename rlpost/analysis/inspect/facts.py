"""The way in: `inspect` reads rollout files once and says what is in them; `stored` none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost._version import __version__
from rlpost.analysis.inspect.advantages import advantage_facts
from rlpost.analysis.inspect.findings import Case, found
from rlpost.analysis.inspect.footers import input_facts, role_facts
from rlpost.analysis.inspect.model import Facts
from rlpost.analysis.inspect.reading import read, wanted_of
from rlpost.analysis.inspect.responses import (
    group_facts,
    group_table,
    length_facts,
    reward_facts,
    slices_of,
)
from rlpost.analysis.inspect.token_facts import mask_facts, token_facts
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.inspect.model import InputFacts, RoleFacts


def stored(
    inputs: Sequence[str | Path], *, columns_map: Mapping[str, str] | None = None
) -> tuple[InputFacts, dict[str, RoleFacts]]:
    """What the footers alone tell, and which columns serve: no row is read.

    Raises:
        UsageError, DataError, ReadWriteError: as `inspect`.
    """
    source = Source(find_inputs([str(path) for path in inputs]))
    columns = resolve(source.columns, columns_map or {}, source.name)
    return input_facts(source, columns), role_facts(source, columns)


def inspect(
    inputs: str | Path | Sequence[str | Path],
    *,
    columns_map: Mapping[str, str] | None = None,
    tokens: bool = True,
    pass_threshold: float = 1.0,
) -> Facts:
    """Everything that `rlpost inspect` says of an input.

    The files are streamed once, in pieces of about half a million tokens; only a few
    numbers per response are held. Numbers that `rlpost advantages` reports too are the same.

    Args:
        inputs: Parquet files, directories or globs.
        columns_map: role to column, as `--map` says; beats names and aliases.
        tokens: read log-probs, values and texts too; without them masks, lengths, rewards and
            groups are still told.
        pass_threshold: a response passes with at least this reward.

    Returns:
        A tree of plain dataclasses; `.as_json()` gives it as JSON data.

    Raises:
        UsageError: `columns_map` names an unknown role.
        DataError: a file is not Parquet, or `columns_map` names a column that is not there.
        ReadWriteError: an input can't be read, or a glob matches nothing.
    """
    start = time.perf_counter()
    inputs = [inputs] if isinstance(inputs, (str, Path)) else inputs
    source = Source(find_inputs([str(path) for path in inputs]))
    columns = resolve(source.columns, columns_map or {}, source.name)
    stored = input_facts(source, columns)
    reading = read(source, wanted_of(source, columns, with_tokens=tokens))
    rows = reading.rows
    groups = group_table(rows, pass_threshold)
    case = Case(
        reading=reading,
        input=stored,
        group_rows=groups,
        groups=group_facts(groups, reading.wanted.columns, pass_threshold),
        rewards=reward_facts(reading),
        lengths=length_facts(reading),
        masks=mask_facts(reading),
        tokens=token_facts(reading),
    )
    return Facts(
        inputs=[str(path) for path in inputs],
        input=stored,
        roles=role_facts(source, columns),
        responses=len(rows),
        tokens={"all": int(rows["length"].sum()), "policy": int(rows["tokens"].sum())}
        if "tokens" in rows
        else None,
        groups=case.groups,
        rewards=case.rewards,
        lengths=case.lengths,
        masks=case.masks,
        token_facts=case.tokens,
        steps=slices_of(rows, groups, "batch", pass_threshold),
        domains=slices_of(rows, groups, "domain", pass_threshold),
        findings=found(case),
        seconds=time.perf_counter() - start,
        rlpost_version=__version__,
        advantages=advantage_facts(reading.rows, reading.wanted.advantages),
    )
