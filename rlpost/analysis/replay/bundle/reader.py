"""Bundles: zip files with a few responses, their recorded numbers and a recipe; how to open one."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.errors import DataError, RlpostError, UsageError
from rlpost.io.locks import scratch_folder
from rlpost.io.paths import PathText, parse_path
from rlpost.io.staged import file_errors
from rlpost.recipe import semantics
from rlpost.recipe.loss import LossOptions, is_own
from rlpost.recipe.presets import DEFAULT, loss_values_of, values_of
from rlpost.recipe.recipe import Recipe, load_toml

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
SCHEMA = 1
"""The version of `case.json`."""
SUFFIX = ".zip"
ROLLOUTS, CASE, RECIPE, README = "rollouts.parquet", "case.json", "recipe.toml", "README.txt"
MOST_TEXT = 1 << 20
"""Bytes of `case.json`, and of `recipe.toml`."""
MOST_RATIO = 20
"""Of the bytes of `rollouts.parquet` to those in the zip file; Parquet is compressed already."""
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class OpenBundle:
    """The content of an open bundle."""

    file: Path
    """The zip file."""
    path: Path
    """`rollouts.parquet`, until the bundle is closed."""
    facts: Json
    """`case.json`."""
    recipe: Recipe | None
    """None if the bundle has no recipe."""
    loss: LossOptions | None
    """The policy loss, if the recipe has one."""

    @property
    def columns_map(self) -> dict[str, str]:
        """Role, or recorded column, to column, as of `--map`."""
        return dict(self.facts["columns_map"])

    @property
    def warnings(self) -> list[str]:
        """Return the warnings of its writer, and one of other semantics than this version's."""
        noted = self.facts.get("warnings")
        texts = [text for text in noted if isinstance(text, str)] if isinstance(noted, list) else []
        number = semantics.parse(self.facts["semantics"])
        other = f"the bundle has {semantics.describe(number)}"
        return [*texts, *([other] if number != semantics.SEMANTICS else [])]


def is_bundle(path: PathText) -> bool:
    """Return whether a path has the name of a zip file; `open_bundle` reads what is in it.

    Other files are not opened: dumps of torch are zip files, too.
    """
    return parse_path(path).suffix.lower() == SUFFIX


@contextmanager
def open_bundle(path: PathText) -> Iterator[OpenBundle]:
    """Yield the content of a bundle, which is untrusted; see `rlpost.recipe.named`.

    Only the members of a bundle are read, into a temporary folder. Errors from within the block
    name the bundle.

    Args:
        path: local, or a URL.

    Raises:
        DataError: not a bundle, a damaged one, or one of a later version.
        ReadWriteError: it cannot be read, or the temporary folder is full.
    """
    from rlpost.formats.inputs import fetched_inputs  # noqa: PLC0415 - imports the dump formats

    with fetched_inputs([path], tables=True) as local, scratch_folder(None) as folder:
        zipped = Path(str(parse_path(local.paths[0])))  # of file:// URLs, too
        with file_errors(zipped, "cannot be read"):
            _extract(zipped, folder)
        facts = _facts_of(folder / CASE, zipped)
        recipe, loss = _recipe_of(folder / RECIPE, zipped)
        try:
            yield OpenBundle(zipped, folder / ROLLOUTS, facts, recipe, loss)
        except RlpostError as error:
            own = f"{zipped}: {ROLLOUTS}"
            raise error.reworded(lambda text: text.replace(str(folder / ROLLOUTS), own)) from None


def _extract(path: Path, folder: Path) -> None:
    """Write the members of a bundle into a folder.

    Raises:
        DataError: not a zip file, or members are missing, are there twice or are too large.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file; a file that rlpost bundle wrote is needed")
    try:
        with zipfile.ZipFile(path) as file:
            for entry in _members(file, path):
                _copy(file, entry, folder / entry.filename)
    except _DAMAGE as error:
        raise DataError(
            f"{path}: not a zip file, or damaged ({error}); a file that rlpost bundle wrote is "
            "needed"
        ) from None


def _members(file: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a bundle; raises DataError as `_extract`."""
    entries = [entry for entry in file.infolist() if entry.filename in (ROLLOUTS, CASE, RECIPE)]
    names = [entry.filename for entry in entries]
    for name in (ROLLOUTS, CASE):
        if names.count(name) != 1 or len({*names}) < len(names):
            raise DataError(
                f"{path}: has {names.count(name)} files {name}, so rlpost bundle did not write it; "
                "a bundle is needed, or unpack it and name the rollouts in it"
            )
    for entry in entries:
        more = MOST_RATIO * entry.compress_size if entry.filename == ROLLOUTS else 0
        if entry.file_size > MOST_TEXT + more or entry.compress_type not in _KINDS:
            raise DataError(
                f"{path}: {entry.filename} has {entry.file_size:,} bytes, compressed to "
                f"{entry.compress_size:,}, as no bundle of rlpost has; write it again"
            )
    return entries


def _copy(file: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write a member to a file, which has at most the bytes that the member declares."""
    left = entry.file_size
    with file.open(entry) as member, target.open("wb") as copy:
        while block := member.read(min(left + 1, _BLOCK)):
            left -= len(block)
            if left < 0:
                raise zipfile.BadZipFile(f"{entry.filename} is longer than it declares")
            copy.write(block)


def _facts_of(file: Path, path: Path) -> Json:
    """Return `case.json`; raises DataError if it is damaged or of a later version."""
    try:
        facts = json.loads(file.read_bytes())
        number, columns = int(facts["rlpost_bundle"]), dict(facts["columns_map"])
        semantics.parse(facts["semantics"])
        texts = all(isinstance(text, str) for pair in columns.items() for text in pair)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: its {CASE} is damaged: {str(error)[:200]}") from None
    if not texts:
        raise DataError(f"{path}: its {CASE} is damaged: columns_map has values that are no names")
    if number > SCHEMA:
        raise DataError(
            f"{path}: a bundle of version {number}; rlpost {__version__} reads version {SCHEMA}: "
            "pip install --upgrade rlpost"
        )
    return dict(facts)


def _recipe_of(file: Path, path: Path) -> tuple[Recipe | None, LossOptions | None]:
    """Return the recipe and the loss of a bundle; raises DataError if they are invalid."""
    if not file.exists():
        return None, None
    where = f"{path}: {RECIPE}"
    try:
        fields = load_toml(file)
        loss, name = fields.pop("loss", None), fields.pop("preset", DEFAULT)
        recipe = Recipe.of(values_of(name, fields), where)
        own = None if loss is None else LossOptions.of(loss_values_of(name, loss), where)
    except (UsageError, ValueError, TypeError, AttributeError) as error:
        text = str(error).replace(f"{file}: ", "").removeprefix(f"{where}: ")
        raise DataError(f"{where}: {text[:400]}") from None
    if own is not None and is_own(own.loss):
        raise DataError(f"{where}: loss {own.loss}: code that a bundle names is not imported")
    return recipe, own
