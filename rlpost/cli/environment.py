"""The RLPOST_* variables: which one set an option, which are unknown, and errors that name them."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, ErrorPart, RlpostError, closest
from rlpost.recipe.flags import PREFIX, field_of, variable_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import typer


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
    """Name variables in errors, in place of flags that were not typed.

    An error that begins with a flag, or with the recipe file, begins with the variable that set it.
    """
    try:
        yield
    except RlpostError as error:
        parts = [*error.parts]
        if not isinstance(error, DataError):
            parts = [replace(part, text=with_variable(part.text, context)) for part in parts]
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
