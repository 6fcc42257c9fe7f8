"""Errors on stderr: `error:` and a sentence, what to do below; also those of the option parser."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument

from rlpost.cli.help_screen import usage_of, value_of
from rlpost.errors import (
    ErrorPart,
    ReadWriteError,
    RlpostError,
    UnavailableError,
    UsageError,
    closest,
    series,
)
from rlpost.recipe.flags import field_of
from rlpost.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

ERROR = "error: "
_PROGRAMS = ("rlpost ", "git ", "iconv ", "ulimit ", sys.executable)
_LONGEST = 200  # characters of a command that a tip repeats


def print_error(error: RlpostError) -> None:
    """Print an error on stderr, wrapped to the terminal: red, with what to do on lines below."""
    with suppress(OSError, SystemExit):  # rich makes a SystemExit of a closed pipe
        try:
            from rlpost.display.console import console  # noqa: PLC0415 - rich is slow to import

            out = console(sys.stderr)
            for part in _with_one_command(error.parts):
                _print_part(part, out)
        except (ImportError, MemoryError, OSError):  # what the error is about prevents imports
            sys.stderr.write("".join(f"{ERROR}{part}\n" for part in error.parts))


def _with_one_command(parts: Sequence[ErrorPart]) -> Sequence[ErrorPart]:
    """Return parts of which the last has the options that the tips of several add."""
    tips = [part.tip for part in parts if part.tip.startswith("--") and "#" not in part.tip]
    if len(tips) < 2:  # noqa: PLR2004
        return parts
    rest = [replace(part, tip="") if part.tip in tips else part for part in parts]
    return [*rest[:-1], replace(rest[-1], tip=" ".join(dict.fromkeys(tips)))]


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    from rich.text import Text  # noqa: PLC0415

    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.controls import printable_line  # noqa: PLC0415
    from rlpost.display.tables import hanging  # noqa: PLC0415

    line = Text.assemble(("warning:", "bold yellow"), f" {printable_line(without_secrets(text))}")
    console(sys.stderr).print(hanging(line, len("warning: ")))


def _print_part(part: ErrorPart, out: Console) -> None:
    from rich.text import Text  # noqa: PLC0415

    from rlpost.display.controls import printable_line  # noqa: PLC0415
    from rlpost.display.tables import TypedText, hanging  # noqa: PLC0415

    sentence = Text.assemble((ERROR.strip(), "bold red"), f" {printable_line(part.text)}")
    out.print(hanging(sentence, len(ERROR)))
    if 0 <= part.caret < out.width - len(ERROR) and (place := " " * (len(ERROR) + part.caret)):
        out.print(f"{place}^")
    for line in part.advice:
        label, colon, text = printable_line(line).partition(": ")
        if not colon or label.startswith("did you mean"):
            label, colon, text = "", "", line
        if label == "tip":
            tip = Text.assemble("  ", (label, "cyan"), colon)
            out.print(TypedText(tip, printable_line(_typed(text))))
            continue
        advice = Text.assemble("  ", (label, "cyan"), colon, text)
        out.print(hanging(advice, len(label) + len(colon)))


def _typed(tip: str) -> str:
    """Return a tip as one types it: options with the command before them, prose behind `#`."""
    if not tip.startswith("--"):
        return tip if tip.startswith(_PROGRAMS) else f"# {tip}"
    command = shlex.join(["rlpost", *sys.argv[1:]])
    command = command if len(command) <= _LONGEST else f"rlpost {sys.argv[1]} ..."
    return f"{without_secrets(command)} {tip}"


def expected(error: BaseException) -> RlpostError | None:
    """Return what is wrong with the command line, the data or the machine; None if it is a bug."""
    if isinstance(error, RlpostError):
        return error
    if isinstance(error, typer.TyperException):
        return UsageError(_of_parser(error))
    from rlpost.io.memory_limit import is_out_of_memory  # noqa: PLC0415 - only errors need it

    if is_out_of_memory(error):
        tip = "smaller chunks need less: --chunk-tokens INT"
        return UnavailableError("there is not enough memory", tip=tip)
    if isinstance(error, OSError):
        return ReadWriteError(f"{error.filename or 'standard output'}: {error.strerror}")
    return None


def _of_parser(error: typer.TyperException) -> ErrorPart:
    """Return an error of the option parser in the words of all others."""
    context = getattr(error, "ctx", None)
    flag = getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    if context is not None and flag is not None:
        known = [name for option in context.command.params for name in _flags(option)]
        if flag not in known:
            return _no_option(flag, known, context)
    if context is None or parameter is None:  # too few values, or one of a flag
        message = re.sub("^Option '([^']+)'", r"\1:", error.message)
        return ErrorPart(message.removesuffix("."))
    if type(error).__name__ == "MissingParameter":
        return ErrorPart(f"{_name(parameter)} is missing", tip=usage_of(context))
    return _wrong_value(error, parameter)


def _flags(parameter: Any) -> list[str]:
    """Return the flags of an option, those that turn it off, too."""
    return [name for name in (*parameter.opts, *parameter.secondary_opts) if name[:1] == "-"]


def _name(parameter: Any) -> str:
    """Return an argument as the usage line shows it, or an option with its value."""
    if isinstance(parameter, TyperArgument):
        return str(parameter.metavar or parameter.name)
    return f"{max(parameter.opts, key=len)} {value_of(parameter)}"


def _no_option(flag: str, known: list[str], context: Any) -> ErrorPart:
    """Return the part for an unknown option: what has it, or close ones."""
    text = f"no option {flag}"
    if option := _of_function(field_of(flag), known):
        return ErrorPart(text, (option,))
    if owners := _commands_with(flag, context):
        return ErrorPart(
            text, tip=f"{series(owners, 'and')} {'has' if len(owners) == 1 else 'have'} it"
        )
    if candidates := closest(flag, known):
        return ErrorPart(text, candidates)
    return ErrorPart(text, tip=f"{context.command_path} --help  # lists the options")


def _of_function(name: str, known: list[str]) -> str:
    """Return how to set a choice of the numerics, or an option of estimators or losses."""
    from rlpost.recipe.functions import owners  # noqa: PLC0415 - only errors need them
    from rlpost.recipe.numerics import Numerics  # noqa: PLC0415

    if "--numerics" in known and name in Numerics.model_fields:
        return f"--numerics {name}=VALUE"
    if "--option" in known:
        from rlpost.estimators import ESTIMATORS  # noqa: PLC0415

        if having := owners(name, ESTIMATORS):
            return f"--option {name}=VALUE ({having})"
    if "--loss-option" in known:
        from rlpost.losses import LOSSES  # noqa: PLC0415

        if having := owners(name, LOSSES):
            return f"--loss-option {name}=VALUE ({having})"
    return ""


def _commands_with(flag: str, context: Any) -> list[str]:
    """Return the commands of the program that have an option."""
    root = context.find_root()
    names = root.command.list_commands(root)
    commands = {name: root.command.get_command(root, name) for name in names}
    return [
        f"`rlpost {name}`"
        for name, command in commands.items()
        if any(flag in _flags(option) for option in command.params)
    ]


def _wrong_value(error: typer.TyperException, parameter: Any) -> ErrorPart:
    """Return the part for a value that an option does not accept, which typer puts in quotes."""
    from rlpost.recipe.base import wrong_value  # noqa: PLC0415 - only errors need pydantic

    value = next(iter(re.findall("^(?:Value error, )?'([^']*)'", error.message)), "")
    flag = max(_flags(parameter), key=len, default=_name(parameter))
    return wrong_value(f"{flag} {value}".strip(), value, error.message)
