"""The RLPOST_* variables: which one set an option, which are unknown, and errors that name them."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, ErrorPart, RlpostError, closest
from rlpost.recipe.flags import PREFIX, SET, field_of, variable_of
from rlpost.recipe.recipe import TABLES, Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import typer


_TYPED = re.compile(r"--(no-)?([a-z][a-z-]*)( (?=\w+=|[^\s:;-]+:))?")
"""A flag in a sentence, with the gap before its value."""
_VARIABLE = "ENVIRONMENT"  # click's name for the source of such a value


def variable_behind(context: Any, name: str) -> str | None:
    """Return the variable that set an option of a typer context; None if none did."""
    source = context.get_parameter_source(name)
    return variable_of(name) if source is not None and source.name == _VARIABLE else None


def unknown_variables(environment: Mapping[str, str], options: Collection[str]) -> list[str]:
    """Return a warning for each RLPOST_* variable that none of these options reads."""
    names = {variable_of(name).removeprefix(PREFIX) for name in options}
    in_use = [name[len(PREFIX) :] for name in sorted(environment) if name.startswith(PREFIX)]
    return [
        str(
            ErrorPart(
                f"{PREFIX}{name} is set, but no option reads it", closest(name, names, PREFIX)
            )
        )
        for name in in_use
        if name not in names
    ]


@contextmanager
def naming_variables(context: typer.Context) -> Iterator[None]:
    """Name variables and --set in errors, in place of flags that were not typed.

    An error that begins with a flag, or with the recipe file, begins with the variable that set it;
    a flag that the command lacks is named as the field of --set.
    """
    try:
        yield
    except RlpostError as error:
        parts = [*error.parts]
        if not isinstance(error, DataError):
            parts = [replace(part, text=with_variable(part.text, context)) for part in parts]
        if "assigned" in context.params:
            flags = {flag for parameter in context.command.params for flag in parameter.opts}
            parts = [part.changed(lambda text: with_set(text, flags)) for part in parts]
        if parts == [*error.parts]:
            raise
        raise error.with_parts(parts) from error.__cause__


def with_variable(line: str, context: typer.Context) -> str:
    """Return the line with the variable that set the wrong value, in place of its flag."""
    file = context.params.get("config")
    if file is not None and line.startswith(f"{file}:"):
        variable = variable_behind(context, "config")
        return line if variable is None else f"{variable}: {line}"
    flag = re.match(r"--[a-z-]+", line)
    variable = variable_behind(context, field_of(flag[0])) if flag else None
    if flag is None or variable is None:
        return line
    rest = line[flag.end() :]
    word = rest.split(maxsplit=1)[0].rstrip(":") if rest[:1] == " " else ""
    is_value = word and os.environ.get(variable, "").startswith(word.strip("'"))
    return f"{variable}={rest[1:]}" if is_value else f"{variable}{rest}"


def assigning(flag: str) -> str:
    """Return the option that sets the field of a flag; empty if it is the flag of no field."""
    field = field_of(flag)
    if field not in Recipe.model_fields:
        return ""
    return f"{SET} {field}{'.NAME' * (field in TABLES)}=VALUE"


def with_set(text: str, flags: Collection[str]) -> str:
    """Return a text with `--set FIELD` in place of flags of fields that are none of these.

    >>> with_set("--gamma 2: needs --kl-coef; --estimator gae reads it", ["--estimator"])
    '--set gamma=2: needs --set kl_coef; --estimator gae reads it'
    >>> with_set("--numerics single=raw without --no-whiten-rewards", [])
    '--set numerics.single=raw without --set whiten_rewards=false'
    """

    def assigned(typed: re.Match[str]) -> str:
        off, field, gap = typed[1], field_of(f"--{typed[2]}"), typed[3]
        if f"--{off or ''}{typed[2]}" in flags or field not in Recipe.model_fields:
            return typed[0]
        joint = "." if field in TABLES else "="
        return f"{SET} {field}{'=false' * bool(off)}{joint * bool(gap)}"

    return _TYPED.sub(assigned, text)
