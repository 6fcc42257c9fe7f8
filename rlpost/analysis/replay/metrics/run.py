"""`rlpost replay --metrics`: the log of a trainer against the rollouts of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.replay.differences import check_tolerance
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.metrics.configurations import TOLERANCE
from rlpost.analysis.replay.metrics.replay import replay_metrics
from rlpost.analysis.replay.metrics.source import ADVANTAGES, ColumnsSource, columns_of_log
from rlpost.analysis.replay.replay import SCHEMA_VERSION
from rlpost.errors import UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlpost.io.paths import PathText
    from rlpost.recipe.loss import LossOptions

Json = dict[str, Any]


@dataclass(frozen=True)
class MetricRequest:
    """What of a log is compared, and by which configuration."""

    metrics: str | Path
    """The log."""
    loss: LossOptions
    """The policy loss of the run."""
    stated: frozenset[str]
    """The fields of `loss` that stay; others are replaced if the log needs other values."""
    recipe: Recipe | None = None
    """Of the advantages, if the input has none."""
    columns_map: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the log by metric."""
    split: Mapping[str, int] = field(default_factory=dict)
    """`micro_batch`, `ranks` and `updates`, as far as they are known."""
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        """Raise UsageError for a number that is out of range."""
        for name, value in self.split.items():
            if value < 1:
                raise UsageError(f"{flag_of(name)} {value}: an integer of at least 1 is needed")
        check_tolerance(self.tolerance)


def replay_log(paths: Sequence[PathText], request: MetricRequest) -> Json:
    """Find how the metrics of a log were computed from an input; see `replay_metrics`.

    Raises:
        DataError, UsageError: as `replay_metrics`.
    """
    source = ColumnsSource(find_inputs(paths))
    recipe = request.recipe or Recipe()
    roles = columns_of_log(source, NamedColumns.of({**recipe.columns, **request.columns_map}))
    found = replay_metrics(
        source,
        request.metrics,
        recipe.model_copy(update={"columns": roles}),
        request.loss,
        stated=request.stated,
        keys=request.keys,
        split=request.split,
        tolerance=request.tolerance,
    )
    if ADVANTAGES not in roles and found["description"]["loss"] is not None:
        found["warnings"].append(
            f"the input has no recorded advantages: {recipe.estimator} computed them; --preset and "
            "--estimator choose others, --map advantages=COLUMN names recorded ones"
        )
    facts = {"schema_version": SCHEMA_VERSION, "rlpost_version": __version__}
    return {**facts, "input": source.name, **found}
