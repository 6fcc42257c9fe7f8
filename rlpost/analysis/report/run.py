"""The way in: `report` reads rollout files and writes a page about them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost._version import __version__
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report import sections
from rlpost.analysis.report import sections as token_sections
from rlpost.analysis.report.charts import drawn
from rlpost.analysis.report.examples import WHYS, Groups, chosen, evidence_rows, examples, scales
from rlpost.analysis.report.page import all_plain, cut, page_of
from rlpost.analysis.report.totals import tallied
from rlpost.analysis.responses.index import build
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.locks import FileLock
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.progress import SilentReporter
from rlpost.io.staged import StagedFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.inspect.model import Evidence, Facts
    from rlpost.analysis.report.page import Json, Section
    from rlpost.analysis.responses.index import Index
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.progress import Reporter


_MOST_INPUTS = 5
_MOST_SAID = 300


def report(
    inputs: Sequence[str], output: str | Path, *, columns_map: Mapping[str, str] | None = None,
    pass_threshold: float = 1.0, examples: int = 6, seed: int = 0, overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Facts:  # fmt: skip
    """Write one HTML page about rollout files; it opens from disk and needs no network.

    The input is streamed; a few numbers per response are held. The page's size does not follow
    the input's.

    Args:
        inputs: Parquet files, directories or globs.
        output: the page's path.
        columns_map: role to column, as `--map` says; beats names and aliases.
        pass_threshold: a response passes with at least this reward.
        examples: responses each of the best, worst and random ones.
        seed: of the chance that picks examples.
        overwrite: whether an existing page is replaced.
        reporter: who is told how far it is.

    Returns:
        The facts that the page shows.

    Raises:
        UsageError: the output exists already, or is an input; a role is unknown.
        DataError: a file is not Parquet or has no rows, or a column has a type it can't have.
        ReadWriteError: reading or writing failed. No output is left behind.
    """
    reporter, columns_map = reporter or SilentReporter(), columns_map or {}
    target = Path(output)
    _check(target, find_inputs(inputs), overwrite=overwrite)
    # The facts' table of responses is let go of before the index is built.
    facts = inspect(inputs, columns_map=columns_map, pass_threshold=pass_threshold)
    if not facts.responses:
        raise DataError(f"{', '.join(inputs)}: there are no rows to report on")
    index = build(inputs, columns_map, reporter)
    data = data_of(facts, index, count=examples, seed=seed, reporter=reporter)
    _write(page_of(data), target)
    return facts


def _check(target: Path, files: Sequence[InputFile], *, overwrite: bool) -> None:
    """Find out before the work what would fail after it."""
    try:
        if target.is_dir():
            raise UsageError(f"{target}: is a directory; name a file, such as report.html")
        if any(file.path.resolve() == target.resolve() for file in files):
            raise UsageError(f"{target}: output and input are the same file; name another")
        if target.exists() and not overwrite:
            raise UsageError(f"{target}: exists already; --overwrite replaces it")
        if not target.parent.is_dir():
            raise ReadWriteError(f"{target}: cannot be written: no directory {target.parent}")
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None


def data_of(facts: Facts, index: Index, *, count: int, seed: int, reporter: Reporter) -> Json:
    """What the page shows, as plain data: sections, findings, examples."""
    tallies = tallied(index, reporter)
    groups = Groups(index)
    choice = chosen(index, groups, facts, count, seed)
    found = [
        sections.overview(facts),
        sections.steps(facts),
        sections.distributions(facts, tallies),
        sections.groups(facts),
        token_sections.engine(facts),
        token_sections.clipping(index.source, tallies),
        sections.storage(facts),
    ]
    threshold = facts.groups.pass_threshold if facts.groups else 1.0
    return {
        "version": __version__,
        "inputs": all_plain(_inputs(facts)),
        "sections": [_section(one) for one in found if one is not None],
        "findings": all_plain(_findings(facts, index)),
        "groups": examples(index, groups, choice, threshold),
        "whys": WHYS,
        "scales": scales(),
    }


def _section(section: Section) -> Json:
    found: Json = all_plain(asdict(section))
    for chart in found["charts"]:
        chart["svg"] = drawn(chart.pop("spec"))
    return found


def _inputs(facts: Facts) -> list[str]:
    return [*facts.inputs[:_MOST_INPUTS], *(["…"] if facts.inputs[_MOST_INPUTS:] else [])]


def _findings(facts: Facts, index: Index) -> list[Json]:
    return [
        {
            "name": finding.name,
            "severity": finding.severity,
            "said": cut(finding.said, _MOST_SAID),
            "advice": cut(finding.advice, _MOST_SAID),
            "evidence": [
                {"row": row, "said": cut(_evidence(one), _MOST_SAID)}
                for one, row in zip(finding.evidence, rows, strict=True)
            ],
        }
        for finding, rows in zip(facts.findings, evidence_rows(index, facts), strict=True)
    ]


def _evidence(one: Evidence) -> str:
    parts = [f"group {one.group}" if one.group is not None else "", one.said]
    name = Path(one.file).name
    parts.append(f"{name}, row {one.row:,}" if one.row is not None else name)
    return " · ".join(part for part in parts if part)


def _write(page: str, target: Path) -> None:
    """Beside the target first; it takes its name when it is complete."""
    with FileLock([target]):
        staged = StagedFile(target)
        try:
            staged.write(0, page.encode("utf-8"))
            staged.complete()
            staged.publish()
        finally:
            staged.discard()
