"""The state file: running reward statistics that one run saves and the next one loads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.locks import FileLock
from rlpost.io.staged import StagedFile
from rlpost.kernels.rewards import RunningMoments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_VERSION = 1


def load_state(path: Path | None) -> dict[str, RunningMoments]:
    """Return the statistics of each domain; empty if the file does not exist yet.

    Raises:
        ReadWriteError: the file cannot be read.
        DataError: it is not a state file of this version.
    """
    if path is None:
        return {}
    try:
        if not path.exists():
            return {}
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["version"] != _VERSION:
            raise DataError(f"{path}: state of version {table['version']}; {_VERSION} is needed")
        return {name: RunningMoments(**values) for name, values in table["running"].items()}
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path}: is not a state file; --state needs a file that rlpost wrote, or a new path"
        ) from None


def save_state(path: Path, running: Mapping[str, RunningMoments]) -> None:
    """Write the statistics; the old file stays until the new one is complete.

    Raises:
        ReadWriteError: the file cannot be written.
    """
    table = {
        "version": _VERSION,
        "running": {name: asdict(moments) for name, moments in running.items()},
    }
    with FileLock([path]):
        staged = StagedFile(path)
        try:
            staged.write(0, (json.dumps(table, indent=1) + "\n").encode())
            staged.complete()
            staged.publish()
        finally:
            staged.discard()
