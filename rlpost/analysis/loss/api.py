"""The Python interface of `rlpost loss`: what policy losses would do to a dump's tokens."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.loss.measure import measure_losses
from rlpost.analysis.loss.plan import WRITTEN, loss_job, scope_of
from rlpost.analysis.loss.report import summarise_losses
from rlpost.analysis.loss.resolved import resolved
from rlpost.analysis.loss.totals import LossTally
from rlpost.analysis.loss.warnings import DUMPED, warnings_of
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.overwrite import check_ours
from rlpost.io.parquet.source import Source
from rlpost.io.places import place_of
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.engine import single_threaded_torch
from rlpost.pipeline.options import Options
from rlpost.pipeline.output import emitted
from rlpost.pipeline.outputs import Outputs, targets_of
from rlpost.pipeline.run import check_clash, engine_of, sink_of
from rlpost.pipeline.stages.loss import LossConfig, tokens_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlpost.analysis.loss.totals import Scope
    from rlpost.io.places import AnyPath
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.engine import Engine, Made
    from rlpost.pipeline.plan import Plan


Json = dict[str, Any]
__all__ = ["LossConfig", "Options", "loss"]


def loss(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    recipe: Recipe | None = None,
    settings: Sequence[LossConfig] = (),
    options: Options | None = None,
) -> Json:
    """What policy losses would do to the tokens of rollout files.

    Args:
        inputs: Parquet files, directories or globs, with `log_probs` and `old_log_probs`.
        output: gets `pg_loss` and `clip_state` beside the input's columns, and the columns of
            `advantages` where these were made; None writes nothing.
        recipe: how advantages are made, where the input has none; the default is plain GRPO.
        settings: the losses to tell of, in one pass over the input; the default is PPO's. The
            output is of the first.
        options: how it is done.

    Returns:
        The summary, as `rlpost loss --format json` prints it.

    Raises:
        UsageError: options, input and output do not fit together.
        DataError: the data is bad: file, row and column are named.
        ReadWriteError: reading or writing failed; no output is left behind.
        UnavailableError: the device is not there.
    """
    recipe, options = recipe or Recipe(), options or Options()
    settings = list(settings) or [LossConfig(LossOptions())]
    paths = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    source = Source(find_inputs([str(path) for path in paths]))
    targets: list[AnyPath] = []
    if output is not None:
        targets = targets_of(source.files, paths, place_of(output), overwrite=options.overwrite)
        check_ours(targets)
    with closing(source), Outputs(targets) as outputs:
        columns = columns_of(source, recipe)
        job = loss_job(source, columns, recipe, settings, write=bool(targets))
        made = () if "advantages" in columns else emitted(job.shape)
        names = (*made, *WRITTEN) if targets else ()
        check_clash(job, names)
        engine = engine_of(job, options)
        with single_threaded_torch():
            summary = _ran(engine, outputs, names, settings)
    return {**summary, "seconds": engine.clock.seconds}


def _tally(
    batch: Batch,
    keys: Tensor,
    *,
    settings: Sequence[LossConfig],
    scope: Scope,
    rewarded: bool,
) -> LossTally:
    tokens = tokens_of(batch, rewarded=rewarded)
    weights = batch.responses.get("sample_weight")
    return measure_losses(tokens, weights, keys, settings, scope)


def _ran(
    engine: Engine, outputs: Outputs, names: tuple[str, ...], settings: Sequence[LossConfig]
) -> Json:
    """Run all passes, the last one over every file, and publish the files when all are complete."""
    job, responses = engine.job, engine.responses()
    scope = scope_of(job, responses, settings)
    total = LossTally.empty(scope, len(settings))
    rewarded = "reward" in job.columns
    engine.tally = partial(_tally, settings=settings, scope=scope, rewarded=rewarded)
    engine.reporter.start("loss", job.source.rows)
    with engine.clock.wall("loss"):
        for index in range(len(job.source.files)):
            total += _file(engine, index, responses, outputs, names, settings, scope)
        job.source.check_unchanged()
        rewritten = outputs.publish()
    summary = _summary(job, responses, total, settings, scope)
    return {
        **summary,
        "warnings": [
            *warnings_of(job, summary, total.odd, settings),
            *responses.notes.get("warnings", []),
        ],
        "rlpost_version": __version__,
        "recipe": job.shape.recipe.model_dump(mode="json"),
        "inputs": [str(file.path) for file in job.source.files],
        "outputs": [str(target) for target in outputs.targets],
        "rewritten": rewritten,
        "halved_pieces": engine.splits,
    }


def _file(
    engine: Engine,
    index: int,
    responses: Responses,
    outputs: Outputs,
    names: tuple[str, ...],
    settings: Sequence[LossConfig],
    scope: Scope,
) -> LossTally:
    """The last pass over one file, which is written where there are names of columns."""
    job, clock = engine.job, engine.clock
    tally = LossTally.empty(scope, len(settings))
    if not names:
        return sum((made.tally for made in engine.written(index, responses, (), _kept)), tally)
    first, last = job.source.first_rows[index : index + 2]
    sink = outputs.open(index, partial(sink_of, job, index, names=names))
    made: Made
    for made in engine.written(index, responses, names, sink.encode):
        with clock.busy("copy"):
            for row_group, columns in made.parts:
                sink.append(row_group, columns)
        tally += made.tally
    with clock.busy("copy"):
        summary = _summary(job, responses.rows(first, last), tally, settings, scope)
        sink.complete(_metadata(job, summary, settings[0], index))
    return tally


def _kept(columns: Any) -> Any:
    return columns


def _summary(
    job: Plan, responses: Responses, tally: LossTally, settings: Sequence[LossConfig], scope: Scope
) -> Json:
    """The numbers of the rows that a tally counted, and where their advantages come from."""
    given = "advantages" in job.columns
    return {
        **summarise_losses(job, responses, tally, settings, scope),
        "advantages_from": job.columns.column("advantages") if given else "recipe",
        "estimator": None if given else job.shape.estimator.name,
        "advantages_aside": None if given else _aside(job),
    }


def _aside(job: Plan) -> str | None:
    """A column of advantages that is in the input, and was not used."""
    names = ("advantages", DUMPED)
    return next((name for name in names if name in job.source.columns), None)


def _metadata(job: Plan, summary: Json, setting: LossConfig, index: int) -> dict[str, str]:
    """What the file says of how it was made; the same bytes for the same input and options."""
    recipe = job.shape.recipe.model_dump_json()
    return {
        "rlpost.version": __version__,
        **({"rlpost.recipe": recipe} if summary["estimator"] else {}),
        "rlpost.input": job.source.files[index].path.name,
        "rlpost.loss": json.dumps(resolved(setting)),
        "rlpost.loss_summary": json.dumps(summary),
    }
