"""How a preset compares with an installed framework, for terminals, pipes and programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted

if TYPE_CHECKING:
    from rlpost.analysis.peers import Outcome, Verdict

HEADINGS = ("case", "largest", "framework", "rlpost", "what differs")
MOST = 20
"""Cases that are printed; `--format json` has all."""


def show_verdict(verdict: Verdict, how: str) -> None:
    """Print a verdict on stdout: as a page (`table` or `markdown`), or as `json`."""
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
    else:
        show_page(page(verdict), how)


def _plain(one: Outcome) -> dict[str, str]:
    return {"case": one.case, "difference": str(one)}


def _row(one: Outcome) -> tuple[str, ...]:
    if one.difference is None:
        return one.case, "", "", "", str(one)
    found = one.difference
    numbers = (f"{number:.6g}" for number in (found.largest, found.theirs, found.ours))
    return one.case, *numbers, f"{found.name}: {found.different} of {found.numbers} numbers"


def page(verdict: Verdict) -> Page:
    """Return how a preset compares with the installed framework."""
    wrong, number = verdict.wrong, len(verdict.outcomes)
    compared = counted(number - len(verdict.faults) - len(verdict.skipped), "case")
    rows = [_row(one) for one in wrong[:MOST]]
    left = len(wrong) - len(rows)
    notes = [f"{left} more: --format json prints all"] if left else []
    faults = Counter(one.fault for one in verdict.faults).items()
    skipped = Counter(one.missing for one in verdict.skipped).items()
    warnings = [
        *(f"not reproduced, {counted(times, 'case')}: {reason}" for reason, times in faults),
        *(f"not run, {counted(times, 'case')}: no module {module}" for module, times in skipped),
    ]
    if verdict.uncovered:
        warnings.append(f"not covered by the preset: {', '.join(verdict.uncovered)}")
    lines = [f"made for {verdict.release}"] if verdict.release not in ("", verdict.version) else []
    yours = f"{verdict.package} {verdict.version}"
    end = Notice("ok", f"agrees with {yours} in {compared}")
    if not verdict.agree:
        end = Notice("error", f"differs from {yours} in {len(wrong)} of {compared}")
    return Page(
        f"rlpost presets · {verdict.preset} against {yours}",
        lines,
        [TextTable(HEADINGS, rows, notes=notes, text=(0, 4))] if rows else [],
        [Notice("warning", text) for text in warnings],
        end,
    )
