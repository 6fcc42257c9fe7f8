"""`report`: from rollout files to an HTML page about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.checks import verdict
from rlpost.analysis.inspect.facts import inspect_source
from rlpost.analysis.report.examples import (
    REASONS,
    chosen,
    cut,
    evidence_rows,
    examples,
    scales,
)
from rlpost.analysis.report.page import html_of, overview, topics
from rlpost.analysis.responses.columns import NAMES
from rlpost.analysis.responses.index import index_of
from rlpost.display.controls import printable_line
from rlpost.display.page import Notice, Page
from rlpost.display.text import counted, size
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import check_target
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.page import Json
    from rlpost.analysis.responses.index import Index
    from rlpost.display.reporter import Reporter
    from rlpost.io.input_paths import InputPaths
    from rlpost.io.paths import AnyPath, PathText


_MOST_INPUTS = 5
_MOST_TEXT = 300


def build(
    inputs: Sequence[PathText], *, columns_map: Mapping[str, str] | None = None,
    reward_components: Mapping[str, float] | None = None,
    examples: int = 6, seed: int = 0, partial: bool = False,
    reporter: Reporter | None = None, made_of: InputPaths | None = None,
    shown: Callable[[Facts], Facts] = lambda facts: facts, **counting: Any,
) -> tuple[Facts, str]:  # fmt: skip
    """Return statistics of rollout files, and the page about them; see `rlpost.report`.

    The input is read once, in chunks; a few numbers per response stay in memory. The size of the
    page does not grow with the input. `made_of` is what temporary files are made of, and `shown`
    returns the statistics with the names of inputs in place of temporary files. `partial` is as in
    `inspect_source`; `counting` are the fields of COUNTING.
    """
    columns_map, source = columns_map or {}, Source(find_inputs(inputs))
    facts, inspected = inspect_source(
        source,
        inputs,
        columns_map=_with_advantages(source, columns_map),
        reward_components=reward_components or {},
        partial=partial,
        reporter=reporter,
        **counting,
    )
    if not facts.responses:
        raise DataError(f"{source.name}: the input has no rows")
    selection, said = inspected.selection, inspected.reading.said
    index = index_of(source, selection.columns, selection.lists_column, said, inspected.table)
    names = shown(facts)
    index = index if made_of is None else replace(index, made_of=made_of)
    return names, html_of(
        [overview(names), *topics(names)],
        _data(facts, names, index, count=examples, seed=seed),
        inputs=", ".join(_inputs(names)),
        verdict=verdict(names),
    )


def _with_advantages(source: Source, columns_map: Mapping[str, str]) -> Mapping[str, str]:
    """Return the map, with a column `advantage` as the role `advantages` if there is no other."""
    name = next((name for name in NAMES["advantage"] if name in source.columns), None)
    if name is None or name in ROLES["advantages"].aliases:
        return columns_map
    return {"advantages": name, **columns_map}


def files_of(inputs: Sequence[PathText]) -> list[AnyPath]:
    """Return the files of inputs, which a page may not overwrite."""
    return [file.path.resolve() for file in find_inputs(inputs)]


def check_output(target: Path, files: Sequence[AnyPath], *, overwrite: bool) -> None:
    """Raise the errors of writing before the work, not after it."""
    try:
        if target.is_dir():
            raise UsageError(f"{target}: is a directory; name a file, such as report.html")
        check_target(target, files, overwrite=overwrite)
        if not target.parent.is_dir():
            raise ReadWriteError(f"{target}: cannot be written: no directory {target.parent}")
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None


def _data(facts: Facts, named: Facts, index: Index, *, count: int, seed: int) -> Json:
    """Return findings and examples as plain data.

    Args:
        facts: statistics, whose evidence is in the files of the index.
        named: the same with the names that the page has.
        index: of the responses.
        count: number of the best, of the worst and of random responses.
        seed: of the random responses.
    """
    choice = chosen(index, facts, count, seed)
    return {
        "findings": _findings(facts, named, index),
        "groups": examples(index, choice),
        "reasons": REASONS,
        "scales": scales(),
    }


def written_page(facts: Facts, output: str) -> Page:
    """Return what the command prints: the page that it wrote, and the findings in it."""
    bytes_of = size(Path(output).stat().st_size)
    text = f"{output} written: {counted(facts.responses, 'response')}, {bytes_of}"
    return Page(
        f"rlpost report · {', '.join(_inputs(facts))}",
        lines=[verdict(facts).text],
        verdict=Notice("ok", text),
    )


def _inputs(facts: Facts) -> list[str]:
    return [*facts.inputs[:_MOST_INPUTS], *(["…"] if facts.inputs[_MOST_INPUTS:] else [])]


def _findings(facts: Facts, named: Facts, index: Index) -> list[Json]:
    """Return the findings with the rows of the index, and in words those of the input."""
    return [
        {
            "check": finding.check,
            "level": finding.level,
            "text": _text(finding.text),
            "advice": _text(finding.advice),
            "rows": [
                {"row": row, "text": _text(str(place._replace(file=Path(place.file).name)))}
                for place, row in zip(finding.rows, rows, strict=True)
            ],
        }
        for finding, rows in zip(named.findings, evidence_rows(index, facts), strict=True)
    ]


def _text(text: str) -> str:
    return printable_line(cut(text, _MOST_TEXT))
