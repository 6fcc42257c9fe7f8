"""What enriched files say of themselves in their metadata, which is data of anybody's.

Which part of which run a file is: noted in its metadata, so that it can be made again.

The statistics of a run may span its files. So a file says how many files the run had, which of
these it is, and by a digest of all their names and rows which run it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.errors import DataError, UsageError
from rlpost.kernels.rewards import RunningMoments
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.io.parquet.inputs import InputFile


KEY = "rlpost.run"
PRESET = "rlpost.preset"


@dataclass(frozen=True)
class Part:
    """A file's place in its run."""

    run: str
    """The same for all files of a run."""
    file: int
    """Which one it is, from 0."""
    files: int
    rows: int
    """Of all files."""
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The running moments that the run began with, by domain, where it used any."""
    asked: dict[str, str] = field(default_factory=dict)
    """The preset that the recipe was made of, and the estimator by the framework's name."""

    @property
    def note(self) -> dict[str, str]:
        """The entries of the file's metadata."""
        values = asdict(self)
        asked = values.pop("asked")
        if not self.running:
            del values["running"]
        return {KEY: json.dumps(values)} | ({PRESET: json.dumps(asked)} if asked else {})

    @classmethod
    def of(cls, text: str) -> Part:
        """The part that a note speaks of; raises ValueError, TypeError where it is none."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Whole:
    """All files of a run."""

    run: str
    files: int
    rows: int
    running: dict[str, dict[str, Any]]
    asked: dict[str, str] = field(default_factory=dict)

    def part(self, index: int) -> Part:
        """One of its files."""
        return Part(self.run, index, self.files, self.rows, self.running, self.asked)


def run_identity_of(
    files: Sequence[InputFile],
    first_rows: Sequence[int],
    running: Mapping[str, RunningMoments],
    asked: Mapping[str, str],
) -> Whole:
    """A run over these files.

    Args:
        files: the inputs.
        first_rows: the row number of each one's first row, and that of all rows.
        running: the moments that the run begins with, where it uses any.
        asked: the preset and the estimator that were asked for, where a preset was.
    """
    text = json.dumps([[str(file.relative) for file in files], [*first_rows]])
    moments = {name: asdict(one) for name, one in running.items()}
    return Whole(
        sha256(text.encode()).hexdigest()[:32], len(files), first_rows[-1], moments, dict(asked)
    )


Json = dict[str, Any]
_DEEPEST = 50  # lists within lists
_LONGEST = 400  # characters of what is wrong


@dataclass(frozen=True)
class Claim:
    """What an enriched file says of itself."""

    file: InputFile
    rows: int
    version: str
    recipe: Recipe
    summary: Json | None
    """None in a file of losses, whose advantages were made on the way."""
    part: Part

    def check(self) -> None:
        """Raise TypeError, LookupError, AttributeError where these are not what rlpost writes."""
        if self.summary is not None:
            _ = [told["column"].strip() for told in self.summary["roles"].values()]
        for number in (self.part.file, self.part.files, self.part.rows):
            if not isinstance(number, int):
                raise TypeError(f"{KEY} counts {number!r}")
        if not isinstance(self.part.run, str):
            raise TypeError(f"{KEY} calls its run {self.part.run!r}")
        for moments in self.part.running.values():
            _ = [float(number) for number in vars(RunningMoments(**moments)).values()]

    @property
    def notes(self) -> list[str]:
        """What keeps the file from being compared in full."""
        found = []
        if self.summary is None:
            found.append("it has no summary to compare")
        if self.version != __version__:
            found.append(f"it was {_written_by(self.version)}")
        return found


def claim_of(file: InputFile, rows: int, metadata: dict[bytes, bytes]) -> Claim:
    """What a file's metadata says.

    Args:
        file: the file.
        rows: it has.
        metadata: of its footer.

    Raises:
        DataError: it is no enriched file, its metadata is damaged, or names code to execute.
    """
    own = {key: value for key, value in metadata.items() if key.startswith(b"rlpost.")}
    text = {key.decode(errors="replace"): value for key, value in own.items()}
    if "rlpost.recipe" not in text:
        raise DataError(
            f"{file.path}: is not a file that rlpost advantages wrote: its metadata has no "
            "`rlpost.recipe`"
        )
    try:
        alone = Part(str(file.path), 0, 1, -1)
        version = text.get("rlpost.version", b"unknown").decode()
        recipe = _recipe_of(file, text["rlpost.recipe"], version)
        claim = Claim(
            file,
            rows,
            version,
            recipe,
            _loaded(text["rlpost.summary"]) if "rlpost.summary" in text else None,
            Part.of(text[KEY].decode()) if KEY in text else alone,
        )
        claim.check()
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DataError(f"{file.path}: its metadata is damaged: {cut(error)}") from None
    except RecursionError:
        raise DataError(f"{file.path}: its metadata is damaged: nested too deeply") from None
    return claim


def _loaded(text: bytes) -> Any:
    """A value from JSON; what is nested deeper than anything that rlpost writes is an error."""
    level = [value := json.loads(text)]
    for _ in range(_DEEPEST):
        lists = [[*one.values()] if isinstance(one, dict) else one for one in level]
        level = [inner for one in lists if isinstance(one, list) for inner in one]
    if level:
        raise RecursionError
    return value


def cut(error: Exception) -> str:
    """The start of a text that may quote all of a file's metadata."""
    text = str(error)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _written_by(version: str) -> str:
    return f"written by rlpost {version}, this is {__version__}"


def _recipe_of(file: InputFile, text: bytes, version: str) -> Recipe:
    """The recipe in a file's metadata, which is data: an invalid one is no wrong command line.

    Raises:
        DataError: it is invalid, or its estimator is code in some file, and data must not choose
            what is executed.
    """
    try:
        recipe = Recipe.of(_loaded(text), "rlpost.recipe")
    except UsageError as error:
        other = f" (it was {_written_by(version)})" if version != __version__ else ""
        raise DataError(
            f"{file.path}: the recipe in its metadata is invalid{other}: {cut(error)}"
        ) from None
    if ":" in recipe.estimator:
        raise DataError(
            f"{file.path}: its estimator is code in a file, {recipe.estimator}; verify executes "
            "nothing that a file names. Make it again from its input with rlpost advantages "
            "--estimator, and compare the two"
        )
    return recipe
