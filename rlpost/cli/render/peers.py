"""How a preset compares with an installed framework, for terminals, pipes and programs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from rlpost.display.console import console
from rlpost.display.tables import TextTable, show_json, show_markdown
from rlpost.display.text import counted

if TYPE_CHECKING:
    from rlpost.analysis.peers import Outcome, Verdict

HEADINGS = ("case", "largest", "framework", "rlpost", "what differs")
MOST = 20
"""Cases that are printed; `--format json` has all."""


def show_verdict(verdict: Verdict, how: str) -> None:
    """Print a verdict on stdout: as text (`table`), as `json` or as `markdown`."""
    if how == "json":
        show_json(
            {
                "preset": verdict.preset,
                "framework": verdict.package,
                "version": verdict.version,
                "release": verdict.release,
                "agree": verdict.agree,
                "cases": len(verdict.outcomes),
                "different": [_plain(one) for one in verdict.wrong],
                "faults": [{"case": one.case, "reason": one.fault} for one in verdict.faults],
                "skipped": [{"case": x.case, "missing": x.missing} for x in verdict.skipped],
                "uncovered": list(verdict.uncovered),
            }
        )
    elif how == "markdown":
        show_markdown(HEADINGS, [_row(one) for one in verdict.wrong])
    else:
        _print(verdict)


def _plain(one: Outcome) -> dict[str, str]:
    return {"case": one.case, "difference": str(one)}


def _row(one: Outcome) -> tuple[str, ...]:
    if one.difference is None:
        return one.case, "", "", "", str(one)
    found = one.difference
    numbers = (f"{number:.6g}" for number in (found.largest, found.theirs, found.ours))
    return one.case, *numbers, f"{found.name}: {found.different} of {found.numbers} numbers"


def _print(verdict: Verdict) -> None:
    out = console(sys.stdout)
    yours, number = f"your {verdict.package} {verdict.version}", len(verdict.outcomes)
    made = f", made for {verdict.release}," if verdict.release not in ("", verdict.version) else ""
    compared = number - len(verdict.faults) - len(verdict.skipped)
    wrong = verdict.wrong
    if verdict.agree:
        out.print(
            f"rlpost's preset {verdict.preset}{made} agrees with {yours} on "
            f"{counted(compared, 'case')}",
            style="green",
        )
    else:
        out.print(
            f"rlpost's preset {verdict.preset}{made} differs from {yours} in {len(wrong)} of "
            f"{counted(compared, 'case')}",
            style="red",
        )
        rows = [_row(one) for one in wrong[:MOST]]
        left = len(wrong) - len(rows)
        notes = [f"{left} more: --format json prints all"] if left else []
        out.print(TextTable(HEADINGS, rows, notes=notes, text=(0, 4)))
    for reason, times in Counter(one.fault for one in verdict.faults).items():
        out.print(f"not reproduced, {counted(times, 'case')}: {reason}", style="dim")
    for module, times in Counter(one.missing for one in verdict.skipped).items():
        out.print(f"not run, {counted(times, 'case')}: there is no module {module}", style="dim")
    if verdict.uncovered:
        out.print(f"not covered by the preset: {', '.join(verdict.uncovered)}", style="yellow")
