"""The command line: finds the command, runs it, and turns its errors into exit codes."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.core import TyperGroup

from rlpost import __version__
from rlpost.errors import ReadWriteError, RlpostError

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

# Commands are imported when they run: `rlpost --help` needs no pydantic, torch or pyarrow.
COMMANDS = {
    "advantages": "Post-process rewards, estimate advantages, write enriched Parquet.",
    "inspect": "Say what is in rollout files, and what would hurt training on them.",
    "convert": "Convert the dumps of RL frameworks to Parquet that rlpost reads.",
    "loss": "Tell what a policy loss would clip, and what would learn nothing.",
    "estimators": "List the estimators: formula, needed columns, source.",
    "compare": "Compare advantages: of several files, or of one under several recipes.",
    "browse": "Browse responses in the terminal: steps, groups, responses, tokens.",
    "presets": "List the frameworks' presets, show one, compare two.",
}
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class _Lazy(TyperGroup):
    """A group whose commands are modules of rlpost.commands."""

    _listing = False

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Context, name: str) -> Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        if self._listing:
            return _stub(name)
        command = typer.main.get_command(import_module(f"rlpost.commands.{name}").app)
        command.name = name
        return command

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        self._listing = True
        super().format_help(ctx, formatter)


def _stub(name: str) -> Command:
    """A command that only has a name and a line of help."""
    app = typer.Typer(add_completion=False)
    app.command(name, help=COMMANDS[name])(lambda: None)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: rlpost advantages in.parquet out.parquet --estimator grpo",
)


def _version(asked: bool) -> None:  # noqa: FBT001
    if asked:
        typer.echo(f"rlpost {__version__}")
        raise typer.Exit


@app.callback()
def rlpost(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Post-process RL rollouts and estimate advantages: Parquet in, enriched Parquet out."""


def leave() -> NoReturn:
    """Run the command line and end the process, without taking it apart first.

    What is worth closing is closed by then. Freeing torch's modules and all memory block by block
    would take another half second.
    """
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter's own way would do all the rest, too
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or BROKEN_PIPE
    os._exit(code)


def main() -> None:
    """Run the command line; raises SystemExit with the exit code.

    Exit codes: 0 done, 1 findings, 2 the command line or recipe is wrong, 3 the data is bad,
    4 reading or writing failed, 5 a device or engine is missing, 130 interrupted. With --debug
    anywhere on the line, errors keep their traceback.
    """
    _mend_streams()
    signal.signal(signal.SIGTERM, _terminated)
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app(prog_name="rlpost")
    except RlpostError as error:
        if debug:
            raise
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        if debug:
            raise
        _complain(f"{error.filename or 'standard output'}: {error.strerror}")
        sys.exit(ReadWriteError.exit_code)


def _mend_streams() -> None:
    """Text that a stream's encoding lacks becomes `?`, and a closed stream swallows all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _terminated(number: int, frame: object) -> None:  # noqa: ARG001
    """A scheduler's SIGTERM unwinds the run as Ctrl-C does, so that nothing is left behind."""
    sys.exit(TERMINATED)


def _complain(text: str) -> None:
    """The error on stderr, without a colour or a traceback."""
    for line in text.splitlines():
        typer.echo(f"rlpost: {line}", err=True)
