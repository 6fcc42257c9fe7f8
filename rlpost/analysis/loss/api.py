"""The Python interface of `rlpost loss`: what policy losses would do to a dump's tokens."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
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
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import parse_path
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.engine import single_threaded_torch
from rlpost.pipeline.options import Options
from rlpost.pipeline.output import emitted
from rlpost.pipeline.outputs import Outputs, targets_of
from rlpost.pipeline.run import check_clash, engine_for, run_facts, write_files
from rlpost.pipeline.stages.loss import LossConfig, tokens_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.loss.totals import Scope
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.engine import Engine
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
        targets = targets_of(source.files, paths, parse_path(output), overwrite=options.overwrite)
        check_overwritable(targets)
    with closing(source), Outputs(targets) as outputs:
        columns = columns_of(source, recipe)
        job = loss_job(source, columns, recipe, settings, write=bool(targets))
        made = () if "advantages" in columns else emitted(job.resolved)
        names = (*made, *WRITTEN) if targets else ()
        check_clash(job, names)
        engine = engine_for(job, options)
        with single_threaded_torch():
            summary = _ran(engine, outputs, names, settings)
    return {**summary, "seconds": engine.clock.seconds}


def _tally(
    batch: Batch, *, settings: Sequence[LossConfig], scope: Scope, rewarded: bool
) -> LossTally:
    tokens = tokens_of(batch, rewarded=rewarded)
    weights = batch.responses.get("sample_weight")
    return measure_losses(tokens, weights, batch.responses["cell"].cpu(), settings, scope)


def _ran(
    engine: Engine, outputs: Outputs, names: tuple[str, ...], settings: Sequence[LossConfig]
) -> Json:
    """Run all passes, the last one over every file, and publish the files when all are complete."""
    responses = engine.responses()
    scope = scope_of(engine.plan, responses, settings)
    job = engine.plan = replace(
        engine.plan,
        count=partial(
            _tally, settings=settings, scope=scope, rewarded="reward" in engine.plan.columns
        ),
        no_totals=LossTally.empty(scope, len(settings)),
    )
    engine.reporter.start("loss", job.source.rows)
    with engine.clock.wall("loss"):
        metadata = partial(_metadata, settings=settings, scope=scope)
        total, rewritten = write_files(engine, responses, outputs, names, metadata)
    summary = _summary(job, responses, total, settings, scope)
    return {
        **summary,
        "warnings": [
            *warnings_of(job, summary, total.odd, settings),
            *responses.notes.get("warnings", []),
        ],
        **run_facts(engine, outputs, rewritten),
    }


def _summary(
    job: Plan, responses: Responses, tally: LossTally, settings: Sequence[LossConfig], scope: Scope
) -> Json:
    """The numbers of the rows that a tally counted, and where their advantages come from."""
    given = "advantages" in job.columns
    return {
        **summarise_losses(job, responses, tally, settings, scope),
        "advantages_from": job.columns.column("advantages") if given else "recipe",
        "estimator": None if given else job.resolved.estimator.name,
        "advantages_aside": None if given else _aside(job),
    }


def _aside(job: Plan) -> str | None:
    """A column of advantages that is in the input, and was not used."""
    names = ("advantages", DUMPED)
    return next((name for name in names if name in job.source.columns), None)


def _metadata(
    job: Plan,
    index: int,
    responses: Responses,
    totals: LossTally,
    *,
    settings: Sequence[LossConfig],
    scope: Scope,
) -> dict[str, str]:
    """Return the metadata of a file; the same bytes for the same input and options."""
    summary = _summary(job, responses, totals, settings, scope)
    recipe = job.resolved.recipe.model_dump_json()
    return {
        "rlpost.version": __version__,
        **({"rlpost.recipe": recipe} if summary["estimator"] else {}),
        "rlpost.input": job.source.files[index].path.name,
        "rlpost.loss": json.dumps(resolved(settings[0])),
        "rlpost.loss_summary": json.dumps(summary),
    }
