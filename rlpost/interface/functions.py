"""The commands as functions. They return what the commands print, and raise their errors.

Keyword-only parameters are options of the command line, too: their names, types, defaults and the
first clause of their texts are those of flags. So this module imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from rlpost.display.reporter import Reporter, SilentReporter
from rlpost.errors import UsageError
from rlpost.interface.inputs import (
    Inputs,
    OpenInputs,
    condition,
    of_steps,
    open_inputs,
    path_names,
)
from rlpost.interface.results import (
    Comparison,
    Conversion,
    Export,
    LossSummary,
    Replay,
    Summary,
    Verification,
)
from rlpost.io.input_paths import UNDECLARED, Declaration, without_paths
from rlpost.pipeline.options import Options
from rlpost.recipe.base import Count, InHelp, Natural
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import PRESETS
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    import polars as pl

    from rlpost.analysis.inspect.model import Facts
    from rlpost.formats.where import Where
    from rlpost.interface.inspection import Inspection, Report
    from rlpost.io.memory import ArrowStream
    from rlpost.losses.config import LossConfig

    T = TypeVar("T", bound=ArrowStream | pl.LazyFrame)
RolloutReward = Literal["equal", "last", "sum", "mean"]
Failures = Literal["drop", "mask", "keep", "zero"]
Attempts = Literal["all", "newest"]
Unit = Literal["row", "rollout"]
Columns = Annotated[Mapping[str, str] | None, InHelp("ROLE=COLUMN")]
Condition = Annotated[str | None, InHelp("EXPR")]
Name = Annotated[str | None, InHelp("NAME")]
NameOrPath = Annotated[str | None, InHelp("NAME|PATH")]
Records = Annotated[str | None, InHelp("PATH")]
Progress = bool | Reporter | None


def advantages(
    inputs: Inputs,
    output: str | Path,
    recipe: Recipe | None = None,
    options: Options | None = None,
    *,
    steps: Annotated[str | None, InHelp("FIRST:END")] = None,
    source: Name = None,
    rows: Records = None,
    group_size: Count | None = None,
    progress: Progress = None,
) -> Summary:
    """Post-process the rewards of rollouts and write them enriched with advantages.

    Args:
        inputs: Parquet files, directories or globs, local or as URLs (`s3://...`), of any size;
            dumps that `rlpost convert` reads; or tables in memory (see `enrich`).
        output: the enriched file; with several input files, a directory.
        recipe: what is computed; the default is plain GRPO.
        options: how it is computed; with `skip_existing`, only files that are not up to date.
        steps: steps to compute, whole and without END (default: all).
        source: format of dumps (see `rlpost list dumps`); `parquet` reads Parquet as a dump.
        rows: list of the responses in a record of dumps, as a.b.
        group_size: consecutive records per group of dumps without an id.
        progress: show a progress bar on stderr, if that is a terminal. A reporter gets the
            progress, and notes on dumps.

    Returns:
        The summary, as `rlpost advantages --summary-json` prints it.

    Raises:
        UsageError: recipe, input and output do not fit together.
        DataError: the data is bad: file, row and column are named.
        ReadWriteError: reading or writing failed; no output is left behind.
        UnavailableError: the device is missing.
        FindingsError: `fail_on` of the options fails the run; it has the summary.
        InputsError: with `skip_existing`: inputs are bad; it has the summary of the others.
    """
    from rlpost import api  # noqa: PLC0415 - slow to import

    _check_recipe(recipe)
    options, recipe = options or Options(), recipe or Recipe()
    kept = of_steps(steps, recipe, options)
    declared = Declaration(source, rows, group_size, recipe.columns)
    if options.skip_existing:
        if declared.of_dumps:
            raise UsageError("--skip-existing excludes --from, --rows and --group-size, of dumps")
        paths = path_names(inputs, "skip_existing", "files with a size and a time of change")
        with _reporting(options, progress=progress) as run:
            return Summary(api.advantages(paths, output, recipe, run))
    with _opened(
        inputs, output, options, where=kept, declared=declared, progress=progress,
    ) as (opened, run):  # fmt: skip
        recipe = opened.recipe(recipe)
        if kept is not None:
            api.check_steps(opened.paths, recipe, run, kept.label)
        summary = opened.result(api.advantages(opened.paths, output, recipe, run))
        selected = {} if kept is None else {"steps_read": kept.as_json()}
        return Summary(summary | selected)


def enrich(
    table: T,
    recipe: Recipe | None = None,
    options: Options | None = None,
    *,
    progress: Progress = None,
) -> tuple[T, Summary]:
    """Enrich a table in memory, like `advantages` does files.

    Args:
        table: a table of any library with Arrow's interface: polars (lazy, too), pandas, duckdb,
            Arrow, datasets of Hugging Face.
        recipe: what is computed; the default is plain GRPO.
        options: how it is computed.
        progress: show a progress bar, as of `advantages`.

    Returns:
        A table of the same library with the input's columns (without those that `replace`
        replaces, or only the keys with `emit_only`) and the new ones; and the summary. A lazy
        frame returns a lazy frame whose rows are computed; a library that is not named above an
        Arrow table.

    Raises:
        UsageError, DataError, UnavailableError, FindingsError: as `advantages`; UsageError for any
            other type.
    """
    from rlpost import api  # noqa: PLC0415 - slow to import

    _check_recipe(recipe)
    with _reporting(options, progress=progress) as run:
        enriched, summary = api.enrich(table, recipe, run)
    return enriched, Summary(summary)


def inspect(
    inputs: Inputs,
    *,
    columns_map: Columns = None,
    where: Condition = None,
    source: Name = None,
    rows: Records = None,
    group_size: Count | None = None,
    pass_threshold: float | None = None,
    unit: Unit | None = None,
    rollout_reward: RolloutReward | None = None,
    failures: Failures | None = None,
    attempts: Attempts | None = None,
    reward_components: Mapping[str, float] | Sequence[str] = (),
    ignore: Annotated[Sequence[str], InHelp("CHECK")] = (),
    evidence: int = 5,
    details: bool = True,
    progress: Progress = None,
) -> Inspection:
    """Return statistics and findings of rollouts, as `rlpost inspect` prints them.

    Args:
        inputs: paths or tables, as of `advantages`; together they are one input.
        columns_map: column, or field of dumps, for a role (default: by name); it overrides aliases.
        where: rows to read, as "reward > 0 and domain = 'math'"; others are left out.
        source: format of dumps (see `rlpost list dumps`); `parquet` reads Parquet as a dump.
        rows: list of the responses in a record of dumps, as a.b.
        group_size: consecutive records per group of dumps without an id.
        pass_threshold: raw reward at which a response passes (default: 1, but as in the recipe of
            files that rlpost wrote).
        unit: count rows or rollouts in statistics of responses (default: as in the files' recipe,
            else rollouts if a column has their ids).
        rollout_reward: reward of a rollout whose rows differ; with `equal`, that is a finding,
            and their mean counts (default: equal, but as in the files' recipe).
        failures: failed responses: out, counted or 0; `mask` counts them, but leaves them out of
            training, as in a recipe (default: drop, but as in the files' recipe).
        attempts: attempts at a step or rollout that count; rows of the newest, or all (default:
            newest, but as in the files' recipe).
        reward_components: columns whose sum is the reward, in place of a reward column; a mapping
            has the weight of each.
        ignore: a check not to run (repeatable).
        evidence: rows to list for each finding, at most.
        details: also compute their statistics, which `rlpost inspect` shows only with
            `--about`, `--verbose` or as JSON.
        progress: show a progress bar, as of `advantages`.

    Returns:
        A tree of plain dataclasses; `.to_dict()` returns it as JSON data.

    Raises:
        UsageError: `columns_map` names an unknown role, `ignore` an unknown check;
            or `rollout_reward` is set, but rows count.
        DataError: a file is not Parquet, an argument names a column that does not exist, or no
            column says what `failures` and `attempts` need.
        ReadWriteError: an input can't be read, or a glob matches nothing.
    """
    from rlpost.analysis.inspect import facts  # noqa: PLC0415 - polars takes a while to import

    kept = condition(where, columns_map)
    declared = Declaration(source, rows, group_size, columns_map or {})
    with _opened(inputs, where=kept, declared=declared, progress=progress) as (opened, run):
        result = facts.inspect(
            opened.paths,
            columns_map=opened.columns(columns_map or {}),
            pass_threshold=pass_threshold,
            unit=unit,
            rollout_reward=rollout_reward,
            failures=failures,
            attempts=attempts,
            reward_components=_weights(reward_components),
            ignore=ignore,
            evidence=evidence,
            partial=kept is not None,
            details=details,
            reporter=run.reporter,
        )
        return _of_inputs(result, opened)


def loss(
    inputs: Inputs,
    output: str | Path | None = None,
    recipe: Recipe | None = None,
    loss: LossOptions | Sequence[LossConfig] | None = None,
    options: Options | None = None,
    *,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    gradient: bool = False,
    log: Annotated[str | Path | None, InHelp("PATH")] = None,
    log_map: Annotated[Mapping[str, str] | None, InHelp("METRIC=COLUMN")] = None,
    progress: Progress = None,
) -> LossSummary:
    """Compute what a policy loss clips, and where it leaves no gradient, as `rlpost loss` does.

    Args:
        inputs: paths or tables, as of `advantages`, with `log_probs` and `old_log_probs`.
        output: gets `pg_loss` and `clip_state` beside the input's columns, and the columns of
            `advantages` if these are computed; None writes nothing.
        recipe: how advantages are computed if the input has none; the default is plain GRPO.
        loss: the loss and its options, such as `rlpost.loss_preset("verl")`; the default is PPO's.
            The command line has settings of its own.
        options: how the run is done.
        sweep: options of the loss with several values each; every combination is computed, in one
            pass. It excludes `output`.
        gradient: write `loss_gradient`, ∂L/∂log π of each token, too.
        log: compare a trainer's log, JSON lines or CSV; a row is a step. The result then has
            `log`, its metrics beside the computed ones, and `findings` where they differ.
        log_map: column of the log for a metric (default: by name); or for `step`.
        progress: show a progress bar, as of `advantages`.

    Raises:
        UsageError: options, input and output do not fit together.
        DataError: the data is bad: file, row and column are named.
        ReadWriteError: reading or writing failed; no output is left behind.
        UnavailableError: the device is missing.
    """
    from rlpost.losses.config import settings_of  # noqa: PLC0415 - slow to import

    _check_recipe(recipe)
    recipe, axes = recipe or Recipe(), dict(sweep or {})
    if loss is None or isinstance(loss, LossOptions):
        points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        loss = settings_of([_swept(loss or LossOptions(), point) for point in points], {})
    swept = any(config.swept for config in loss)
    if swept and output is not None:
        raise UsageError("--sweep and OUT exclude each other: OUT has the loss of one setting")
    if gradient and output is None:
        raise UsageError("--gradient needs OUT, the file that gets the column")
    if swept and log is not None:
        raise UsageError("--sweep and --log exclude each other: a log has the loss of one setting")
    if log_map and log is None:
        raise UsageError("--log-map: has no effect without --log PATH")
    from rlpost.analysis.loss import run as work  # noqa: PLC0415 - slow to import
    from rlpost.analysis.loss.log import read_log  # noqa: PLC0415

    logged = None if log is None else read_log(Path(log), log_map)
    declared = Declaration(map=recipe.columns)
    with _opened(inputs, output, options, declared=declared, progress=progress) as (opened, run):
        recipe = opened.recipe(recipe)
        summary = work.loss(opened.paths, output, recipe, loss, run, logged, gradient=gradient)
        return LossSummary(opened.result(summary))


def _swept(loss: LossOptions, point: dict[str, Any]) -> LossConfig:
    """Return the loss of a point of a sweep."""
    from rlpost.losses.config import LossConfig  # noqa: PLC0415 - slow to import

    fields = {name: x for name, x in point.items() if name in LossOptions.model_fields}
    return LossConfig(LossOptions(**loss.model_dump() | fields), point)


def compare(
    inputs: Inputs,
    recipes: Mapping[str, Recipe] | None = None,
    *,
    columns_map: Columns = None,
    column: Annotated[str | None, InHelp("COLUMN")] = None,
    count: Natural = 5,
    progress: Progress = None,
) -> Comparison:
    """Compare the advantages of several inputs, or of one input under several recipes.

    Args:
        inputs: paths or tables, as of `advantages`: each is a side. With `recipes`, all of them
            together are one input.
        recipes: name and recipe of each side; a single one is compared with the advantages in
            the input. None compares the inputs.
        columns_map: column, or field of dumps, for a role (default: by name).
        column: column to compare (default: advantages); of an input or of those that recipes
            write. None: the first of `advantages`, `response_advantage` and `advantage`.
        count: responses to list that differ the most; of each pair.
        progress: show a progress bar, as of `advantages`.

    Returns:
        `verdict`, `findings` (what is not compared), and `facts`: by name of a measure count, mean,
        std, min and max, of all numbers and by step and domain; of yes or no `total` in place of
        the last three. `advantage:SIDE` and `advantage_zero:SIDE` are of policy tokens of kept
        responses; of kept responses if a side has one advantage per response.
        `difference:LEFT:RIGHT` is absolute, with `equal`, `same_sign` and `opposite_sign`, of
        tokens that both sides keep; with `response_` before the name of the mean advantages of
        responses. `sides`: their names. `pairs`: `pearson` of responses and tokens (None if a side
        has none), `spearman` of responses, `scale`, the ratio of the root mean squares
        over the responses that both keep, and the responses that differ the most `beyond_scale`:
        left - scale · right. `recipe_differences`: the `field`s that have another value on one
        of the sides and can change the compared numbers, with the `values` of the sides; None if
        the recipe of a side is unknown. `matched_by`: the keys of the rows.

    Raises:
        UsageError: there is nothing to compare with.
        DataError: an input lacks the column, or no rows match.
        ReadWriteError: an input cannot be read.
        UnavailableError: the device is missing.
    """
    from rlpost.analysis.compare.compare import compare as compared  # noqa: PLC0415 - slow to import

    declared = Declaration(map=columns_map or {})
    with _opened(inputs, declared=declared, progress=progress) as (opened, run):
        comparison = compared(
            opened.paths,
            opened.columns(columns_map or {}),
            {name: opened.recipe(recipe) for name, recipe in (recipes or {}).items()},
            column=column,
            count=count,
            names=opened.inputs,
            reporter=run.reporter,
        )
        return Comparison(without_paths(comparison, opened.names))


def replay(
    inputs: Inputs,
    recipe: Recipe | None = None,
    *,
    fixed: Mapping[str, Any] | None = None,
    named: str = "the recipe",
    columns_map: Columns = None,
    tolerance: float | None = None,
    sample_tokens: Annotated[int | None, InHelp("TOKENS")] = None,
    progress: Progress = None,
) -> Replay:
    """Compare the numbers that a trainer recorded with those of a recipe, as `rlpost replay` does.

    A number is equal if |recorded - computed| <= tolerance * |computed| + tolerance / 100 * (1 +
    |raw reward|); for tokens the largest |value| of the response is added to |raw reward|, and the
    second part of advantages and returns of n tokens is times √n.

    Args:
        inputs: paths or tables, as of `advantages`, with recorded columns, such as `advantages`,
            `returns`, `token_level_rewards`, `kl`; together they are one input.
        recipe: such as `rlpost.preset("verl")`; None: search for the recipe that reproduces the
            recorded columns.
        fixed: fields of a recipe that the search does not change, such as `{"estimator": "gae"}`.
        named: what the result calls `recipe`.
        columns_map: column for a role or stage (default: by name); `{"advantages": "adv"}`.
        tolerance: relative difference of equal numbers (default: 1e-4); at least 0.
        sample_tokens: tokens in memory (default: 4,000,000); of a larger input, the first whole
            steps or prompt groups are compared.
        progress: show a progress bar, as of `advantages`.

    Returns:
        `reproduced`; `stages`; `first`, the first that differs; `findings`; `examples`; and
        `search`, without a recipe: `best` (`named`, `by_metadata`), `same_numbers`, `tried`.

    Raises:
        UsageError: options do not fit together, or `columns_map` names no role and no stage.
        DataError: the input has no recorded column, or lacks what the recipe needs.
        ReadWriteError: an input cannot be read.
    """
    _check_recipe(recipe)
    request: dict[str, Any] = {
        "recipe": recipe, "columns_map": columns_map or {}, "tolerance": tolerance,
        "given": fixed, "sample_tokens": sample_tokens,
    }  # fmt: skip
    request = {name: value for name, value in request.items() if value is not None}
    if recipe is not None and fixed:
        raise UsageError("recipe and fixed exclude each other: fixed is for a search")
    if fixed:
        Recipe.of({name: x for name, x in fixed.items() if name != "estimator"}, "fixed")
    from rlpost.analysis.replay import run as work  # noqa: PLC0415 - slow to import

    declared = Declaration(map=columns_map or {})
    with _opened(inputs, declared=declared, progress=progress) as (opened, run):
        request["columns_map"] = opened.columns(columns_map or {})
        request |= {"reporter": run.reporter, "named": named if recipe else ""}
        replayed = work.replay(opened.paths, work.ReplayRequest(**request))
    if opened.names:
        replayed = without_paths(replayed, opened.names) | {"input": ", ".join(opened.inputs)}
    return Replay(replayed)


def _check_recipe(recipe: object) -> None:
    """Raise UsageError for a recipe that is none, such as the name of a preset."""
    if recipe is None or isinstance(recipe, Recipe):
        return
    name = recipe if isinstance(recipe, str) and recipe in PRESETS else "verl"
    came = f"the text {recipe!r}" if isinstance(recipe, str) else f"of type {type(recipe).__name__}"
    raise UsageError(f'recipe is {came}: a Recipe is needed, such as rlpost.preset("{name}")')


def report(
    inputs: Inputs,
    output: str | Path | None = None,
    *,
    columns_map: Columns = None,
    where: Condition = None,
    pass_threshold: float | None = None,
    unit: Unit | None = None,
    rollout_reward: RolloutReward | None = None,
    failures: Failures | None = None,
    attempts: Attempts | None = None,
    reward_components: Mapping[str, float] | Sequence[str] = (),
    examples: Count = 6,
    seed: Natural = 0,
    overwrite: bool = False,
    progress: Progress = None,
) -> Report:
    """Return one HTML page about rollouts; it opens from disk and needs no network.

    Args:
        inputs: paths or tables, as of `advantages`; together they are one input.
        output: where the page is written; None: nowhere, until `.save(path)`.
        columns_map: column, or field of dumps, for a role (default: by name).
        where: rows to read, as "reward > 0 and domain = 'math'".
        pass_threshold: raw reward at which a response passes; as of `inspect`.
        unit: count rows or rollouts in statistics of responses; as of `inspect`.
        rollout_reward: reward of a rollout whose rows differ; as of `inspect`.
        failures: failed responses: out, counted or 0; as of `inspect`.
        attempts: attempts at a step or rollout that count; as of `inspect`.
        reward_components: columns whose sum is the reward; as of `inspect`.
        examples: best, worst and random responses to show, of each.
        seed: seed of the random examples.
        overwrite: replace the report if it exists.
        progress: show a progress bar, as of `advantages`.

    Returns:
        The page, which a notebook shows, with the statistics in it, as of `inspect`.

    Raises:
        UsageError: the output exists, or is an input; a role is unknown.
        DataError: a file is not Parquet or has no rows, or a column has a type it can't have.
        ReadWriteError: reading or writing failed. No output is left behind.
        UnavailableError: the extra `report` is not installed.
    """
    from rlpost.analysis.report import run as work  # noqa: PLC0415 - polars is slow to import
    from rlpost.interface.inspection import Report  # noqa: PLC0415

    kept = condition(where, columns_map)
    declared = Declaration(map=columns_map or {})
    with _opened(inputs, where=kept, declared=declared, progress=progress) as (opened, run):
        files = work.files_of(opened.paths)
        if output is not None:
            work.check_output(Path(output), files, overwrite=overwrite)
        result, html = work.build(
            opened.paths,
            columns_map=opened.columns(columns_map or {}),
            pass_threshold=pass_threshold,
            unit=unit,
            rollout_reward=rollout_reward,
            failures=failures,
            attempts=attempts,
            reward_components=_weights(reward_components),
            partial=kept is not None,
            examples=examples,
            seed=seed,
            reporter=run.reporter,
            made_of=opened,
            shown=partial(_of_inputs, opened=opened),
        )
        html = without_paths(html, opened.names)
    if output is not None:
        from rlpost.io.outputs import write_file  # noqa: PLC0415 - object stores

        write_file(Path(output), html.encode())
    return Report(**vars(result), html=html, files=files)


def convert(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    source: Name = None,
    columns_map: Annotated[Mapping[str, str] | None, InHelp("ROLE=FIELD")] = None,
    rows: Records = None,
    group_size: Count | None = None,
    where: Condition = None,
    attempts: Attempts = "newest",
    workers: Count | None = None,
    overwrite: bool = False,
    progress: Progress = None,
) -> Conversion:
    """Convert dumps of RL frameworks to Parquet that `advantages` reads.

    Args:
        inputs: files, directories or globs; of any size.
        output: one `.parquet` file for all of them, or a directory with a file for each.
        source: format of dumps (see `rlpost list dumps`); None: the contents of the files determine
            it, and of an unknown format a proposal says what the fields are.
        columns_map: field to read for a role, a.b if nested, or none.
        rows: list of the responses in a record of dumps, as a.b; None: a record is one.
        group_size: consecutive records per group of dumps without an id.
        where: rows to read, as "reward > 0 and domain = 'math'"; over roles and columns.
        attempts: attempts at a step or rollout that count; by `run_attempt` and `attempt`.
        workers: processes that read (default: one per core, at most 8); for 128 MiB or more.
        overwrite: replace OUT if it exists.
        progress: count the responses while they are converted, as of `advantages`.

    Raises:
        UsageError: input, output, format and options do not fit together.
        DataError: a record is bad; the error names file, line and field.
        ReadWriteError: reading or writing failed. There is no output then.
    """
    from rlpost.formats import convert as work  # noqa: PLC0415 - pyarrow is slow to import
    from rlpost.formats.base import ReadOptions  # noqa: PLC0415

    paths = path_names(inputs, "convert", "dumps; `advantages` reads tables as they are")
    read = ReadOptions(
        dict(columns_map or {}), group_size, attempts,
        where=condition(where, None), rows=rows,
    )  # fmt: skip
    with _reporting(progress=progress) as run:
        summary = work.convert(
            paths, output, source, read,
            workers=workers, overwrite=overwrite, reporter=run.reporter,
        )  # fmt: skip
        return Conversion(summary)


def export(
    inputs: Inputs,
    output: str | Path,
    to: str,
    *,
    columns_map: Columns = None,
    overwrite: bool = False,
    progress: Progress = None,
) -> Export:
    """Export rollouts to files that a training framework reads, as `rlpost export` does.

    Args:
        inputs: paths or tables, as of `advantages`; together they are one input.
        output: the file to write; for `slime` and `verl`, a directory with a file per step; for
            `prime-rl`, a directory, and its index beside it.
        to: `jsonl`, `slime`, `verl` or `prime-rl`.
        columns_map: column, or field of dumps, for a role (default: by name).
        overwrite: replace OUT if it exists.
        progress: show a progress bar, as of `advantages`.

    Returns:
        The files, the field of each column, the other columns, and those that are lost. Each column
        of the input is in one of `fields`, `others` and `lost`.

    Raises:
        UsageError: the output exists; no such target.
        DataError: the input lacks a column that the target needs, or a row is bad.
        ReadWriteError: reading or writing failed; no output is left behind.
        UnavailableError: `verl` is not installed, which writes its file itself.
    """
    from rlpost.formats import export as work  # noqa: PLC0415 - pyarrow is slow to import

    with _opened(inputs, progress=progress) as (opened, run):
        exported = work.export(
            opened.paths,
            output,
            to,
            columns_map,
            overwrite=overwrite,
            reporter=run.reporter,
        )
        return Export(opened.result(exported))


def verify(
    paths: str | Path | Sequence[str | Path],
    options: Options | None = None,
    *,
    estimator: Name = None,
    progress: Progress = None,
) -> Verification:
    """Recompute the columns of enriched files by the recipe in their metadata, and compare.

    Args:
        paths: enriched files, directories or globs; all files of a run, because its statistics can
            span files. Tables have no metadata of a run, so they can't be verified.
        options: device and threads.
        estimator: run this estimator, if metadata names code; code that data names is not run.
        progress: show a progress bar, as of `advantages`.

    Returns:
        `ok`: no file differs. `files`: for each file the verdict on every written column
        (`other semantics`: it differs, as it may after a change of defaults); differences of the
        summary; and `notes` of what was not compared.

    Raises:
        UsageError: files of a run are missing; the metadata names code, and `estimator` is not
            set.
        DataError: a file is not an enriched one, its metadata is damaged, or it lacks input
            columns of its recipe.
        ReadWriteError: a file cannot be read.
    """
    from rlpost.analysis import verify as work  # noqa: PLC0415 - slow to import

    several = path_names(paths, "verify", "enriched files, which have the metadata of their run")
    with _reporting(options, progress=progress) as run:
        return Verification(work.verify(several, run, estimator))


def _weights(components: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
    """Return the weight of each reward component: 1 if only names are passed."""
    if isinstance(components, str):
        raise UsageError(f"reward_components={components!r}: a list of columns is needed")
    names = components.items() if hasattr(components, "items") else ((x, 1.0) for x in components)
    return {name: float(weight) for name, weight in names}


@contextmanager
def _opened(
    inputs: Inputs,
    output: str | Path | None = None,
    options: Options | None = None,
    *,
    where: Where | None = None,
    declared: Declaration = UNDECLARED,
    progress: Progress,
) -> Iterator[tuple[OpenInputs, Options]]:
    """Yield the inputs as paths, and the options with a reporter; both until the block ends."""
    with (
        _reporting(options, progress=progress) as run,
        open_inputs(
            inputs,
            output,
            overwrite=run.overwrite,
            reporter=run.reporter,
            where=where,
            declared=declared,
        ) as opened,
    ):
        yield opened, run


@contextmanager
def _reporting(options: Options | None = None, *, progress: Progress) -> Iterator[Options]:
    """Yield options with the reporter that `progress` requests, under their memory limit."""
    from rlpost.display import progress as bars  # noqa: PLC0415 - rich takes a while to import
    from rlpost.io.memory_limit import limited_memory  # noqa: PLC0415
    from rlpost.io.paths import written_beside  # noqa: PLC0415

    options = options or Options()
    with limited_memory(options.max_memory), written_beside("--state", options.state):
        if progress is None and type(options.reporter) is not SilentReporter:
            yield options
        elif progress is not None and not isinstance(progress, bool):
            yield replace(options, reporter=progress)
        else:
            with bars.progress(quiet=not progress) as reporter:
                yield replace(options, reporter=reporter)


def _of_inputs(facts: Facts, opened: OpenInputs) -> Inspection:
    """Return facts that name the inputs, where their paths are those of temporary files."""
    from rlpost.analysis.inspect.facts import with_names  # noqa: PLC0415 - polars is slow to import
    from rlpost.interface.inspection import Inspection  # noqa: PLC0415

    facts = with_names(facts, opened.inputs, opened)
    if opened.where is not None:
        facts = replace(facts, where=opened.where.as_json())
    if opened.of_tables or opened.where is not None:  # the storage is temporary
        facts = replace(facts, input=replace(facts.input, columns=[]))
    return Inspection(**vars(facts))
