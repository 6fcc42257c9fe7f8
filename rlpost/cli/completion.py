"""Values that the shell offers on TAB: estimators, presets, fields, columns of the input.

Typer completes commands, options and enumerations; these functions return other values, each with
its help or an empty text. The shell runs the program at each TAB. So nothing here takes long: torch
is never imported, pyarrow only for a footer of megabytes. Names and formulas are read from the
generated tables of the manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer  # noqa: TC002 - typer reads annotations

from rlpost import manual
from rlpost.recipe import presets as framework_presets
from rlpost.recipe.base import choices_in
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

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
    """Return a completer of the names of a kind."""
    return lambda: names(kind).items()


def kinds() -> Offers:
    """Return what `rlpost list` lists."""
    return [(kind, "") for kind in KINDS]


def listed(context: typer.Context) -> Offers:
    """Return what `rlpost list` lists of a kind."""
    kind = str(context.params.get("kind"))
    return names(kind).items() if kind in KINDS else []


def corrections() -> Offers:
    """Return the named corrections of frameworks."""
    return [(name, "") for name in framework_presets.corrections()]


def topics() -> Offers:
    """Return the topics of inspect, and its checks."""
    rows = manual.table("about")
    return [*((row["topic"], row["content"]) for row in rows), *names("checks").items()]


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
    """Return ROLE= for several roles; of one ROLE=COLUMN, since shells append a space."""
    near = [role for role in ROLES if role.startswith(incomplete.partition("=")[0])]
    if len(near) > 1 and "=" not in incomplete:
        return [(f"{role}=", ", ".join(ROLES[role].aliases[:3])) for role in near]
    return [(f"{near[0]}={name}", "") for name, _ in column(context)] if near else []


def fields(*models: type[BaseModel]) -> Completer:
    """Return a completer of NAME= of the fields of models; of a field with words, of its values."""

    def offered() -> Iterator[tuple[str, str]]:
        for model in models:
            start = "numerics." * (model is Numerics and len(models) > 1)
            for name, info in model.model_fields.items():
                about = " ".join((info.description or "").split())
                words = [str(word) for word in choices_in(info.annotation)] or [""]
                yield from ((f"{start}{name}={word}", about) for word in words)

    return lambda incomplete: [x for x in offered() if x[0].startswith(incomplete)]


def options() -> Offers:
    """Return NAME= of the options of estimators."""
    rows = manual.table("options-of-estimators")
    return [(f"{row['--option']}=", row["meaning"]) for row in rows]


def next_of(values: Callable[[typer.Context], Iterable[str]]) -> Completer:
    """Return a completer of the next values of a list with commas."""

    def offered(context: typer.Context, incomplete: str) -> Offers:
        before, comma, _ = incomplete.rpartition(",")
        return [(f"{before}{comma}{x}", "") for x in values(context) if x not in before.split(",")]

    return offered


emitted = next_of(lambda _: [*WRITTEN, *EXTRA])
column_list = next_of(lambda context: [name for name, _ in column(context)])
