"""Policy-loss diagnostics of rollout files, in one pass."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.loss.log import add_log
from rlpost.analysis.loss.summary import loss_findings, summarise_losses, verdict
from rlpost.display.controls import in_utf8
from rlpost.io.outputs import OutputFiles
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, parse_path
from rlpost.losses.config import LossConfig
from rlpost.pipeline.columns import FINAL_MASK, lost_mask
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.findings import OF_ROWS, ResponseFacts, RunFacts, finding, findings_of
from rlpost.pipeline.loss_measures import BY_CELL
from rlpost.pipeline.loss_plan import bind_losses
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted, mask_metadata
from rlpost.pipeline.output.files import targets_of
from rlpost.pipeline.output.metadata import SEMANTICS_KEY, semantics_warnings
from rlpost.pipeline.run import FileTotals, check_clash, engine_for, publish, write_files
from rlpost.pipeline.summary import response_facts, run_summary
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import GRADIENT, LOSS_COLUMNS, Recipe
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlpost.analysis.loss.log import TrainerLog
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan


Json = dict[str, Any]


def loss(
    inputs: PathText | Sequence[PathText],
    output: str | Path | None = None,
    recipe: Recipe | None = None,
    configs: Sequence[LossConfig] = (),
    options: Options | None = None,
    log: TrainerLog | None = None,
    *,
    gradient: bool = False,
) -> Json:
    """Run `rlpost.loss` on Parquet files, in one pass; return the summary as a plain mapping.

    Args:
        inputs: as of `rlpost.loss`.
        output: gets the columns of the first config; None writes nothing.
        recipe: as of `rlpost.loss`.
        configs: the losses; the default is PPO's.
        options: how the run is done.
        log: of the trainer, whose metrics are compared with those of the first config.
        gradient: the output has `loss_gradient`, too.
    """
    recipe, options = recipe or Recipe(), (options or Options()).at_start()
    configs = list(configs) or [LossConfig(LossOptions())]
    paths = [inputs] if isinstance(inputs, PathText) else list(inputs)
    source = Source(find_inputs(paths))
    targets: list[AnyPath] = []
    if output is not None:
        targets = targets_of(source.files, paths, parse_path(output), overwrite=options.overwrite)
        if options.overwrite:
            check_overwritable(targets)
    with OutputFiles(targets) as outputs:
        plan = bind_losses(source, recipe, configs, write=bool(targets), gradient=gradient)
        stored = "advantages" in plan.columns
        computed = () if stored else emitted(plan.resolved)
        names = (*computed, *LOSS_COLUMNS, *[GRADIENT] * gradient) if targets else ()
        check_clash(plan, names)
        engine = engine_for(plan, options)
        totals_of = partial(_LossFiles, names=names, loss=configs[0])
        with single_threaded():
            responses = engine.responses(names)
            done = write_files(engine, responses, outputs, names, totals_of, purpose="loss")
            publish(engine, done)
        totals = done.totals
        with engine.clock.after("summary"):
            summary = summarise_losses(plan, responses, totals, configs)
        facts_of_responses = ResponseFacts()
        if not stored:
            (facts_of_responses,) = response_facts(plan, responses, [0, len(responses)])
        sums = totals[BY_CELL].total()
        run = RunFacts(plan, facts_of_responses, sums, summary, summary["nonfinite"])
        findings = findings_of(run, *OF_ROWS)
        if stored:
            final, sample = (name in plan.columns for name in (FINAL_MASK, "sample_mask"))
            lost = lost_mask(source, final=final, sample=sample)
            other = semantics_warnings(source.files, source.footers)
            findings = [finding("semantics", text) for text in other]
            text = f"{lost}, and all count in the loss"
            findings += [finding("lost_mask", text)] if lost else []
        findings += loss_findings(run, configs)
        files, clock = [file.path for file in source.files], engine.clock
        facts = run_summary(plan, files, engine.device.name)
        facts["outputs"] = [str(target) for target in targets]
    result = {
        **summary,
        "verdict": verdict(summary),
        "findings": findings,
        "new_columns": [*names],
        **facts,
        "bytes": clock.bytes,
        "seconds": clock.seconds,
    }
    return result if log is None else add_log(result, log)


class _LossFiles(FileTotals):
    """The totals and the metadata of files; the same bytes for the same input and options."""

    def __init__(
        self, plan: Plan, _: Responses, *, names: tuple[str, ...], loss: LossConfig
    ) -> None:
        super().__init__(plan.no_totals)
        self._files = plan.source.files
        computed = {
            "rlpost.recipe": plan.resolved.recipe.model_dump_json(),
            SEMANTICS_KEY: str(SEMANTICS),
        }
        self._entries = {
            "rlpost.version": __version__,
            **({} if "advantages" in plan.columns else computed),  # else those of the input stay
            **mask_metadata(plan.resolved, names),
            "rlpost.loss": json.dumps(loss.resolved()),
        }

    def entries(self, index: int) -> dict[str, str]:
        """Return the key-value metadata of a file."""
        return self._entries | {"rlpost.input": in_utf8(self._files[index].path.name)}
