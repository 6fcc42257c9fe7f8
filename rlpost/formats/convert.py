"""Other tools' dumps -> canonical Parquet."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.errors import ReadWriteError, UsageError
from rlpost.formats import format_named
from rlpost.formats.base import ReadOptions, ReadStats
from rlpost.formats.dumps import Dump, check_options, fill, find_dumps, same_format
from rlpost.formats.inputs import fetched
from rlpost.formats.writer import CanonicalFile, given_roles, missing_roles
from rlpost.io.locks import FileLock
from rlpost.io.paths import parse_path
from rlpost.io.progress import SilentReporter
from rlpost.io.shutdown import signals_deferred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.paths import AnyPath
    from rlpost.io.progress import Reporter


Json = dict[str, Any]


def convert(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    source: str | None = None,
    options: ReadOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Json:
    """Convert the dumps of a framework to Parquet that `rlpost.advantages` reads.

    Args:
        inputs: files, directories or globs; of any size.
        output: a `.parquet` file that takes all of them, or a directory for one file each.
        source: the format's name; None: found by the files' contents.
        options: what the dumps do not say themselves.
        overwrite: whether existing files are replaced.
        reporter: who is told how far it is.

    Returns:
        What was read, written, given and lacking.

    Raises:
        UsageError: input, output, format and options do not fit together.
        DataError: a record is bad: file, line and field are named.
        ReadWriteError: reading or writing failed. No output is left behind.
    """
    paths = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    target, options, reporter = (
        parse_path(output),
        options or ReadOptions(),
        reporter or SilentReporter(),
    )
    with fetched(paths, tables=True) as local:
        made = _converted(local.paths, target, source, options, reporter, overwrite=overwrite)
        for told in ("inputs", "passed_over"):
            made[told] = [local.renamed(path) for path in made[told]]
    return made


def _converted(
    paths: Sequence[str | Path],
    output: AnyPath,
    source: str | None,
    options: ReadOptions,
    reporter: Reporter,
    *,
    overwrite: bool,
) -> Json:
    started = time.perf_counter()
    found = find_dumps(paths, format_named(source) if source else None)
    dumps = found.dumps
    one, options = same_format(dumps), replace(options, told=ReadStats())
    check_options(one, options)
    plan = plan_targets(dumps, paths, output, overwrite=overwrite)
    files = write_all(plan, options, reporter)
    columns = files[0].columns
    return {
        "format": one.name,
        "title": one.title,
        "inputs": [str(dump.path) for dump in dumps],
        "outputs": [str(target) for target in plan],
        "responses": sum(file.rows for file in files),
        "tokens": sum(file.tokens for file in files),
        "columns": columns,
        "roles": given_roles(columns),
        "sources": {name: field for name, field in one.sources(options).items() if name in columns},
        "lacks": dict(missing_roles(one, columns)),
        "note": one.notes(options.map),
        "nonfinite": (unfit := _nonfinite(files)),
        "warnings": [*_unfit_warnings(unfit), *_layout_warnings(options)],
        "passed_over": [str(path) for path in found.passed],
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


def _nonfinite(files: Sequence[CanonicalFile]) -> dict[str, dict[str, int]]:
    """Numbers that are not finite, by column, over all files."""
    total: dict[str, dict[str, int]] = {}
    for file in files:
        for name, counts in file.nonfinite.items():
            sums = total.setdefault(name, dict.fromkeys(counts, 0))
            for what, count in counts.items():
                sums[what] += count
    return total


def _unfit_warnings(unfit: dict[str, dict[str, int]]) -> list[str]:
    told = []
    for name, counts in unfit.items():
        rows = counted(counts["responses"], "response")
        what = (
            f"the reward of {rows} is NaN, infinite or null"
            if name == "reward"
            else f"NaN or infinite: {counted(counts['entries'], 'entry')} of {name} in {rows}"
        )
        told.append(f"{what}; rlpost advantages refuses that without --nonfinite mask")
    return told


def _layout_warnings(options: ReadOptions) -> list[str]:
    told = options.told
    if options.layout not in (None, "response") and told.kept and not told.cut:
        text = (
            f"--layout {options.layout} changed nothing: the lists of all "
            f"{counted(told.kept, 'response')} are as long as their responses already"
        )
    elif told.begin_with_0:
        text = (
            f"the mask of {counted(told.begin_with_0, 'response')} begins with 0: where that is a "
            "prompt or padding, --layout padded or left-padded cuts it off; --layout response "
            "says that it is the response's"
        )
    else:
        return []
    return [text]


def counted(number: int, noun: str) -> str:
    """`1 response`, `2,000 responses`, `3 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def plan_targets(
    dumps: Sequence[Dump], inputs: Sequence[str | Path], output: AnyPath, *, overwrite: bool
) -> dict[AnyPath, list[Dump]]:
    """Which dumps go to which file: all to a `.parquet` one, else one each below a directory.

    Raises:
        UsageError: a target is an input, exists already, or would take two dumps.
        ReadWriteError: a target can't be looked at.
    """
    single = len(inputs) == 1 and Path(inputs[0]).is_file()
    try:
        if not output.is_dir() and (single or output.suffix == ".parquet"):
            plan: dict[AnyPath, list[Dump]] = {output: list(dumps)}
        else:
            plan = {}
            for dump in dumps:
                target = output / dump.relative.with_suffix(".parquet")
                if target in plan:
                    raise UsageError(
                        f"{dump.path} and {plan[target][0].path} would both become {target}: name "
                        "the directory above them, whose layout the output keeps"
                    )
                plan[target] = [dump]
        own = {dump.path.resolve() for dump in dumps}
        for target in plan:
            if target.resolve() in own:
                raise UsageError(f"{target}: output and input are the same file; name another")
            if target.exists() and not overwrite:
                raise UsageError(f"{target}: exists already; --overwrite replaces it")
    except OSError as error:
        raise ReadWriteError(f"{output}: cannot be written: {error.strerror}") from None
    return plan


def write_all(
    plan: dict[AnyPath, list[Dump]], options: ReadOptions, reporter: Reporter
) -> list[CanonicalFile]:
    """Write every file, and publish them when the last is complete."""
    folders: list[Path] = []
    files: list[CanonicalFile] = []
    try:
        for target in plan:
            folders += _made(target)
        with FileLock([target for target in plan if isinstance(target, Path)]):
            for target, dumps in plan.items():
                file = CanonicalFile(target)
                files.append(file)
                fill(file, dumps, options, reporter)
            with signals_deferred():
                for file in files:
                    file.publish()
    finally:
        for file in files:
            file.abort()
        for folder in reversed(folders):
            with suppress(OSError):  # it is not empty: something was published
                folder.rmdir()
    return files


def _made(target: AnyPath) -> list[Path]:
    """Make a target's folders; gives those that are new."""
    missing = [folder for folder in target.parents if not folder.exists()][::-1]
    try:
        for folder in missing:
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
    return missing
