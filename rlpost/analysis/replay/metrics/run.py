"""`rlpost replay --metrics`: the log of a trainer against the rollouts of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost._version import __version__
from rlpost.analysis.replay import rollouts as inputs
from rlpost.analysis.replay.bundle.case import is_bundle, open_bundle
from rlpost.analysis.replay.metrics.replay import TOLERANCE, replay_metrics
from rlpost.analysis.replay.replay import SCHEMA_VERSION
from rlpost.errors import UsageError
from rlpost.io.arrow import is_list
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.recipe.loss import LossOptions

Json = dict[str, Any]
ADVANTAGES = "advantages"


@dataclass(frozen=True)
class MetricRequest:
    """What of a log is compared, and what is known of the loss."""

    metrics: str | Path
    """The log."""
    recipe: Recipe | None = None
    """Of the advantages, if the input has none."""
    loss: LossOptions | None = None
    fixed: frozenset[str] = frozenset()
    """The fields of `loss` that are known; the others are searched for."""
    columns_map: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the log by metric."""
    micro_batch: int | None = None
    ranks: int | None = None
    updates: int | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        """Raise UsageError for a number that is out of range."""
        for name in ("micro_batch", "ranks", "updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} {value}: an integer of at least 1 is needed")
        inputs.check_tolerance(self.tolerance)


def replay_log(paths: Sequence[str], request: MetricRequest) -> Json:
    """Find how the metrics of a log were computed from an input; see `replay_metrics`.

    Raises:
        DataError, UsageError: as `replay_metrics`.
    """
    if len(paths) == 1 and is_bundle(paths[0]):
        with open_bundle(paths[0]) as case:
            found = _replay([str(case.path)], request, case.columns_map)
        return found | {"input": str(paths[0])}
    return _replay(paths, request, {})


def _replay(paths: Sequence[str], request: MetricRequest, others: Mapping[str, str]) -> Json:
    source = Source(find_inputs(list(paths)))
    recipe = request.recipe or Recipe()
    maps = inputs.Maps.of({**recipe.columns, **others, **request.columns_map})
    rollouts = inputs.read(source, maps, None, int(1e18))
    table, roles = with_advantages(rollouts)
    found = replay_metrics(
        table,
        request.metrics,
        recipe.model_copy(update={"columns": roles}),
        request.loss,
        fixed=request.fixed,
        keys=request.keys,
        micro_batch=request.micro_batch,
        ranks=request.ranks,
        updates=request.updates,
        tolerance=request.tolerance,
    )
    if ADVANTAGES not in roles and found["description"]["loss"] is not None:
        found["warnings"].append(
            f"the input has no recorded advantages: {recipe.estimator} computed them; --preset and "
            "--estimator choose others, --map advantages=COLUMN names recorded ones"
        )
    found["warnings"] = [*rollouts.warnings, *found["warnings"]]
    facts = {"schema_version": SCHEMA_VERSION, "rlpost_version": __version__}
    return {**facts, "input": source.name, **found}


def with_advantages(rollouts: Rollouts) -> tuple[pa.Table, dict[str, str]]:
    """Return the table with a list of recorded advantages for each response, and columns by role.

    One number for each response becomes a list, with that number for each token.
    """
    table = rollouts.table
    columns = {role: name for role, name in rollouts.columns.columns.items() if role in ROLES}
    name = rollouts.recorded.get(ADVANTAGES)
    if name is None:
        return table, columns
    if not is_list(table.schema.field(name).type):
        values = rollouts.column(ADVANTAGES).on_tokens(rollouts.offsets)
        lists = pa.LargeListArray.from_arrays(pa.array(rollouts.offsets), pa.array(values))
        own = f"{name} of tokens"
        table, name = table.append_column(own, lists), own
    return table, {**columns, ADVANTAGES: name}
