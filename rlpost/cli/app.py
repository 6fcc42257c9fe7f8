"""The command line: finds the command, runs it, and turns its errors into exit codes."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer._click.exceptions import BadParameter, ClickException
from typer.core import TyperGroup

from rlpost._version import __version__
from rlpost.errors import ReadWriteError, RlpostError, UnavailableError
from rlpost.io.shutdown import INTERRUPTED
from rlpost.io.text import printable

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter
    from typer._click.shell_completion import CompletionItem


# Commands are imported when they run: `rlpost --help` needs no pydantic, torch or pyarrow.
COMMANDS = {
    "advantages": "Post-process rewards, estimate advantages, write enriched Parquet.",
    "plan": "Settle the responses of a run, for shards that write its files.",
    "inspect": "Say what is in rollout files, and what would hurt training on them.",
    "convert": "Convert the dumps of RL frameworks to Parquet that rlpost reads.",
    "loss": "Tell what a policy loss would clip, and what would learn nothing.",
    "verify": "Say whether enriched files are what they claim: make them again, compare.",
    "estimators": "List the estimators: formula, needed columns, source.",
    "compare": "Compare advantages: of several files, or of one under several recipes.",
    "report": "Write one HTML page about rollout files.",
    "browse": "Browse responses in the terminal: steps, groups, responses, tokens.",
    "presets": "List the frameworks' presets, show one, compare two.",
    "config": "Show the recipe that options come to, and where each value is from.",
    "schema": "Print the JSON Schema of recipe files, for editors.",
    "help": "Print a page of the manual, or the list of its pages.",
}
COMPLETING = "_RLPOST_COMPLETE"
FOR_SHELLS = ("--show-completion", "--install-completion")
SHELL_IS_NAMED = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""With it typer takes the shell's name as the value of these options; else it looks for one."""
BROKEN_PIPE = 141


class _Lazy(TyperGroup):
    """A group whose commands are modules of rlpost.cli.commands."""

    _listing = False

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Context, name: str) -> Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        if self._listing:
            return _stub(name)
        command = typer.main.get_command(import_module(f"rlpost.cli.commands.{name}").app)
        command.name = name
        return _completing(command)

    def invoke(self, ctx: Context) -> object:
        try:
            return super().invoke(ctx)
        except ClickException as error:
            error.message = printable(error.message)
            if isinstance(error, BadParameter):
                error.param_hint = _variable(error) or error.param_hint
            raise

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        self._listing = True
        return super().shell_complete(ctx, incomplete)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        self._listing = True
        super().format_help(ctx, formatter)


def _variable(error: BadParameter) -> str | None:
    """The environment variable that gave a wrong value, where it was one."""
    if error.ctx is None or error.param is None:
        return None
    source = error.ctx.get_parameter_source(str(error.param.name))
    if source is None or source.name != "ENVIRONMENT":
        return None
    return str(error.param.envvar)


def _completing(command: Command) -> Command:
    """The command; where a shell asks what could follow, its options say what they take."""
    if COMPLETING not in os.environ:
        return command
    from rlpost.cli.completion import attach  # noqa: PLC0415

    return attach(command)


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


def main() -> None:
    """Run the command line; raises SystemExit with the exit code.

    Exit codes: 0 done, 1 findings, 2 the command line or recipe is wrong, 3 the data is bad,
    4 reading or writing failed, 5 a device or engine is missing, 130 interrupted, 141 nobody reads
    stdout any more. With --debug anywhere on the line, errors keep their traceback.
    """
    _mend_streams()
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    if COMPLETING in os.environ:
        from rlpost.cli.completion import join_words  # noqa: PLC0415

        join_words(os.environ)
    if sys.argv[1:2] and sys.argv[1] in FOR_SHELLS and len(sys.argv) > 2:  # noqa: PLR2004
        os.environ[SHELL_IS_NAMED] = "1"
    try:
        app(prog_name="rlpost")
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as ended:  # typer and rich make 1 of a closed pipe
        if ended.code != 1 or not isinstance(ended.__context__, BrokenPipeError):
            raise
        _hang_up()
    except BrokenPipeError:
        _hang_up()
    except Exception as error:
        told = _told(error)
        if debug or told is None:
            raise
        _complain(told[0])
        sys.exit(told[1])


def _hang_up() -> NoReturn:
    """End without another word, as a program does that SIGPIPE ends; raises SystemExit.

    The reader is gone, as of `rlpost estimators | head -1`.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # either may be the pipe, and hold text that was not written
        os.dup2(nowhere, number)
    sys.exit(BROKEN_PIPE)


def _told(error: Exception) -> tuple[str, int] | None:
    """What is said of an error, and the exit code; None for one that nobody expects."""
    if isinstance(error, RlpostError):
        return str(error), error.exit_code
    if _ran_out_of_memory(error):
        text = "there is not enough memory; smaller pieces need less: --chunk-tokens N"
        return text, UnavailableError.exit_code
    if isinstance(error, OSError):
        text = f"{error.filename or 'standard output'}: {error.strerror}"
        return text, ReadWriteError.exit_code
    return None


def _ran_out_of_memory(error: Exception) -> bool:
    """Whether an error is about memory: libraries that find none have no class for it."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


_NO_MEMORY = re.compile(
    r"can't (allocate memory|start new thread)|cannot allocate memory|failed to map|out of memory",
    re.IGNORECASE,
)


def _mend_streams() -> None:
    """Text that a stream's encoding lacks becomes `?`, and a closed stream swallows all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _complain(text: str) -> None:
    """The error on stderr, without a colour or a traceback; the exit code says it, too."""
    with suppress(BrokenPipeError):
        for line in printable(text).splitlines():
            typer.echo(f"rlpost: {line}", err=True)
