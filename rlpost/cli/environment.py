"""The RLPOST_* environment variables, and errors that name the flag or variable as it was typed."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlpost.errors import DataError, RlpostError
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import typer


PREFIX = "RLPOST_"
EXECUTION = ("preset", "config", "device", "chunk_tokens", "workers", "engine")
"""Options that environment variables set, beside those of the recipe and the loss."""
_VARIABLE = "ENVIRONMENT"  # click's name for the source of such a value
_UNKNOWN = re.compile(r"no (preset|estimator) '")


def variable_of(name: str) -> str:
    """Return the environment variable of a field, or of another option."""
    return PREFIX + flag_of(name)[2:].upper().replace("-", "_")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each RLPOST_* variable that no option reads."""
    fields = {*Recipe.model_fields, *LossOptions.model_fields, *EXECUTION} - {"estimator_name"}
    names = {variable_of(name).removeprefix(PREFIX) for name in fields}
    in_use = [name[len(PREFIX) :] for name in sorted(environment) if name.startswith(PREFIX)]
    return [
        f"{PREFIX}{name} is set, but no option reads it{closest(name, names, PREFIX)}"
        for name in in_use
        if name not in names
    ]


def from_variable(context: typer.Context, name: str) -> bool:
    """Return whether a variable, and no flag, set the option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == _VARIABLE


@contextmanager
def naming_options(context: typer.Context) -> Iterator[None]:
    """Make errors about the value of an option begin with the flag or variable that set it."""
    try:
        yield
    except DataError:
        raise
    except RlpostError as error:
        names = [one.name for one in context.command.params if one.name]
        variables = {
            name: os.environ.get(variable_of(name), "")
            for name in names
            if from_variable(context, name)
        }
        lines = str(error).splitlines()
        text = "\n".join(_with_variable(_with_flag(line, context), variables) for line in lines)
        if text == str(error):
            raise
        raise type(error)(text) from error.__cause__


def _with_flag(line: str, context: typer.Context) -> str:
    """Return the line with the flag of an unknown preset or estimator in front."""
    unknown = _UNKNOWN.match(line)
    if unknown is None or not context.params.get(unknown[1]):
        return line
    return f"{flag_of(unknown[1])}: {line}"


def _with_variable(line: str, variables: Mapping[str, str]) -> str:
    """Return the line with the variable that set the wrong value, in place of its flag."""
    for name, value in variables.items():
        variable, flag = variable_of(name), flag_of(name)
        if line.startswith((f"{flag} ", f"{flag}:")):
            rest = line.removeprefix(flag)
            quoted = rest[0] == " " and value.startswith(rest.split()[0].rstrip(":"))
            return f"{variable}={rest[1:]}" if quoted else variable + rest
        if repr(value) in line or line.startswith(f"{value}:"):
            return f"{variable}: {line}"
    return line
