"""The output files of a run: their names, and whether they can be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.paths import RemotePath, check_target, is_output_folder, list_files, parse_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath, PathText


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[PathText], output: AnyPath, *, overwrite: bool
) -> list[AnyPath]:
    """Return the output of each file: OUT itself if it is a file, else a file in OUT.

    OUT is a file if its name ends with .parquet and it is no directory.

    Raises:
        UsageError: OUT has another suffix; it is a file, and there are several inputs; a target is
            an input, or exists and may not be overwritten.
        ReadWriteError: a target cannot be checked.
    """
    try:
        is_folder = is_output_folder(output)
        single = len(inputs) == 1 and parse_path(inputs[0]).is_file() and not is_folder
        if not single and not is_folder:
            raise UsageError(
                f"{output}: {len(files)} input files need a directory as OUT, not a file"
            )
        targets: list[AnyPath] = [output] if single else [output / file.relative for file in files]
        own = {file.path.resolve() for file in files}
        existing = _listed(output) if isinstance(output, RemotePath) and not single else None
        if not overwrite:  # of a file that --overwrite does not replace, the error says so
            check_overwritable([x for x in targets if existing is None or str(x) in existing])
        for target in targets:
            check_target(target, own, overwrite=overwrite, existing=existing)
    except OSError as error:
        raise ReadWriteError(f"{output}: cannot be written: {error.strerror}") from None
    return targets


def _listed(folder: RemotePath) -> set[str]:
    """Return the URLs of all objects and folders below a URL, in one request per thousand."""
    paths = [relative for _, relative in list_files(folder)]
    parts = {part for path in paths for part in (path, *path.parents)}
    return {str(folder / part) for part in parts}


def check_writable(path: str | Path | None) -> None:
    """Check before the run that a file can be written at its end.

    Raises:
        ReadWriteError: its directory is missing or not writable, or the path is a directory.
    """
    if path is None:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise ReadWriteError(f"{path}: cannot be written: there is no directory {folder}")
    if Path(path).is_dir():
        raise ReadWriteError(f"{path}: cannot be written: it is a directory")
    if not os.access(folder, os.W_OK):
        raise ReadWriteError(f"{path}: cannot be written: {folder} is not writable")
