"""`report`: from rollout files to an HTML page about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.inspect.about.checks import verdict
from rlpost.analysis.inspect.facts import inspect_source
from rlpost.analysis.replay.stages import STAGES
from rlpost.analysis.report import clipping, critics, sections
from rlpost.analysis.report.charts import drawn
from rlpost.analysis.report.examples import REASONS, Groups, chosen, evidence_rows, examples, scales
from rlpost.analysis.report.page import all_plain, cut, page_of, plain, table_data
from rlpost.analysis.report.recorded import recorded, section
from rlpost.analysis.responses.columns import NAMES
from rlpost.analysis.responses.index import IndexBuilder
from rlpost.display.page import MARKS, Notice, Page
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted, size
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import check_target
from rlpost.io.publish import write_file
from rlpost.recipe.named import NamedByUser
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.analysis.inspect.model import Facts, FindingEvidence
    from rlpost.analysis.report.page import Json, Section
    from rlpost.analysis.responses.index import Index
    from rlpost.display.reporter import Reporter
    from rlpost.io.input_paths import InputPaths
    from rlpost.io.paths import AnyPath, PathText
    from rlpost.recipe.recipe import Recipe, RolloutReward
    from rlpost.recipe.roles import Unit


_MOST_INPUTS = 5
_MOST_TEXT = 300


def report(
    inputs: Sequence[PathText], output: str | Path, *, overwrite: bool = False, **options: Any
) -> Facts:
    """Write one HTML page about rollout files; `options` are those of `build`.

    Raises:
        UsageError: the output exists, or is an input; or as `build`.
        ReadWriteError: reading or writing failed. No output is left behind.
    """
    check_output(Path(output), files_of(inputs), overwrite=overwrite)
    facts, page = build(inputs, **options)
    write_file(Path(output), page.encode())
    return facts


def build(
    inputs: Sequence[PathText], *, columns_map: Mapping[str, str] | None = None,
    pass_threshold: float = 1.0, unit: Unit | None = None,
    rollout_reward: RolloutReward = "equal", reward_components: Mapping[str, float] | None = None,
    examples: int = 6, seed: int = 0, partial: bool = False,
    recipe: Recipe | None = None, named: str = "the recipe",
    by_user: NamedByUser | None = None,
    reporter: Reporter | None = None, made_of: InputPaths | None = None,
    shown: Callable[[Facts], Facts] = lambda facts: facts,
) -> tuple[Facts, str]:  # fmt: skip
    """Return statistics of rollout files, and the page about them; see `rlpost.report`.

    The input is read once, in chunks; a few numbers per response stay in memory. The size of the
    page does not grow with the input. Before that, a sample of recorded columns is compared with
    the recipe: `named` is how the user typed it, and `by_user` what replaces the code and the
    tokenizer of a recipe in metadata. `made_of` is what temporary files are made of, and `shown`
    returns the statistics with the names of inputs in place of temporary files. `partial` is as in
    `inspect_source`.
    """
    every = columns_map or {}
    columns_map = {
        name: column for name, column in every.items() if name not in {*STAGES} - {*ROLES}
    }
    source = Source(find_inputs(inputs))
    found = recorded(
        source, every, recipe or by_user or NamedByUser(), named, reporter or SilentReporter()
    )
    builder = IndexBuilder(source, columns_map)
    clips = clipping.ClipCounter(source, builder.columns)
    facts = inspect_source(
        source,
        inputs,
        columns_map=_with_advantages(source, columns_map),
        pass_threshold=pass_threshold,
        unit=unit,
        rollout_reward=rollout_reward,
        reward_components=reward_components or {},
        partial=partial,
        beside=(builder, clips),
        reporter=reporter,
    )
    if not facts.responses:
        raise DataError(f"{source.name}: the input has no rows")
    index, names = builder.finish(), shown(facts)
    index = index if made_of is None else replace(index, made_of=made_of)
    data = data_of(
        facts, names, index, clips.counts, section(found, names),
        recipe=found.words if found else "", count=examples, seed=seed,
    )  # fmt: skip
    return names, page_of(data)


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


def data_of(
    facts: Facts, named: Facts, index: Index, clips: clipping.ClipCounts,
    replayed: Section | None = None, *, recipe: str = "", count: int, seed: int,
) -> Json:  # fmt: skip
    """Return the content of the page as plain data: sections, findings, examples.

    Args:
        facts: statistics, whose evidence is in the files of the index.
        named: the same with the names that the page has.
        index: of the responses.
        clips: counts of clipped values.
        replayed: the section about recorded columns.
        recipe: that of the recorded columns, in words; empty if it is unknown.
        count: number of the best, of the worst and of random responses.
        seed: of the random responses.
    """
    groups = Groups(index)
    choice = chosen(index, groups, facts, count, seed)
    parts = [
        sections.signal(facts),
        sections.overview(named),
        sections.steps(facts, clips.shares()),
        sections.distributions(facts),
        sections.groups(facts),
        sections.engine(facts),
        critics.critic(facts),
        critics.entropy(facts),
        clipping.section(index.source, clips),
        replayed,
        sections.checks(facts),
        sections.storage(named),
    ]
    found = verdict(facts)
    threshold = facts.groups.pass_threshold if facts.groups else 1.0
    return {
        "version": __version__,
        "inputs": all_plain(_inputs(named)),
        "recipe": plain(cut(recipe, _MOST_TEXT)),
        "verdict": {
            "severity": found.severity,
            "text": f"{MARKS[found.severity]} {found.text}",
        },
        "sections": [_section(one) for one in parts if one is not None],
        "findings": all_plain(_findings(facts, named, index)),
        "groups": examples(index, groups, choice, threshold),
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


def _section(section: Section) -> Json:
    charts = [
        {"title": one.title, "note": one.note, "numbers": table_data(one.numbers)}
        for one in section.charts
    ]
    data: Json = all_plain(
        {
            "name": section.name,
            "title": section.title,
            "lines": section.lines,
            "tiles": [vars(one) for one in section.tiles],
            "charts": charts,
            "tables": [table_data(one) for one in section.tables],
        }
    )
    for chart, own in zip(data["charts"], section.charts, strict=True):
        chart["svg"] = drawn(own.spec)
    return data


def _inputs(facts: Facts) -> list[str]:
    return [*facts.inputs[:_MOST_INPUTS], *(["…"] if facts.inputs[_MOST_INPUTS:] else [])]


def _findings(facts: Facts, named: Facts, index: Index) -> list[Json]:
    """Return the findings with the rows of the index, and in words those of the input."""
    return [
        {
            "name": finding.name,
            "severity": finding.severity,
            "text": cut(finding.text, _MOST_TEXT),
            "advice": cut(finding.advice, _MOST_TEXT),
            "evidence": [
                {"row": row, "text": cut(_evidence(one), _MOST_TEXT)}
                for one, row in zip(finding.evidence, rows, strict=True)
            ],
        }
        for finding, rows in zip(named.findings, evidence_rows(index, facts), strict=True)
    ]


def _evidence(one: FindingEvidence) -> str:
    parts = [f"group {one.group}" if one.group is not None else "", one.text]
    name = Path(one.file).name
    parts.append(f"{name}:{one.row}" if one.row is not None else name)
    return " · ".join(part for part in parts if part)
