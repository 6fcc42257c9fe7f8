"""Copies of the commits that are compared, and copies with arithmetic changed on purpose."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import NamedTuple

WORKING = "working tree"
TOP = Path(__file__).parents[2]


class Break(NamedTuple):
    """A change of one formula, found by what it looks like rather than by where it is."""

    name: str
    pattern: str
    replacement: str


# Each pattern must match at exactly one place of the tree.
BREAKS = (
    Break(
        "the scale of masked whitening, times 1 + 1e-6",
        r"(\w+\.clamp\(min=[\w.]*whiten_eps\)\.rsqrt\(\))",
        r"\1 * (1 + 1e-6)",
    ),
    Break(
        "rloo divides by n instead of n - 1",
        r"(\w+) / \(\1 - 1\)\.clamp\(min=1\)",
        r"\1 / \1.clamp(min=1)",
    ),
)


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


def entry_of(tree: Path) -> str:
    """The function that the program `rlpost` of a tree calls, as MODULE:NAME."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["scripts"]["rlpost"]


def broken(tree: Path, how: Break) -> Path:
    """Change a formula in a tree; returns the file, relative to the tree.

    Raises:
        LookupError: the formula is nowhere, or at several places.
    """
    found = [
        path
        for path in sorted((tree / "rlpost").rglob("*.py"))
        for _ in re.finditer(how.pattern, path.read_text(encoding="utf-8"))
    ]
    if len(found) != 1:
        raise LookupError(f"{how.name}: the formula is at {len(found)} places, not at one: {found}")
    text = found[0].read_text(encoding="utf-8")
    found[0].write_text(re.sub(how.pattern, how.replacement, text), encoding="utf-8")
    return found[0].relative_to(tree)
