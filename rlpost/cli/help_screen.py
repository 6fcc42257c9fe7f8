"""Help of commands: common options in panels, and with `--help-all` every option."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from rlpost.display.text import counted
from rlpost.errors import UsageError, no_such

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Row = tuple[str, str]

WIDEST = 100
LABELS = range(16, 31)
"""Possible widths of the first column; a longer label has its description on the next line."""
_INDENT = 2  # of the rows of a panel
NAMES = ["-h", "--help"]
ALL = "--help-all"

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
    COMMANDS := "Commands",
)


OF_RECIPE = (REWARDS, KL, MASKS, ADVANTAGES, CORRECTION)


class Panel(str):
    """The heading of a group of options; `common` if the short help lists the option."""

    __slots__ = ("common",)
    common: bool

    def __new__(cls, title: str, *, common: bool = False) -> Self:
        """Return the title as a panel."""
        panel = super().__new__(cls, title)
        panel.common = common
        return panel


class Command(TyperCommand):
    """A command whose help has panels of options, and whose errors name variables."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command in its usage line."""
        del ctx
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        return ["[OPTIONS]", *(_in_usage(parameter) for parameter in arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the short help; the whole one if the command has no `--help-all`; raises Exit."""
        del formatter
        self.print_help(ctx, whole=not any(ALL in parameter.opts for parameter in self.params))
        raise typer.Exit  # the option parser would print an empty line

    def print_help(self, ctx: Any, *, whole: bool) -> None:
        """Print the help, with all options or with the common ones."""
        show_help(self, ctx, whole=whole)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors begin with the variable that set a wrong value."""
        from rlpost.cli.environment import naming_variables  # noqa: PLC0415 - help needs none

        with naming_variables(ctx):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read options and arguments; raises UsageError if there are too many arguments."""
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        with errors_with_context(ctx):
            rest: list[str] = super().parse_args(ctx, args)
        ctx.allow_extra_args = allowed
        if rest and not allowed and not ctx.resilient_parsing:
            count = counted(len(rest), "argument")
            raise UsageError(f"{' '.join(rest)}: {count} too many", tip=usage_of(ctx))
        return rest


@contextmanager
def errors_with_context(context: Any) -> Iterator[None]:
    """Give errors of the option parser the context of their command, which some lack."""
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "ctx", context) is None:
            error.ctx = context  # type: ignore[attr-defined]
        raise


class Group(TyperGroup):
    """A command with commands of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command."""
        with errors_with_context(ctx):
            rest: list[str] = super().parse_args(ctx, args)
        return rest

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with; raises UsageError if it is unknown."""
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            lists = f"{ctx.command_path} --help  # lists the commands"
            raise UsageError(no_such(f"no command {args[0]!r}", args[0], names, lists))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; raises Exit."""
        del formatter
        self.print_help(ctx, whole=False)
        raise typer.Exit

    def print_help(self, ctx: Any, *, whole: bool) -> None:
        """Print the help; the short one is the whole."""
        show_help(self, ctx, whole=True, long=whole)


def _show_all(context: typer.Context, requested: bool) -> None:  # noqa: FBT001 - typer's way
    if requested:
        command: Any = context.command
        command.print_help(context, whole=True)
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        ALL,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        rich_help_panel=Panel(EXECUTION, common=True),
        help="Print all options.",
    ),
]


def command(
    app: typer.Typer, *, name: str | None = None, epilog: str | None = None, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function a command of the app.

    Args:
        app: which it is added to.
        name: None: that of the function.
        epilog: the end of its help, mostly examples.
        settings: of its context.
    """
    settings = {"help_option_names": NAMES, **settings}
    return app.command(name, cls=Command, epilog=epilog, context_settings=settings)


def argument(metavar: str, text: str, complete: Callable[..., Any] | None = None) -> Any:
    """Return the declaration of an argument.

    Args:
        metavar: as the usage line shows it.
        text: what it is.
        complete: offers values to the shell.
    """
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, show_default=False)


def show_help(target: Any, context: Any, *, whole: bool, long: bool = True) -> None:
    """Print the help of a command or group on stdout.

    Args:
        target: the command.
        context: its context.
        whole: with all options; else with the common ones.
        long: all options may be long: through a pager.
    """
    from rich.text import Text  # noqa: PLC0415 - only help needs it

    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.pager import paged  # noqa: PLC0415

    out = console(sys.stdout)
    width = help_width()
    with paged(out, only_if=whole and long):
        out.print(Text(f"Usage: {target.get_usage(context).removeprefix('Usage: ')}", "bold"))
        for paragraph in (target.help or "").split("\n\n"):
            out.print(Text("\n" + textwrap.fill(" ".join(paragraph.split()), width)))
        panels = _panels(target, context, whole=whole)
        column = _shortest(panels, width - _INDENT)
        for title, rows in panels.items():
            out.print(Text(f"\n{title}", "bold"))
            beside = column if title != COMMANDS else max(len(name) for name, _ in rows) + 2
            for row in rows:
                out.print(_row(*row, beside, width - _INDENT))
        end = [*_end(target, whole=whole)]
        for line in ["", *end] if end else []:
            out.print(Text(textwrap.fill(line, width) if line[:1] != " " else line))


def show_program_help(
    target: Any,
    groups: Mapping[str, Mapping[str, str]],
    examples: Mapping[str, str],
    *,
    whole: bool,
) -> None:
    """Print the help of the program on stdout: the job, and the commands in groups.

    Args:
        target: the program.
        groups: descriptions by command, by group.
        examples: what command lines do.
        whole: with the commands of the last group, a line each, and the options.
    """
    from rich.text import Text  # noqa: PLC0415 - only help needs it

    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.pager import paged  # noqa: PLC0415

    out = console(sys.stdout)
    width = help_width()
    heads = max(map(len, groups)) + 2
    names = max(len(name) for group in groups.values() for name in group) + 2
    *_, last = groups
    with paged(out, only_if=whole):
        about = f"{target.help[:1].lower()}{target.help[1:]}"
        out.print(Text.assemble(("rlpost", "bold"), f" · {about}"))
        out.print(Text("Usage: rlpost COMMAND [OPTIONS]\n", "bold"))
        longest = max(map(len, examples)) + 2
        for line, about in examples.items():
            out.print(Text.assemble(f"  {line.ljust(longest)}", (about, "dim")))
        out.print(Text(""))
        for title, group in groups.items():
            if title == last and not whole:
                listed = textwrap.wrap(", ".join(group), width - heads)
                text = f"\n{' ' * heads}".join(listed)
                out.print(Text.assemble((title.ljust(heads), "bold"), (text, "cyan")))
                continue
            for i, (name, about) in enumerate(group.items()):
                row = _row(name, about, names, width - heads).plain[_INDENT:]
                head = ("" if i else title).ljust(heads)
                out.print(Text.assemble((head, "bold"), (row[:names], "cyan"), row[names:]))
        out.print(Text(""))
        if whole:
            rows = _panels(target, None, whole=True)[OPTIONS]
            out.print(Text(OPTIONS, "bold"))
            for row in rows:
                out.print(_row(*row, max(len(label) for label, _ in rows) + 2, width - _INDENT))
        else:
            ways = "options: rlpost COMMAND --help · manual: rlpost help · more: rlpost"
            out.print(Text(f"{ways} {ALL}", "dim"))


def help_width() -> int:
    """Return the columns of a help text."""
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


def _panels(target: Any, context: Any, *, whole: bool) -> dict[str, list[Row]]:
    """Return the rows of each panel by its title: arguments, options, commands."""
    rows: dict[str, list[Row]] = {title: [] for title in PANELS}
    for parameter in target.params:
        if isinstance(parameter, TyperArgument):
            rows[ARGUMENTS].append((str(parameter.metavar or parameter.name), parameter.help or ""))
    for parameter in target.params:
        if (
            isinstance(parameter, TyperOption)
            and not parameter.hidden
            and (whole or _is_common(parameter))
        ):
            rows[parameter.rich_help_panel or OPTIONS].append((_label(parameter), about(parameter)))
    last = next((title for title in (EXECUTION, IN_OUT) if rows[title]), OPTIONS)
    rows[last].append((", ".join(NAMES), "Print this help."))
    if isinstance(target, TyperGroup) and context is not None:
        for name in target.list_commands(context):
            inner = target.get_command(context, name)
            if inner is not None:
                rows[COMMANDS].append((name, (inner.help or "").partition("\n\n")[0]))
    panels = {title: lines for title, lines in rows.items() if lines}
    return panels if whole else _joined(panels)


def _joined(panels: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return the panels with those of few options of the recipe as one, under all their titles."""
    short = [title for title in OF_RECIPE if len(panels.get(title, ())) in (1, 2)]
    joined: dict[str, list[Row]] = {}
    for title, rows in panels.items():
        heading = _title_of(short) if title in short else title
        joined.setdefault(heading, []).extend(rows)
    return joined


def _title_of(titles: Sequence[str]) -> str:
    """Return one title for several panels: `Rewards, KL, response masks`."""
    first, *others = titles
    return ", ".join([first, *(other if other.isupper() else other.lower() for other in others)])


def _is_common(option: TyperOption) -> bool:
    panel = option.rich_help_panel
    return not isinstance(panel, Panel) or panel.common


def _label(option: TyperOption) -> str:
    """Return the names of an option, the short one first, and its value."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return names
    return f"{names} {value_of(option)}"


def value_of(option: Any) -> str:
    """Return the value of an option as help shows it: its metavar, or the choices of its type."""
    return str(option.metavar or option.display_type(None).strip("<>"))


def about(option: Any) -> str:
    """Return the help of an option with its default."""
    text = option.help or ""
    if option.required:
        return f"{text.removesuffix('.')} (required)."
    default = getattr(option.default, "value", option.default)
    if default in (None, False, "", (), []) or "(default" in text:
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text.removesuffix('.')} (default: {shown})."


def _shortest(panels: dict[str, list[Row]], width: int) -> int:
    """Return the column of the descriptions with which the panels have the fewest lines."""
    rows = [row for title, rows in panels.items() if title != COMMANDS for row in rows]
    longest = max(len(label) for label, _ in rows)

    def lines(column: int) -> int:
        return sum(str(_row(*row, column, width)).count("\n") for row in rows)

    return min((min(label, longest) + 2 for label in LABELS), key=lines)


def _row(label: str, description: str, column: int, width: int) -> Any:
    """Return a row of a panel: the label, and the wrapped description from that column on."""
    from rich.text import Text  # noqa: PLC0415

    margin = " " * _INDENT
    below = f"\n{margin}{' ' * column}"
    between = below if len(label) > column - 2 else " " * (column - len(label))
    lines = below.join(textwrap.wrap(description, width - column))
    names = re.match(r"(-\S+, )*-\S+", label)
    flags = label if names is None or label[:1] != "-" else names[0]
    return Text.assemble(margin, (flags, "cyan"), label[len(flags) :], between, lines)


def _end(target: Any, *, whole: bool) -> Iterable[str]:
    """Return the lines below the panels: examples, and how to set or list other options."""
    yield from (line for line in (target.epilog or "").split("\n") if line.strip())
    options = [
        parameter
        for parameter in target.params
        if isinstance(parameter, TyperOption) and not parameter.hidden
    ]
    if not any(ALL in parameter.opts for parameter in options):
        return
    yield ""
    if whole:
        yield (
            "Flags of a recipe have a `--no-` form. Environment variables set options, too: "
            "RLPOST_KL_COEF=0.1 is --kl-coef 0.1."
        )
    else:
        yield f"These are the common options; {ALL} prints all {len(options)}."


def usage_of(context: Any) -> str:
    """Return the command line that a command needs: its arguments and required options."""
    needed = [
        parameter
        for parameter in context.command.params
        if isinstance(parameter, TyperOption) and parameter.required
    ]
    words = [
        _in_usage(parameter)
        for parameter in context.command.params
        if isinstance(parameter, TyperArgument)
    ]
    words += [f"{max(parameter.opts, key=len)} {value_of(parameter)}" for parameter in needed]
    return " ".join([context.command_path, *words])


def _in_usage(argument: TyperArgument) -> str:
    name = str(argument.metavar or argument.name)
    return name if argument.required else f"[{name}]"
