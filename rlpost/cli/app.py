"""The command line: finds the command, runs it, and turns its errors into exit codes."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.completion import install_callback, show_callback
from typer.core import TyperCommand

from rlpost._version import __version__
from rlpost.cli.errors import expected, print_error
from rlpost.cli.help_screen import APPS, SETTINGS, Group, help_width, styled
from rlpost.cli.shells import REQUEST, completion
from rlpost.display.controls import ascii_signs
from rlpost.errors import UsageError
from rlpost.io.shutdown import INTERRUPTED

# Commands are imported when they run: `rlpost --help` needs no pydantic, torch or pyarrow.
GROUPS = {
    "Compute": {
        "advantages": "Post-process rewards, compute advantages, write Parquet.",
        "loss": "Compute policy-loss diagnostics: clipping, ratios, KL.",
    },
    "Look": {
        "inspect": "Inspect rollout files: contents, statistics and problems.",
        "browse": "Browse responses in the terminal.",
        "report": "Write an HTML report about rollout files.",
        "compare": "Compare the advantages of files, or of several recipes.",
    },
    "Check": {
        "verify": "Recompute enriched columns, compare with the stored ones.",
        "replay": "Compare a trainer's recorded numbers with a recipe's.",
    },
    "Files": {
        "convert": "Convert dumps of RL frameworks to Parquet.",
        "export": "Export rollouts to files that a training framework reads.",
    },
    "About": {
        "list": "List estimators, losses, presets, dumps, targets, checks.",
        "config": "Show a recipe and its sources, or what two differ in.",
        "doctor": "Check installation, machine and devices.",
        "help": "Explain a word, or print a page of the manual.",
    },
}
"""Commands with their descriptions, by what one wants to do, the job first."""
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
MODULES = {name: heading.lower() for heading, group in GROUPS.items() for name in group}
MODULES |= {"config": "config", "doctor": "check"}
EXAMPLES = {
    "rlpost in.parquet": "inspect: is it fit for training?",
    "rlpost advantages in.parquet out.parquet": "compute advantages (grpo)",
    "rlpost report out.parquet report.html": "look at the result",
}
COMPLETION_FLAGS = {"--install-completion": install_callback, "--show-completion": show_callback}
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
BROKEN_PIPE = 141


def app_of(name: str) -> typer.Typer:
    """Import a command."""
    import_module(f"rlpost.cli.commands.{MODULES[name]}")
    return APPS[name]


class Commands(Group):
    """The group of all commands, each imported when it runs."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command; without its options while names and descriptions are listed."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            text = COMMANDS[cmd_name]
            return TyperCommand(cmd_name, help=text, short_help=text)
        command = typer.main.get_command(app_of(cmd_name))
        command.name = cmd_name
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command; typer's flags for completion may name a shell."""
        if args[1:] and args[0] in COMPLETION_FLAGS and not ctx.resilient_parsing:
            flag, shell, *_ = args
            if shell not in SHELLS:
                raise UsageError(f"{flag} {shell!r}: no such shell; one of {', '.join(SHELLS)}")
            COMPLETION_FLAGS[flag](ctx, self.params[0], shell)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; of a path alone `inspect`."""
        if args[0] not in COMMANDS and (re.search(r"[.*/\\]", args[0]) or Path(args[0]).exists()):
            args = ["inspect", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names of commands and options."""
        self._listing = True
        return super().shell_complete(ctx, incomplete)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write what the commands do, by group."""
        formatter.width = help_width()
        about = self.help or ""
        formatter.write_text(f"{styled('rlpost', bold=True)} · {about[:1].lower()}{about[1:]}")
        formatter.write_usage("rlpost", "COMMAND [OPTIONS]")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(EXAMPLES.items(), col_max=40)
        formatter.write_paragraph()
        rows: list[tuple[str, str]] = []
        for heading, group in GROUPS.items():
            if heading == "About":
                group = {", ".join(group): ""}  # noqa: PLW2901
            heads = [styled(f"{heading:9}", bold=True), *[" " * 9] * len(group)]
            rows += [
                (f"{head}{styled(f'{name:12}', fg='cyan')}", text)
                for head, (name, text) in zip(heads, group.items(), strict=False)
            ]
        formatter.write_dl(rows, col_max=21, col_spacing=0)
        formatter.write_paragraph()
        formatter.write_text("options: rlpost COMMAND --help · manual: rlpost help")


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _version(requested: bool) -> None:  # noqa: FBT001
    if requested:
        typer.echo(f"rlpost {__version__}")
        raise typer.Exit


@app.callback()
def rlpost(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From rollouts of RL to advantages: Parquet in, Parquet out."""
    del version  # it ends the program
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(started: float | None = None) -> None:
    """Run the command line; raises SystemExit with the exit code.

    Args:
        started: when the process began, by `time.perf_counter`; for the times in summaries.

    Exit codes: 0 done, 1 findings, 2 the command line or recipe is wrong, 3 the data is bad,
    4 reading or writing failed, 5 a device or engine is missing, 130 interrupted, 141 the reader
    of stdout closed it. With --debug anywhere on the line, errors keep their traceback.
    """
    _repair_streams()
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        _run(started)
    except KeyboardInterrupt:
        typer.echo("rlpost: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except SystemExit as end:  # typer and rich make 1 of a closed pipe
        if end.code != 1 or not isinstance(end.__context__, BrokenPipeError):
            raise
        _end_without_output()
    except BrokenPipeError:
        _end_without_output()
    except Exception as error:
        problem = expected(error)
        if debug or problem is None:
            raise
        print_error(problem)
        sys.exit(problem.exit_code)


def _run(started: float | None) -> None:
    """Run the command; its context has the start of the process as `obj`."""
    with completion(os.environ) if REQUEST in os.environ else nullcontext():
        code = app(prog_name="rlpost", obj=started, standalone_mode=False)
    if not code:
        sys.stdout.flush()  # the disk may be full
    sys.exit(code if isinstance(code, int) else 0)  # the code of typer.Exit


def _end_without_output() -> NoReturn:
    """End as a program that SIGPIPE ends; raises SystemExit.

    The reader has closed the pipe, as in `rlpost list estimators | head -1`.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # either may be the pipe, with text in its buffer
        os.dup2(devnull, number)
    sys.exit(BROKEN_PIPE)


def _repair_streams() -> None:
    """Replace characters that a stream can't encode by ASCII, closed streams by /dev/null."""
    codecs.register_error("rlpost", ascii_signs)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="rlpost")
