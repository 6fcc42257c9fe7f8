"""The writer of bundles: rows, recipe and versions in one zip file, without texts and ids."""

from __future__ import annotations

import json
import platform
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from rlpost._version import __version__
from rlpost.analysis.replay.bundle.columns import contents_of
from rlpost.analysis.replay.bundle.reader import CASE, README, RECIPE, ROLLOUTS, SCHEMA, SUFFIX
from rlpost.analysis.replay.bundle.recipes import recipe_of_files
from rlpost.analysis.replay.bundle.rows import choose_rows
from rlpost.analysis.replay.input_columns import NamedColumns, check_types, recorded_columns
from rlpost.analysis.replay.rollouts import read_rows
from rlpost.display.text import counted
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.locks import scratch_folder
from rlpost.io.parquet.inputs import FORMAT_KEY, MASK_KEY, MISSING_ROLES, find_inputs
from rlpost.io.parquet.source import Source, TableSource
from rlpost.io.paths import check_target, parse_path
from rlpost.io.publish import StagedFiles
from rlpost.io.ranges import arrow_file
from rlpost.io.staged import file_errors
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.coupling import Coupling, coupling_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rlpost.analysis.replay.bundle.columns import BundledTable
    from rlpost.analysis.replay.bundle.recipes import BundledRecipe
    from rlpost.analysis.replay.bundle.rows import ChosenRows, RowChoice
    from rlpost.io.paths import AnyPath, PathText
    from rlpost.recipe.roles import ColumnMap


Json = dict[str, Any]
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first date of the zip format: equal input, equal bytes
_LIBRARIES = ("torch", "pyarrow", "numpy")


def bundle(
    inputs: Sequence[PathText],
    output: str | Path,
    choice: RowChoice,
    computation: BundledRecipe,
    columns_map: Mapping[str, str] | None = None,
    *,
    groups_only: bool = False,
    with_texts: bool = False,
    overwrite: bool = False,
) -> Json:
    """Run `rlpost.bundle` on Parquet files; return the summary as a plain mapping.

    Args:
        inputs: Parquet files, directories, globs and URLs.
        output: the bundle.
        choice: of the rows.
        computation: the recipe; without one, that of the input's metadata.
        columns_map: role, or recorded column, to column.
        groups_only: take whole prompt groups alone, although the recipe couples more rows.
        with_texts: keep texts, ids and token ids.
        overwrite: whether the output may exist.
    """
    choice.check()
    target, named = parse_path(output), NamedColumns.of(columns_map or {})
    source = Source(find_inputs(inputs))
    _check_output(target, source, overwrite=overwrite)
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows to bundle")
    if computation.recipe is None:
        computation = recipe_of_files(source).without_names(source.name)
    recipe = _with_columns(computation.recipe or Recipe(), columns_map or {})
    _check_recipe(recipe, with_texts=with_texts)
    columns = columns_of(source, recipe)
    coupling = Coupling("group")
    if computation.recipe is not None:
        coupling = coupling_of(resolve_recipe(recipe, columns))
    rows = choose_rows(source, columns, choice, coupling, recipe.numerics, groups_only=groups_only)
    reward = columns.columns.get("reward", "")
    recorded = recorded_columns(source.columns, named, source.name, [reward])
    check_types(source, source.columns)
    table = read_rows(source, source.columns, rows.numbers).combine_chunks()
    source.check_unchanged()
    contents = contents_of(table, columns.columns, [*recorded.values()], with_texts=with_texts)
    stored = contents.table.replace_schema_metadata(_metadata(source, with_texts=with_texts))
    recipe = _adapted(recipe, columns, stored, contents)
    names = {*stored.schema.names}
    kept = {stage: name for stage, name in recorded.items() if name in names}
    facts = {
        **_versions(),
        "rows": _facts_of_rows(rows),
        "with_texts": with_texts,
        **_facts_of_columns(columns, contents, kept, {**recipe.columns, **named.recorded}),
        "format": source.metadata.get(FORMAT_KEY, b"").decode(errors="replace") or None,
        "recipe": None if computation.recipe is None else RECIPE,
        "recipe_of_file": computation.of_file,
        "preset": computation.preset,
        "requested_estimator": computation.estimator,
        "warnings": [*computation.warnings, *_warnings(computation, rows, kept)],
    }
    texts = {CASE: json.dumps(facts, indent=1) + "\n", README: _readme(facts)}
    if computation.recipe is not None:
        texts[RECIPE] = computation.text(recipe)
    size = _write(target, stored, texts)
    return {
        "inputs": [str(file.path) for file in source.files],
        "outputs": [str(target)],
        "bytes": size,
        "contents": [one._asdict() for one in contents.columns],
        **facts,
    }


def _check_output(target: AnyPath, source: Source, *, overwrite: bool) -> None:
    """Raise the errors of writing before the work."""
    if not str(target).endswith(SUFFIX):
        raise UsageError(f"{target}: the name of a bundle ends in {SUFFIX}, such as case.zip")
    try:
        if target.is_dir():
            raise UsageError(f"{target}: is a directory; name a file, such as case.zip")
        inputs = {file.path.resolve() for file in source.files}
        check_target(target, inputs, overwrite=overwrite)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None


def _check_recipe(recipe: Recipe, *, with_texts: bool) -> None:
    """Raise UsageError for a recipe that cannot be computed from the bundle elsewhere."""
    if ":" in recipe.estimator:
        raise UsageError(
            f"--estimator {recipe.estimator}: is code in a file, and a bundle has no code; leave "
            "--estimator out, and attach the file beside the bundle"
        )
    if recipe.tokenizer is not None and not with_texts:
        raise UsageError(
            f"--tokenizer {recipe.tokenizer}: counts the tokens of texts, which the bundle leaves "
            "out; keep them with --with-texts"
        )


def _with_columns(recipe: Recipe, columns_map: Mapping[str, str]) -> Recipe:
    """Return a recipe with the columns of roles alone: recorded columns are none of its options."""
    both = {**recipe.columns, **columns_map}
    return recipe.model_copy(update={"columns": {k: x for k, x in both.items() if k in ROLES}})


def _metadata(source: Source, *, with_texts: bool) -> dict[bytes, bytes]:
    """Return the key-value metadata of the rows: what rlpost reads; with texts, other programs'.

    The rows are no output of a run that `rlpost verify` reads, so these entries are left out.
    """
    return {
        key: value
        for key, value in sorted(source.metadata.items())
        if key in (MISSING_ROLES, MASK_KEY, FORMAT_KEY)
        or (with_texts and not key.startswith((b"rlpost.", b"ARROW:")))
    }


def _adapted(
    recipe: Recipe, columns: ColumnMap, stored: pa.Table, contents: BundledTable
) -> Recipe:
    """Return the recipe for the rows in the bundle: the same columns serve the same roles.

    A name may have a role only beside columns that are left out, and domains have new names.
    """
    domains = contents.labels.get("domain")
    if domains is not None:
        others = [name for name in recipe.episode_domains if name not in domains]
        new = {**domains, **{name: f"d{len(domains) + i}" for i, name in enumerate(others)}}
        names = tuple(new[name] for name in recipe.episode_domains)
        recipe = recipe.model_copy(update={"episode_domains": names})
    after = columns_of(TableSource(stored), recipe)
    moved = {
        role: column
        for role, column in columns.columns.items()
        if role in ROLES and column in stored.schema.names and after.columns.get(role) != column
    }
    return recipe.model_copy(update={"columns": {**recipe.columns, **moved}})


def _versions() -> Json:
    """Return versions and the platform, without names of the host or of paths."""
    libraries = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return {
        "rlpost_bundle": SCHEMA,
        "rlpost_version": __version__,
        "semantics": SEMANTICS,
        "python": platform.python_version(),
        "libraries": libraries,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _facts_of_rows(rows: ChosenRows) -> Json:
    return {
        "numbers": rows.ranges,
        "responses": len(rows.numbers),
        "of": rows.total,
        "groups": rows.groups,
        "steps": rows.steps,
        "why": rows.why,
    }


def _facts_of_columns(
    columns: ColumnMap, contents: BundledTable, recorded: Mapping[str, str], maps: Mapping[str, str]
) -> Json:
    kept = {one.column: one.what or "as it is" for one in contents.columns if one.kept}
    return {
        "roles": {role: name for role, name in columns.columns.items() if name in kept},
        "recorded": dict(recorded),
        "columns_map": dict(maps),
        "columns": kept,
        "left_out": {one.column: one.what for one in contents.columns if not one.kept},
    }


def _warnings(
    computation: BundledRecipe, rows: ChosenRows, recorded: Mapping[str, str]
) -> list[str]:
    """Return what a replay of the bundle cannot do, and the options that help."""
    texts = []
    if not recorded:
        texts.append(
            "no recorded column (advantages, returns, kl, ...), so a replay has nothing to "
            "compare; name one with --map advantages=COLUMN"
        )
    if computation.recipe is None and len(rows.numbers) < rows.total:
        texts.append(
            "no recipe, so what couples the responses of a step is unknown: numbers that were "
            "whitened over a step cannot be reproduced from some of its groups; name the recipe "
            "with --preset or --config"
        )
    if rows.split:
        texts.append(
            f"--groups-only: {rows.split} couples these responses to others, so their recorded "
            "numbers cannot be reproduced from the bundle; leave --groups-only out"
        )
    return texts


def _readme(facts: Json) -> str:
    count = counted(facts["rows"]["responses"], "response")
    left_out = "Texts and token ids are left out, and ids are numbers (g0, g1, ...).\n"
    return (
        f"{count} of a training run with recorded numbers, written by rlpost {__version__}.\n"
        f"{ROLLOUTS} has a row for each; {CASE} has versions, columns and row numbers;\n"
        f"{RECIPE}, if it is there, is the recipe to compare with (--config).\n"
        f"{'' if facts['with_texts'] else left_out}"
        "\n    pip install rlpost\n    rlpost replay case.zip\n"
    )


def _write(target: AnyPath, table: pa.Table, texts: Mapping[str, str]) -> int:
    """Write the zip file, which appears when it is complete; return its bytes."""
    with StagedFiles([target]) as files, scratch_folder(None) as folder:
        with file_errors(folder, "cannot be written"), arrow_file(folder / ROLLOUTS, "wb") as file:
            pq.write_table(table, file, compression="zstd")
        staged = files.stage(target)
        with file_errors(target, "cannot be written"):
            size = _zip(staged.path, folder / ROLLOUTS, texts)
        files.complete()
        files.publish()
    return size


def _zip(path: Path, rollouts: Path, texts: Mapping[str, str]) -> int:
    """Write the members in a fixed order, without times; return the bytes of the file."""
    with zipfile.ZipFile(path, "w") as file:
        for name in (README, CASE, RECIPE):
            if name in texts:
                file.writestr(_member(name), texts[name].encode())
        entry = _member(ROLLOUTS)
        entry.file_size = rollouts.stat().st_size  # from 2 GiB on the format differs
        with rollouts.open("rb") as data, file.open(entry, "w") as member:
            while block := data.read(1 << 20):
                member.write(block)
    return path.stat().st_size


def _member(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.create_system, entry.external_attr = 3, 0o644 << 16  # as on Unix, on every system
    return entry
