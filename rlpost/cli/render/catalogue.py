"""Lists of estimators, presets and recipes, for terminals, pipes and programs."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import TextTable, show_json, show_list, show_markdown
from rlpost.display.text import counted
from rlpost.recipe import presets
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import DEFAULTS, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.cli.arguments import Setting
    from rlpost.estimators import Estimator
    from rlpost.losses import Loss
    from rlpost.recipe.presets import FieldDifference


NONE = "–"
SETTING = ("field", "value", "from")


def show_estimators(
    estimators: Sequence[Estimator], installed: Mapping[str, str], how: str
) -> None:
    """Print estimators on stdout: level, required columns, options, formula, source.

    Args:
        estimators: those to describe.
        installed: entry point by name, of those that are listed without being imported.
        how: `table`, `json` or `markdown`.
    """
    headings = ("estimator", "level", "needs", "options", "formula", "source")
    rows = [
        (
            one.name,
            _level(one),
            ", ".join(one.roles),
            ", ".join(_options(one)),
            one.formula,
            one.source,
        )
        for one in estimators
    ]
    for name, value in installed.items():
        rows.append((name, "", "", "", f"see rlpost estimators {name}", value))
    show_list(headings, rows, how)


def _level(estimator: Estimator) -> str:
    """Return the level of an estimator; columns that it reads by name may have tokens."""
    open_ = estimator.level == "response" and estimator.named_columns
    return "by columns" if open_ else estimator.level


def _options(estimator: Estimator) -> list[str]:
    """Return the options of an estimator as one types them, its own with their defaults."""
    shared = [flag_of(name) for name in estimator.options if name in Recipe.model_fields]
    return [*map(str, estimator.own_options.values()), *shared]


def show_losses(losses: Sequence[Loss], how: str) -> None:
    """Print policy losses on stdout: required columns, formula, aggregation, options, source."""
    headings = ("loss", "needs", "formula", "aggregation", "options", "source")
    rows = []
    for one in losses:
        options = {key: x for key, x in DEFAULTS[one.name].items() if key != "aggregation"}
        own = options if how == "json" else ", ".join(_distinct(options))
        needs = ", ".join(one.needs)
        rows.append((one.name, needs, one.formula, one.aggregation, own, one.source))
    show_list(headings, rows, how)


def _distinct(options: Mapping[str, Any]) -> list[str]:
    """Return options as text; a bound of one side only if it differs from that of both sides."""
    return [
        f"{name} {word(value)}"
        for name, value in options.items()
        if options.get(name.removesuffix("_low").removesuffix("_high")) != value
        or not name.endswith(("_low", "_high"))
    ]


def show_presets(how: str) -> None:
    """Print the presets on stdout: the code that each reproduces, and names of the framework."""
    headings = ("preset", "release", "date", "commit", "earlier code")
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, str]] = []
    notes: dict[int, str] = {}
    for name in presets.PRESETS:
        source, earlier = presets.source_of(name), ", ".join(presets.earlier(name))
        own = ", ".join(presets.variants(name))
        losses = ", ".join(presets.loss_variants(name))
        both = "; ".join(part for part in (own, f"losses {losses}" if losses else "") if part)
        notes[len(rows)] = f"{source.repository}: {both}"
        rows.append((name, source.release, source.date, source.commit, earlier))
        records.append(
            {
                "preset": name,
                "repository": source.repository,
                "release": source.release,
                "date": source.date,
                "commit": source.commit,
                "own_estimators_and_losses": both,
                "earlier_code": earlier,
                "framework": str(source),
            }
        )
    if how == "json":
        show_json(records)
    elif how == "markdown":
        shown = [tuple(record.values())[:-1] for record in records]
        show_markdown(tuple(name.replace("_", " ") for name in records[0])[:-1], shown)
    else:
        own = "Below each: the repository, and the estimators and losses that the preset sets"
        table = TextTable(headings, rows, text=range(5), row_notes=notes, notes=(own,))
        console(sys.stdout).print(table)


def show_differences(
    names: tuple[str, str], differences: Sequence[FieldDifference], how: str
) -> None:
    """Print the fields in which two recipes differ; below each, what it is about."""
    headings = ("field", *names, "what it is")
    if how == "json":
        show_json(
            [dict(zip(("field", *names, "meaning"), one, strict=True)) for one in differences]
        )
    elif how == "markdown":
        rows = [(one.field, _word(one.left), _word(one.right), one.meaning) for one in differences]
        show_markdown(headings, rows)
    else:
        _print_differences(names, differences)


def _print_differences(names: tuple[str, str], differences: Sequence[FieldDifference]) -> None:
    out = console(sys.stdout)
    if not differences:
        out.print(f"{names[0]} and {names[1]} have equal options")
        return
    rows = [
        (
            Text(one.field, "bold"),
            Text(_word(one.left), "cyan"),
            Text(_word(one.right), "magenta"),
        )
        for one in differences
    ]
    verb = "differs" if len(differences) == 1 else "differ"
    ending = f"{counted(len(differences), 'field')} {verb}; equal fields are omitted"
    meanings = {i: one.meaning for i, one in enumerate(differences)}
    headings = ("field", *names)
    out.print(TextTable(headings, rows, text=range(3), row_notes=meanings, notes=(ending,)))


def _word(value: Any) -> str:
    """Return a value as it is typed in a command."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "never" if value == float("inf") else f"{value:g}"
    return str(value)


def show_recipe(lines: Sequence[str], values: Mapping[str, Any], how: str) -> None:
    """Print a recipe as the TOML that `--config` reads, as JSON, or as a table of its fields."""
    if how == "json":
        show_json(values)
    elif how == "markdown":
        tables = {name: table for name, table in values.items() if isinstance(table, dict)}
        flat = [(name, _word(value)) for name, value in values.items() if name not in tables]
        flat += [
            (f"{title}.{key}", _word(x)) for title, t in tables.items() for key, x in t.items()
        ]
        show_markdown(("field", "value"), flat)
    else:
        console(sys.stdout).print("\n".join(lines), markup=False, soft_wrap=True)


def show_settings(settings: Sequence[Setting], how: str) -> None:
    """Print a resolved recipe on stdout: as a table, JSON, Markdown, or TOML for `--config`."""
    if how == "json":
        rows = [(one.field, _plain(one.value), one.source) for one in settings]
        show_json([dict(zip(SETTING, row, strict=True)) for row in rows])
    elif how == "markdown":
        show_markdown(SETTING, [(x.field, _toml_word(x.value), x.source) for x in settings])
    elif how == "toml":
        sys.stdout.write("\n".join(_toml_lines(settings)) + "\n")
    else:
        _print_settings(settings)


def _toml_lines(settings: Sequence[Setting]) -> list[str]:
    """Return the lines of a TOML file that gives the same recipe; unset fields are comments."""
    lines, title = [], ""
    for one in settings:
        table, dot, key = one.field.rpartition(".")
        if table != title:
            lines += ["", f"[{table}]"]
            title = table
        name = key if dot == "" or key.isidentifier() else json.dumps(key)
        if one.value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"{name} = {_toml(one.value)}  # {one.source}")
    return lines


def _toml(value: Any) -> str:
    """Return a value as in TOML, which is JSON except for infinity."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def _toml_word(value: Any) -> str:
    """Return a value as in TOML, but texts without quotes."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else _toml(value)


def _plain(value: Any) -> Any:
    """Return the value with infinity as a word, because JSON has no such number."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _toml(value) if isinstance(value, float) and math.isinf(value) else value


def _print_settings(settings: Sequence[Setting]) -> None:
    out = console(sys.stdout)
    if not settings:
        out.print("every field has its default")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in SETTING:
        table.add_column(heading, header_style="bold", overflow="fold")
    for one in settings:
        own = one.is_set
        style = "bold" if own else "dim"
        table.add_row(
            Text(one.field, style),
            Text(_toml_word(one.value), "cyan" if own else "dim"),
            Text(one.source, "" if own else "dim"),
        )
    out.print(table)
    number = sum(one.is_set for one in settings)
    verb = "is" if number == 1 else "are"
    out.print(Text(f"\n{counted(number, 'field')} {verb} set; the others are defaults", "dim"))
