"""Values that the shell offers on TAB: estimators, presets, fields, columns of the input.

Typer writes the shell's script (`rlpost --show-completion`) and runs the program at each TAB. So
nothing here takes long: torch is never imported, pyarrow only for a footer of megabytes. Names and
formulas are read from the generated tables of the manual.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal, get_args, get_origin

import typer  # noqa: TC002 - typer reads annotations

from rlpost import manual
from rlpost.recipe import presets as framework_presets
from rlpost.recipe.loss import ABOUT, ABOUT_AGGREGATIONS, LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping

    Offers = Iterable[tuple[str, str]]
    """Values, each with its help or an empty text."""
    Completer = Callable[..., list[tuple[str, str]]]
    """What typer calls with the context and the incomplete word."""


REQUEST = "_RLPOST_COMPLETE"
"""The environment variable by which a shell requests completion."""


def _completer(offers: Callable[[typer.Context, str], Offers]) -> Completer:
    """Return a function as typer calls it; each value is offered once."""

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return [*dict(offers(context, incomplete)).items()]

    return complete


def words(*values: str) -> Completer:
    """Return a completer of these values."""
    return _completer(lambda _context, _incomplete: [(value, "") for value in values])


def choices_of(metavar: str | None) -> Completer | None:
    """Return a completer of the words in a metavar such as `k1|k2|FLOAT`; None if it has none."""
    values = [word for word in (metavar or "").split("|") if re.fullmatch(r"[a-z0-9_-]+", word)]
    return words(*values) if values and "|" in str(metavar) else None


@_completer
def estimators(context: typer.Context, incomplete: str) -> Offers:
    """Estimators, those of installed packages and those that the preset has variants of."""
    del incomplete
    yield from names("estimators").items()
    yield from ((point.name, point.value) for point in entry_points(group="rlpost.estimators"))
    preset = context.params.get("preset")
    for name in [preset] if isinstance(preset, str) else list(preset or []):
        if name in framework_presets.ALL_PRESETS:
            variants = framework_presets.variants(name)
            yield from ((variant, f"of preset {name}") for variant in variants)


def names(table: str) -> dict[str, str]:
    """Return the names of `estimators` with formulas, or of `formats` with titles.

    They come from the manual's generated tables: torch and pyarrow are not imported.
    """
    column = {"estimators": "formula", "formats": "dump"}[table]
    first, *_ = manual.table(table)[0]
    return {row[first]: row[column] for row in manual.table(table)}


def _losses(context: typer.Context) -> Offers:
    yield from ABOUT.items()
    name = str(context.params.get("preset"))
    if name in framework_presets.ALL_PRESETS:
        variants = framework_presets.loss_variants(name)
        yield from ((variant, f"of preset {name}") for variant in variants)


losses = _completer(lambda context, _: _losses(context))
aggregations = _completer(lambda _context, _: ABOUT_AGGREGATIONS.items())
formats = _completer(lambda _context, _: names("formats").items())
topics = _completer(lambda _context, _: manual.TOPICS.items())


@_completer
def presets(context: typer.Context, incomplete: str) -> Offers:
    """Presets, with the framework of each; those of earlier code only after `@`."""
    del context
    listed = framework_presets.ALL_PRESETS if "@" in incomplete else framework_presets.PRESETS
    every = (*listed, framework_presets.DEFAULT)
    return [(name, framework_presets.about(name)) for name in every]


def _pairs(incomplete: str, about: dict[str, str], values: Callable[[str], Offers]) -> Offers:
    """Offer NAME= for several names; NAME=VALUE for a single one, since shells append a space."""
    name, equals, _ = incomplete.partition("=")
    near = [one for one in about if one.startswith(name)]
    chosen = name if equals else near[0] if len(near) == 1 else ""
    if chosen not in about:
        return [(f"{one}=", about[one]) for one in near]
    return [(f"{chosen}={value}", text) for value, text in values(chosen)] or [
        (f"{chosen}=", about[chosen])
    ]


@_completer
def roles(context: typer.Context, incomplete: str) -> Offers:
    """ROLE=COLUMN, the columns from the input."""
    about = {name: f"{role.kind}: {', '.join(role.aliases[:3])}" for name, role in ROLES.items()}
    return _pairs(incomplete, about, lambda _: _columns(context))


def _columns(context: typer.Context) -> Offers:
    """Offer the columns of the input: of the first argument that is a file."""
    from rlpost.io.parquet.column_names import column_names  # noqa: PLC0415

    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.param_type_name == "argument" and value:
            arguments += [value] if isinstance(value, str) else [str(one) for one in value]
    return [(name, "") for name in column_names([*arguments, *context.args])]


column = _completer(lambda context, _: _columns(context))
teachers = _completer(
    lambda context, _: [(f"{name}=1", "weight 1") for name, _ in _columns(context)]
)


@_completer
def numerics(context: typer.Context, incomplete: str) -> Offers:
    """NAME=VALUE of the fields of Numerics."""
    del context
    fields = Numerics.model_fields
    about = {name: " ".join((info.description or "").split()) for name, info in fields.items()}

    def values(name: str) -> Offers:
        info = fields[name]
        if get_origin(info.annotation) is Literal:
            return [(str(value), about[name]) for value in get_args(info.annotation)]
        return [(f"{info.default:g}", "the default")]

    return _pairs(incomplete, about, values)


@_completer
def sweeps(context: typer.Context, incomplete: str) -> Offers:
    """NAME=VALUE of the options of losses."""
    fields = LossOptions.model_fields
    about = {name: " ".join((info.description or "").split()) for name, info in fields.items()}
    return _pairs(incomplete, about, lambda name: _losses(context) if name == "loss" else [])


def _next(incomplete: str, values: Iterable[str]) -> Offers:
    """Offer the next value of a list with commas."""
    before, comma, _ = incomplete.rpartition(",")
    present = before.split(",")
    return [(f"{before}{comma}{value}", "") for value in values if value not in present]


emitted = _completer(lambda _, incomplete: _next(incomplete, [*WRITTEN, *EXTRA]))
column_list = _completer(
    lambda context, incomplete: _next(incomplete, [name for name, _ in _columns(context)])
)


@contextmanager
def joined_words(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Complete a word that bash split at `=` and `:`, and print only the part after the split."""
    joined = join_words(environment)
    if not joined:
        yield
        return
    try:
        with redirect_stdout(io.StringIO()) as offered:
            yield
    finally:
        lines = offered.getvalue().splitlines(keepends=True)
        sys.stdout.writelines(line.removeprefix(joined) for line in lines)


def join_words(environment: MutableMapping[str, str]) -> str:
    """Join the words of COMP_WORDS that bash split at `=` and `:`, as in `--map role=column`.

    Returns:
        The part of the last word before the split, which completions for bash do not repeat.
    """
    if not environment.get(REQUEST, "").endswith("_bash"):
        return ""
    if "\n" not in environment.get("COMP_WORDS", ""):  # not from the script that typer writes
        return ""
    split, cursor = environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"])
    joined: list[str] = []
    before, glued = "", False
    for word in split[: cursor + 1]:
        breaks = re.fullmatch("[=:]+", word) is not None
        if joined and (breaks or glued):
            before = joined[-1] + (word if breaks else "")
            joined[-1] += word
        else:
            before = ""
            joined.append(word)
        glued = breaks
    if joined[-1].startswith("--"):  # `--flag=value`: the flag is no part of the completed word
        flag, equals, _ = before.partition("=")
        before = before.removeprefix(flag + equals)
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(len(joined) - 1)
    return before
