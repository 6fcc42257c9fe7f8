"""The RLPOST_* environment variables: their names, slips in them, and errors that they cause."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typer._click.globals import get_current_context

from rlpost.errors import DataError, RlpostError
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


FLAGS = {"columns": "--map", "teachers": "--teacher"}
PREFIX = "RLPOST_"
OF_RUNS = ("preset", "config", "device", "chunk_tokens", "workers", "engine")
"""Options beside those of the recipe and the loss that environment variables set."""
_LINE = "command line"
_VARIABLE = "ENVIRONMENT"  # what click calls the source of such a value


def flag_of(name: str) -> str:
    """The option of a field of Recipe."""
    return FLAGS.get(name, "--" + name.replace("_", "-"))


def variable_of(name: str) -> str:
    """The environment variable of a field of Recipe, or of another option."""
    return PREFIX + flag_of(name)[2:].upper().replace("-", "_")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """What to say of each RLPOST_* variable that no option reads: it is a slip, or another's."""
    fields = (*Recipe.model_fields, *LossOptions.model_fields, *OF_RUNS)
    known = {variable_of(name).removeprefix(PREFIX) for name in fields}
    set_ones = [name[len(PREFIX) :] for name in sorted(environment) if name.startswith(PREFIX)]
    return [
        f"{PREFIX}{name} is set, and no option reads it{closest(name, known, PREFIX)}"
        for name in set_ones
        if name not in known
    ]


@contextmanager
def naming_variables() -> Iterator[None]:
    """Let errors about a value that a variable gave name the variable, not the flag."""
    try:
        yield
    except DataError:
        raise
    except RlpostError as error:
        given = _given_by_variables()
        text = "\n".join(_named(line, given) for line in str(error).splitlines())
        if text == str(error):
            raise
        raise type(error)(text) from error.__cause__


def _given_by_variables() -> dict[str, str]:
    """The values, as they are written, of the options that variables set in this command."""
    context = get_current_context(silent=True)
    if context is None:
        return {}
    names = [one.name for one in context.command.params if one.name]
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, one in sources.items() if one is not None and one.name == _VARIABLE]
    return {name: os.environ.get(variable_of(name), "") for name in given}


def _named(line: str, given: Mapping[str, str]) -> str:
    """A line of an error that begins with the variable, where that gave what is wrong."""
    for name, value in given.items():
        variable, flag = variable_of(name), flag_of(name)
        if line.startswith((f"{flag} ", f"{flag}:")):
            return variable + line.removeprefix(flag).replace(" ", "=", line[len(flag)] == " ")
        if re.match(rf"{_LINE}: {name}\b", line):
            return variable + line.removeprefix(_LINE)
        if repr(value) in line or line.startswith(f"{value}:"):
            return f"{variable}: {line.removeprefix(f'{_LINE}: ')}"
    return line
