"""Values that the shell offers on TAB: estimators, presets, fields, columns of the input.

Typer completes commands, options and enumerations; these functions return other values, each with
its help or an empty text. The shell runs the program at each TAB. So nothing here takes long: torch
is never imported, pyarrow only for a footer of megabytes. Names and formulas are read from the
generated tables of the manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, get_args

import typer  # noqa: TC002 - typer reads annotations

from rlpost import manual
from rlpost.recipe import presets as framework_presets
from rlpost.recipe.base import choices_in
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import EXTRA, LOSS_EXTRA, TABLES, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from pydantic import BaseModel

_COMPARE_STAGES = ("replay", "report")
Offers = Iterable[tuple[str, str]]
Completer = Callable[..., Offers]


def choices_of(metavar: str | None) -> Completer | None:
    """Return a completer of the words in a metavar such as `k1|k2|FLOAT`; None if it has none."""
    words = re.findall(r"(?:^|\|)([a-z0-9_-]+)", metavar or "")
    return (lambda: [(word, "") for word in words]) if words else None


def names(kind: str) -> dict[str, str]:
    """Return the names that `rlpost list KIND` lists, with a line about each.

    They come from the manual's generated tables: torch and pyarrow are not imported.
    """
    if kind == "presets":
        both = (*framework_presets.PRESETS, framework_presets.DEFAULT)
        return {name: framework_presets.about(name) for name in both}
    table, column = _TABLES[kind]
    first, *_ = manual.table(table)[0]
    return {row[first]: row[column] for row in manual.table(table)}


_TABLES = {
    "estimators": ("estimators", "formula"),
    "losses": ("losses", "what it is"),
    "dumps": ("formats", "dump"),
    "targets": ("export", "writes"),
    "checks": ("findings", "meaning"),
}
"""The table of the manual that has the names of a kind, and what its column says of them."""
KINDS = (*_TABLES, "presets")


def of_kind(kind: str) -> Completer:
    """Return a completer of the names of a kind, those of packages and of the preset, too."""

    def offered(context: typer.Context) -> Offers:
        entries = names(kind)
        if kind == "estimators":
            installed = {
                point.name: point.value for point in entry_points(group="rlpost.estimators")
            }
            entries = entries | installed | _variants(context, framework_presets.variants)
        if kind == "losses":
            entries |= _variants(context, framework_presets.loss_variants)
        return entries.items()

    return offered


def kinds() -> Offers:
    """Return what `rlpost list` lists."""
    return [(kind, "") for kind in KINDS]


def listed(context: typer.Context) -> Offers:
    """Return what `rlpost list` lists of a kind."""
    kind = str(context.params.get("kind"))
    return of_kind(kind)(context) if kind in KINDS else []


def aggregations() -> Offers:
    """Return the aggregations of token losses."""
    return ABOUT_AGGREGATIONS.items()


def _variants(context: typer.Context, variants: Callable[[str], tuple[str, ...]]) -> dict[str, str]:
    """Return the variants of one or several presets of the command line."""
    typed = context.params.get("preset") or ()
    presets = [typed] if isinstance(typed, str) else typed
    return {
        variant: f"of preset {name}"
        for name in presets
        if name in framework_presets.PRESETS
        for variant in variants(name)
    }


def corrections(_incomplete: str) -> Offers:
    """Return the named corrections of frameworks."""
    return [
        (name, "sets the policy loss, too" * bool(framework_presets.correction_named(name).loss))
        for name in framework_presets.corrections()
    ]


def column(context: typer.Context) -> Offers:
    """Return the columns of the input: of the first argument that is a file."""
    from rlpost.io.parquet.column_names import column_names  # noqa: PLC0415

    paths: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.param_type_name == "argument" and value:
            paths += [value] if isinstance(value, str) else value
    return [(name, "") for name in column_names([*paths, *context.args])]


def roles(context: typer.Context, incomplete: str) -> Offers:
    """Return ROLE=COLUMN, the columns from the input; also stages if the command compares them."""
    about = {name: f"{role.kind}: {', '.join(role.aliases[:3])}" for name, role in ROLES.items()}
    if context.info_name in _COMPARE_STAGES:
        stages = manual.table("recorded")
        about = {row["column"]: f"recorded: {row['stage']}" for row in stages} | about
    return _pairs(incomplete, about, lambda _: column(context))


def numerics(incomplete: str) -> Offers:
    """Return NAME=VALUE of the fields of Numerics."""
    return _pairs(incomplete, _descriptions(Numerics), lambda name: _values(Numerics, name))


def options(context: typer.Context, incomplete: str) -> Offers:
    """Return NAME=VALUE of the options of the estimator, or of all estimators."""
    rows = {row["--option"]: row for row in manual.table("options-of-estimators")}
    chosen = f"`{context.params.get('estimator')}`"
    read = {x: row["meaning"] for x, row in rows.items() if chosen in f"`{row['estimators']}`"}

    def values(name: str) -> Offers:
        first, *others = rows[name]["type"].split("|")
        return [(word, "") for word in (first, *others)] if others and "None" not in others else []

    return _pairs(incomplete, read or {x: rows[x]["meaning"] for x in rows}, values)


def fields(incomplete: str) -> Offers:
    """Return FIELD=VALUE of the fields of a recipe, and numerics.NAME=VALUE."""
    about = {name: text for name, text in _descriptions(Recipe).items() if name not in TABLES}
    about |= {f"numerics.{name}": text for name, text in _descriptions(Numerics).items()}

    def values(path: str) -> Offers:
        table, _, name = path.rpartition(".")
        return _values(Numerics if table else Recipe, name)

    return _pairs(incomplete, about, values)


def _values(model: type[BaseModel], name: str) -> Offers:
    """Return the words of a field's type, else its default if that is a number."""
    info = model.model_fields[name]
    words = [str(word) for word in choices_in(info.annotation)]
    if bool in (info.annotation, *get_args(info.annotation)):
        words += ["true", "false"]
    about = " ".join((info.description or "").split())
    if words or not isinstance(info.default, float):
        return [(word, about) for word in words]
    return [(f"{info.default:g}", "the default")]


def topics() -> Offers:
    """Return the topics of inspect, and its checks."""
    rows = manual.table("about")
    return [*((row["topic"], row["content"]) for row in rows), *names("checks").items()]


def sweeps(context: typer.Context, incomplete: str) -> Offers:
    """Return NAME=VALUE of the options of losses."""
    about = _descriptions(LossOptions)
    return _pairs(
        incomplete, about, lambda name: of_kind("losses")(context) if name == "loss" else []
    )


def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    fields = model.model_fields.items()
    return {name: " ".join((info.description or "").split()) for name, info in fields}


def _pairs(incomplete: str, about: dict[str, str], values: Callable[[str], Offers]) -> Offers:
    """Return NAME= for several names; NAME=VALUE for a single one, since shells append a space."""
    name, equals, _ = incomplete.partition("=")
    near = [other for other in about if other.startswith(name)]
    chosen = name if equals else near[0] if len(near) == 1 else ""
    if chosen not in about:
        return [(f"{other}=", about[other]) for other in near]
    return [(f"{chosen}={value}", text) for value, text in values(chosen)] or [
        (f"{chosen}=", about[chosen])
    ]


def emitted(context: typer.Context, incomplete: str) -> Offers:
    """Return the next column to write."""
    of_loss = LOSS_EXTRA if context.info_name == "loss" else ()
    return _next(incomplete, [*WRITTEN, *EXTRA, *of_loss])


def column_list(context: typer.Context, incomplete: str) -> Offers:
    """Return the next column of the input."""
    return _next(incomplete, [name for name, _ in column(context)])


def _next(incomplete: str, values: Iterable[str]) -> Offers:
    """Return the next values of a list with commas."""
    before, comma, _ = incomplete.rpartition(",")
    present = before.split(",")
    return [(f"{before}{comma}{value}", "") for value in values if value not in present]
