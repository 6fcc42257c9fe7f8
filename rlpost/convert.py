"""Other tools' dumps -> canonical Parquet."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import ReadWriteError, UsageError
from rlpost.formats import format_named
from rlpost.formats.base import ReadOptions
from rlpost.formats.dumps import Dump, check_options, fill, find_dumps
from rlpost.formats.writer import CanonicalFile, given_roles, missing_roles
from rlpost.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.progress import Reporter

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
    started = time.perf_counter()
    options = options or ReadOptions()
    paths = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    found = find_dumps(paths, format_named(source) if source else None)
    dumps = found.dumps
    one = dumps[0].format
    if other := next((dump for dump in dumps if dump.format is not one), None):
        raise UsageError(
            f"{dumps[0].path} is of {one.name} and {other.path} of {other.format.name}: convert "
            "them one after the other"
        )
    check_options(one, options)
    plan = plan_targets(dumps, paths, Path(output), overwrite=overwrite)
    files = write_all(plan, options, reporter or Silent())
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
        "lacks": dict(missing_roles(one, columns)),
        "note": one.note,
        "passed_over": [str(path) for path in found.passed],
        "seconds": time.perf_counter() - started,
    }


def plan_targets(
    dumps: Sequence[Dump], inputs: Sequence[str | Path], output: Path, *, overwrite: bool
) -> dict[Path, list[Dump]]:
    """Which dumps go to which file: all to a `.parquet` one, else one each below a directory.

    Raises:
        UsageError: a target is an input, exists already, or would take two dumps.
        ReadWriteError: a target can't be looked at.
    """
    single = len(inputs) == 1 and Path(inputs[0]).is_file()
    try:
        if not output.is_dir() and (single or output.suffix == ".parquet"):
            plan = {output: list(dumps)}
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
    plan: dict[Path, list[Dump]], options: ReadOptions, reporter: Reporter
) -> list[CanonicalFile]:
    """Write every file, and publish them when the last is complete."""
    folders: list[Path] = []
    files: list[CanonicalFile] = []
    try:
        for target, dumps in plan.items():
            folders += _made(target)
            file = CanonicalFile(target)
            files.append(file)
            fill(file, dumps, options, reporter)
        for file in files:
            file.publish()
    finally:
        for file in files:
            file.abort()
        for folder in reversed(folders):
            with suppress(OSError):  # it is not empty: something was published
                folder.rmdir()
    return files


def _made(target: Path) -> list[Path]:
    """Make a target's folders; gives those that are new."""
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
    return missing[::-1]
