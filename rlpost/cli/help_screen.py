"""The decorator of commands, and their help: the common options in panels."""

from __future__ import annotations

import os
import shutil
import sys
from inspect import getdoc
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from rlpost.display.text import counted
from rlpost.errors import UsageError, no_such

if TYPE_CHECKING:
    from collections.abc import Callable

WIDEST = 100
MOST_IN_HELP = 40  # options
NAMES = ["-h", "--help"]
ALL = "--help-all"
SETTINGS: dict[str, Any] = {"help_option_names": NAMES}
"""Of the context of every command."""

# The panels, in the order of the help.
PANELS = (
    ARGUMENTS := "Arguments",
    IN_OUT := "Input and output",
    SINGLE := "Single responses",
    ESTIMATOR := "Estimator and preset",
    LOSS := "Policy loss",
    REWARDS := "Rewards",
    KL := "KL",
    MASKS := "Response masks",
    ADVANTAGES := "Advantages",
    CORRECTION := "Off-policy correction",
    EXECUTION := "Execution",
    RAY := "Ray",
    OPTIONS := "Options",
)
_JOINED = dict.fromkeys((REWARDS, KL, MASKS, ADVANTAGES), "Rewards, KL, masks, advantages")
"""The panels that the help has as one."""
APPS: dict[str, typer.Typer] = {}
"""By the name of a command, what runs it; those of imported modules."""


class Panel(str):
    """The heading of a group of options; `common` if the help lists the option."""

    __slots__ = ("common",)
    common: bool

    def __new__(cls, title: str, *, common: bool = False) -> Self:
        """Return the title as a panel."""
        panel = super().__new__(cls, title)
        panel.common = common
        return panel


class Command(TyperCommand):
    """A command whose help has panels of options, and whose errors name variables."""

    lists_all = False
    """Whether the help has every option, as --help-all asks."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command in its usage line."""
        del ctx
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *(_in_usage(parameter) for parameter in arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: the common options, or all."""
        write_help(self, ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by panel; of many options the common ones."""
        rows: dict[str, list[tuple[str, str]]] = {}
        rows = {_JOINED.get(title, title): [] for title in PANELS}
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            panel = getattr(parameter, "rich_help_panel", None) or EXECUTION
            if isinstance(parameter, TyperArgument):
                rows[ARGUMENTS].append((str(parameter.metavar), parameter.help or ""))
            elif getattr(panel, "common", True) or self.lists_all or not self._is_long():
                rows[_JOINED.get(panel, panel)].append((_label(parameter), parameter.help or ""))
        for title, lines in rows.items():
            if lines:
                with formatter.section(styled(title, bold=True)):
                    formatter.write_dl(lines, col_max=24)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples, and where the other options are."""
        super().format_epilog(ctx, formatter)
        if self._is_long() and not self.lists_all:
            formatter.write_paragraph()
            formatter.write_text(f"These are the common options; {ALL} lists all.")

    def _is_long(self) -> bool:
        return len(self.params) > MOST_IN_HELP

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors begin with the variable that set a wrong value."""
        from rlpost.cli.environment import naming_variables  # noqa: PLC0415 - help needs none

        with naming_variables(ctx):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read options and arguments; raises UsageError if there are too many arguments."""
        self.lists_all = ALL in args
        args = [NAMES[-1] if word == ALL else word for word in args]
        for before, word in pairwise(["", *args] * (not ctx.resilient_parsing)):
            flag, equals, value = word.partition("=") if word[:2] == "--" else (before, "=", word)
            if equals and not value.strip():
                name = flag if flag[:1] == "-" else "an argument"
                raise UsageError(f"{name}: the value is empty", tip="leave it out, or name one")
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        rest: list[str] = super().parse_args(ctx, args)
        ctx.allow_extra_args = allowed
        if rest and not allowed and not ctx.resilient_parsing:
            count = counted(len(rest), "argument")
            raise UsageError(f"{' '.join(rest)}: {count} too many", tip=usage_of(ctx))
        return rest


def write_help(target: Any, context: Any, formatter: Any) -> None:
    """Write the parts of a help as plain text, for which typer needs no rich."""
    formatter.width = help_width()
    target.format_usage(context, formatter)
    target.format_help_text(context, formatter)
    target.format_options(context, formatter)
    target.format_epilog(context, formatter)


def help_width() -> int:
    """Return the columns of a help text."""
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


class Group(TyperGroup):
    """A command with commands of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with; raises UsageError if it is unknown."""
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            lists = f"{ctx.command_path} --help  # lists the commands"
            raise UsageError(no_such(f"no command {args[0]!r}", args[0], names, lists))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which lists the commands."""
        write_help(self, ctx, formatter)


def command(
    app: typer.Typer | None = None, *, name: str = "", **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function a command, whose help is its docstring.

    Args:
        app: the group of the command; None: it is one of `rlpost`.
        name: empty: that of the function.
        settings: of its context.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        typed = name or function.__name__
        text, _, examples = (getdoc(function) or "").partition("\n\nExamples:\n")
        group = app or APPS.setdefault(typed, typer.Typer(add_completion=False))
        return group.command(
            typed, cls=Command, help=text, context_settings={**SETTINGS, **settings},
            epilog=f"\b\nExamples:\n{examples}" if examples else None,
        )(function)  # fmt: skip

    return decorated


def argument(metavar: str, text: str, complete: Callable[..., Any] | None = None) -> Any:
    """Return the declaration of an argument.

    Args:
        metavar: as the usage line shows it.
        text: what it is.
        complete: offers values to the shell.
    """
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, show_default=False)


def styled(text: str, **style: Any) -> str:
    """Return a text in a style on a terminal that shows colours."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stdout.isatty() else typer.style(text, **style)


def _label(option: TyperOption) -> str:
    """Return the names of an option, the short one first, and its value."""
    names = styled(", ".join(sorted(option.opts, key=len)), fg="cyan")
    return names if option.is_flag else f"{names} {value_of(option)}"


def value_of(option: Any) -> str:
    """Return the value of an option as help shows it: its metavar, or the choices of its type."""
    return str(option.metavar or option.display_type(None).strip("<>"))


def usage_of(context: Any) -> str:
    """Return the command line that a command needs: its arguments."""
    parameters = context.command.params
    words = [
        _in_usage(parameter) for parameter in parameters if isinstance(parameter, TyperArgument)
    ]
    return " ".join([context.command_path, *words])


def _in_usage(argument: TyperArgument) -> str:
    name = str(argument.metavar or argument.name)
    return name if argument.required else f"[{name}]"
