"""`rlpost doctor`: the installation, the machine and a self-test."""

from __future__ import annotations

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.environment import with_variable
from rlpost.cli.help_screen import command
from rlpost.cli.options import options_of
from rlpost.errors import UnavailableError
from rlpost.pipeline.options import Options  # noqa: TC001 - typer reads annotations

app = typer.Typer(add_completion=False)

EPILOG = """Examples:
  rlpost doctor
  rlpost doctor --device cuda
  rlpost doctor --format markdown > report.md
"""


@command(app, epilog=EPILOG)
@options_of(runs=("device",))
def doctor(context: typer.Context, run: Options, how: declared.Output = "table") -> None:
    """Check the installation, the machine and the devices, for bug reports.

    Prints versions, memory and devices. A self-test computes advantages of made-up tokens on the
    CPU and on every other device (--device: on this one), and compares the results.

    Exit code 0: no problem was found; 5: the self-test differs, or a device is missing.
    """
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.doctor import examine  # noqa: PLC0415
    from rlpost.cli.render import doctor as render_doctor  # noqa: PLC0415
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.display.tables import show_json  # noqa: PLC0415

    result = examine(run.device)
    result["problems"] = [with_variable(text, context) for text in result["problems"]]
    if how == "json":
        show_json(result)
    else:
        show_page(render_doctor.page(result), how)
    if not result["ok"]:
        raise typer.Exit(UnavailableError.exit_code)
