"""The plan of a run: what would be computed, what is read and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, size
from rlpost.render.summary import mapped_columns, role_columns, unit_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.plan import Pass, Plan


_PASSES = ("", "once", "twice", "three times")


def plan_page(
    plan: Plan,
    target: AnyPath | None,
    device: str,
    *,
    overwrite: bool = False,
    verbose: bool = False,
) -> Page:
    """Return the page of a plan.

    Args:
        plan: a recipe bound to its input.
        target: OUT; None if it is not named.
        device: that computes, as of `--device`.
        overwrite: OUT may exist.
        verbose: with all roles, and the columns and bytes of each pass.
    """
    from rlpost.pipeline.output.columns import emitted  # noqa: PLC0415 - slow to import
    from rlpost.pipeline.summary import roles_of  # noqa: PLC0415
    from rlpost.pipeline.words import recipe_words  # noqa: PLC0415

    names = emitted(plan.resolved)
    passes = plan.passes(names)
    words = recipe_words(plan.resolved)
    rows = [(f"{i} {stage}", text) for i, (stage, text) in enumerate(words.items(), 1)]
    parts = [TextTable(rows=rows, text=(0, 1), title="Computes")]
    if verbose:
        parts.append(_pass_table(plan, passes))
    verdict = Notice("ok", "the recipe fits the input; nothing is written with --plan")
    if isinstance(target, Path) and target.is_file() and not overwrite:
        verdict = Notice("warning", f"{target} exists: --overwrite replaces it")
    roles = roles_of(plan)
    columns = [f"columns: {role_columns(roles)}"] if verbose else mapped_columns(roles)
    return Page(
        f"rlpost advantages --plan · {plan.source.name}{'' if target is None else f' → {target}'}",
        [_input(plan), *unit_line(plan.resolved.unit, plan.resolved.unit_reason), *columns],
        [*parts, TextTable(rows=[*_facts(plan, names, passes), ("device", device)], text=(0, 1))],
        verdict=verdict,
    )


def _input(plan: Plan) -> str:
    source = plan.source
    names = {name for schema in source.schemas for name in schema.names}
    files = counted(len(source.files), "file")
    row = "response" if plan.resolved.unit == "row" else "row"
    return f"{counted(source.rows, row)} in {files} of {counted(len(names), 'column')}"


def _facts(plan: Plan, names: tuple[str, ...], passes: list[Pass]) -> Iterator[tuple[str, str]]:
    """Yield what is written and read."""
    kept = len({name for schema in plan.source.schemas for name in schema.names} - {*names})
    beside = " alone" if plan.resolved.recipe.emit_only else f" beside the {kept} columns"
    yield "writes", f"{', '.join(names)}{beside}"
    times = _PASSES[len(passes)] if len(passes) < len(_PASSES) else f"{len(passes)} times"
    sizes = [size(plan.source.bytes_of(one.columns)) for one in passes]
    yield "reads", f"the input {times}: {', '.join(sizes)}"


def _pass_table(plan: Plan, passes: list[Pass]) -> TextTable:
    rows = [
        (f"{i} {one.purpose}", size(plan.source.bytes_of(one.columns)), ", ".join(one.columns))
        for i, one in enumerate(passes, 1)
    ]
    return TextTable(("pass", "reads", "columns"), rows, text=(0, 2))
