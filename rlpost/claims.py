"""What enriched files say of themselves in their metadata, which is data of anybody's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.errors import DataError, UsageError
from rlpost.kernels.rewards import RunningMoments
from rlpost.provenance import KEY, Part
from rlpost.recipe import Recipe

if TYPE_CHECKING:
    from rlpost.parquet.inputs import InputFile

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
