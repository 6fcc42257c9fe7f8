"""Copies of the commits that are compared."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

from tests.equality.cases import BASE

WORKING = "working tree"
TOP = Path(__file__).parents[2]


def materialise(commit: str, folder: Path) -> Path:
    """Write the files of a commit, or of the working tree as it is, to a folder."""
    folder.mkdir(parents=True)
    if commit != WORKING:
        packed = git("archive", "--format=tar", commit)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return folder
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in listed.decode().split("\0"):
        if name and (TOP / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, folder / name)
    return folder


def git(*words: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=TOP, check=True, capture_output=True).stdout


def named(commit: str) -> str:
    """A commit's short name."""
    if commit == WORKING:
        return WORKING
    return git("log", "-1", "--format=%h %s", commit).decode().strip()


def is_base(commit: str) -> bool:
    """Whether a commit is the one whose options `OLD_WORDS` has."""
    return commit != WORKING and git("rev-parse", commit) == git("rev-parse", BASE)


def entry_of(tree: Path) -> str:
    """The function that the program `rlpost` of a tree calls, as MODULE:NAME."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["scripts"]["rlpost"]
