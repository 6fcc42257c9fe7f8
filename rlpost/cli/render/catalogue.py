"""Lists of estimators, presets and recipes, for terminals, pipes and programs."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import PIPED_WIDTH, console
from rlpost.display.page import Page, show_page
from rlpost.display.tables import TextTable, show_json, show_list, show_markdown
from rlpost.display.text import counted
from rlpost.recipe import presets
from rlpost.recipe.base import is_plain
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import LossOptions, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.cli.arguments import Setting
    from rlpost.estimators import Estimator
    from rlpost.losses import Loss
    from rlpost.recipe.functions import Option
    from rlpost.recipe.presets import FieldDifference


NONE = "–"
SETTING = ("field", "value", "from")
OPTION = ("option", "type", "default", "meaning")


def show_estimators(
    estimators: Sequence[Estimator], installed: Mapping[str, str], how: str, *, explain: bool
) -> None:
    """Print estimators on stdout: level, required columns, options, formula, source.

    Args:
        estimators: those to describe.
        installed: entry point by name, of those that are listed without being imported.
        how: `table`, `json` or `markdown`.
        explain: list the type, default and meaning of each option of theirs.
    """
    headings = ("estimator", "level", "needs", "options", "formula", "source")
    rows: list[tuple[Any, ...]] = []
    for entry in estimators:
        options = [_option_row(option) for option in entry.options.values()]
        flags = [flag_of(name) for name in entry.keywords if name in Recipe.model_fields]
        typed = ", ".join([*(f"{name}={_default(x)}" for name, _, x, _ in options), *flags])
        cell = _records(options) if how == "json" else typed
        needs = ", ".join(entry.roles)
        rows.append((entry.name, _level(entry), needs, cell, entry.formula, entry.source))
    for name, value in installed.items():
        rows.append(
            (name, "", "", [] if how == "json" else "", f"see rlpost estimators {name}", value)
        )
    tables = [
        _option_table(entry.name, [_option_row(option) for option in entry.options.values()])
        for entry in estimators
        if explain and entry.options
    ]
    note = [f"{flag_of('options')} NAME=VALUE sets an option without dashes"] if tables else []
    _show_catalogue("estimators", headings, rows, how, note, tables)


def _show_catalogue(
    name: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    how: str,
    steps: Sequence[str] = (),
    tables: Sequence[TextTable] = (),
) -> None:
    """Print a list of methods on stdout: as a page, `json` or `markdown`."""
    if how == "json":
        show_list(headings, rows, how)
        return
    table = _listed(headings, rows)
    show_page(Page(f"rlpost {name} · {len(rows)}", parts=[table, *tables], next_steps=steps), how)


def _listed(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], notes: Mapping[int, str] | None = None
) -> TextTable:
    """Return the table of a list: in a pipe, too, long texts are below their row.

    So a page of text has lines that can be read; programs read JSON.
    """
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return TextTable(headings, rows, text=range(len(headings)), row_notes=notes or {}, width=width)


def _level(estimator: Estimator) -> str:
    """Return the level of an estimator; columns that it reads by name may have tokens."""
    open_ = estimator.level == "response" and estimator.named_columns
    return "by columns" if open_ else estimator.level


def show_losses(losses: Sequence[Loss], how: str, *, detailed: bool) -> None:
    """Print policy losses on stdout: required columns, formula, aggregation, options, source.

    Args:
        losses: those to describe.
        how: `table`, `json` or `markdown`.
        detailed: with a table of the options of each.
    """
    headings = ("loss", "needs", "formula", "aggregation", "options", "source")
    rows = []
    for loss in losses:
        options = [
            _option_row(option, _meaning(loss, option)) for option in loss.parameters.values()
        ]
        text = ", ".join(f"{name} {word(default)}" for name, _, default, _ in options)
        needs = ", ".join((*loss.needs, *["group"] * loss.grouped))
        cell = _records(options) if how == "json" else text
        rows.append((loss.name, needs, loss.formula, loss.aggregation, cell, loss.source))
    steps = ["your own: rlpost loss IN --loss my_losses.py:function, see rlpost help losses"]
    tables = [_table_of_loss(loss) for loss in losses if loss.parameters] if detailed else []
    _show_catalogue("losses", headings, rows, how, steps, tables)


def _table_of_loss(loss: Loss) -> TextTable:
    """Return the options of a loss; those of `loss_options` have no dashes."""
    rows = [
        (flag_of(name) if name in loss.fields else name, *row)
        for option in loss.parameters.values()
        for name, *row in [_option_row(option, _meaning(loss, option))]
    ]
    notes = [f"Without dashes: {flag_of('loss_options')} NAME=VALUE."] if loss.options else []
    return _option_table(loss.name, rows, notes)


def _meaning(loss: Loss, option: Option) -> str:
    """Return what an option of a loss is: its own text, or that of the field."""
    field = LossOptions.model_fields.get(option.name) if option.name in loss.fields else None
    return option.text or " ".join(((field and field.description) or "").split())


def _option_row(option: Option, text: str = "") -> tuple[str, str, Any, str]:
    """Return name, type, default and meaning of an option."""
    default = f"<{option.type_name}>" if option.required else option.default
    if option.kind and not option.required and is_plain(option.default):
        default = option.plain(option.default)
    default = "never" if default == math.inf else default
    kind = option.type_name.replace(" | ", "|").replace("'", "")
    return option.name, kind, default, (text or option.text).removesuffix(".")


def _default(value: Any) -> str:
    return NONE if value is None or value == [] else word(value)


def _records(options: Sequence[tuple[str, str, Any, str]]) -> list[dict[str, Any]]:
    return [dict(zip(OPTION, option, strict=True)) for option in options]


def _option_table(
    name: str, options: Sequence[tuple[Any, ...]], notes: Sequence[str] = ()
) -> TextTable:
    """Return a table of rows of `_option_row`."""
    rows = [(name, kind, _default(default), text) for name, kind, default, text in options]
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    headings = (f"options of {name}", *OPTION[1:])
    return TextTable(headings, rows, text=range(len(OPTION)), notes=notes, width=width)


def show_presets(how: str) -> None:
    """Print the presets on stdout: the code that each reproduces, and names of the framework."""
    headings = ("preset", "repository", "release", "date", "commit")
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, str]] = []
    notes: dict[int, str] = {}
    for number, name in enumerate(presets.PRESETS):
        source = presets.source_of(name)
        losses = ", ".join(presets.loss_variants(name))
        both = [", ".join(presets.variants(name)), f"losses {losses}" if losses else ""]
        notes[number] = "; ".join(filter(None, both))
        rows.append((name, source.repository, source.release, source.date, source.commit))
        record = dict(zip(headings, rows[-1], strict=True))
        names = {"own_estimators_and_losses": notes[number], "framework": str(source)}
        records.append(record | names)
    if how == "json":
        show_json(records)
        return
    about = (
        "--preset NAME computes as this code of a framework does. Below each: the estimators and "
        "losses that it sets."
    )
    table = _listed(headings, rows, notes)
    steps = ["next: rlpost presets show verl · rlpost presets diff verl trl"]
    show_page(Page(f"rlpost presets · {len(rows)}", [about], [table], next_steps=steps), how)


def show_differences(
    names: tuple[str, str], differences: Sequence[FieldDifference], how: str, *, explain: bool
) -> None:
    """Print the fields in which two recipes differ.

    Args:
        names: of the presets.
        differences: in the order of the page.
        how: `table`, `json` or `markdown`.
        explain: with the description of each field; JSON has it always.
    """
    if how == "json":
        show_json(
            [
                dict(zip(("field", *names, "meaning"), difference, strict=True))
                for difference in differences
            ]
        )
        return
    title = f"rlpost presets diff · {', '.join(names)}"
    if not differences:
        show_page(Page(title, ["They have equal options."]), how)
        return
    rows = [
        (
            Text(difference.field, "bold"),
            Text(_word(difference.left), "cyan"),
            Text(_word(difference.right), "magenta"),
        )
        for difference in differences
    ]
    meanings = (
        {i: difference.meaning for i, difference in enumerate(differences)} if explain else {}
    )
    verb = "differs" if len(rows) == 1 else "differ"
    lines = [f"{counted(len(rows), 'field')} {verb}; equal fields are omitted"]
    table = TextTable(("field", *names), rows, text=range(3), row_notes=meanings)
    if how == "markdown" and explain:
        table = replace(
            table,
            headings=(*table.headings, "what it is"),
            rows=[
                (*row, difference.meaning)
                for row, difference in zip(rows, differences, strict=True)
            ],
            text=range(4),
            row_notes={},
        )
    steps = [] if explain else ["--explain describes each field"]
    show_page(Page(title, lines, [table], next_steps=steps), how)


def _word(value: Any) -> str:
    """Return a value as it is typed in a command."""
    if value is None:
        return NONE
    return "never" if value == math.inf else word(value)


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


def show_settings(settings: Sequence[Setting], recipe: str, how: str) -> None:
    """Print a resolved recipe on stdout: as a page, JSON, Markdown, or TOML for `--config`.

    Args:
        settings: the fields to print.
        recipe: its preset and its estimator, for the title.
        how: `table`, `json`, `markdown` or `toml`.
    """
    if how == "json":
        rows = [(setting.field, _plain(setting.value), setting.source) for setting in settings]
        show_json([dict(zip(SETTING, row, strict=True)) for row in rows])
    elif how == "toml":
        sys.stdout.write("\n".join(_toml_lines(settings)) + "\n")
    else:
        show_page(_settings_page(settings, recipe), how)


def _toml_lines(settings: Sequence[Setting]) -> list[str]:
    """Return the lines of a TOML file that gives the same recipe; unset fields are comments."""
    lines, title = [], ""
    for setting in settings:
        table, dot, key = setting.field.rpartition(".")
        if table != title:
            lines += ["", f"[{table}]"]
            title = table
        name = key if dot == "" or key.isidentifier() else json.dumps(key)
        if setting.value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"{name} = {presets.toml_value(setting.value)}  # {setting.source}")
    return lines


def _toml_word(value: Any) -> str:
    """Return a value as in TOML, but texts without quotes."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else presets.toml_value(value)


def _plain(value: Any) -> Any:
    """Return the value with infinity as a word, because JSON has no such number."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return presets.toml_value(value) if isinstance(value, float) and math.isinf(value) else value


def _settings_page(settings: Sequence[Setting], recipe: str) -> Page:
    title = f"rlpost config · {recipe}"
    all_fields = "--all lists all fields"
    if not settings:
        return Page(title, ["Every field has its default."], next_steps=[all_fields])
    rows = [
        (
            Text(setting.field, "bold" if setting.is_set else "dim"),
            Text(_toml_word(setting.value), "cyan" if setting.is_set else "dim"),
            Text(setting.source, "" if setting.is_set else "dim"),
        )
        for setting in settings
    ]
    number = sum(setting.is_set for setting in settings)
    verb = "is" if number == 1 else "are"
    lines = [f"{counted(number, 'field')} {verb} set; the others are defaults"]
    table = TextTable(SETTING, rows, text=range(3))
    return Page(title, lines, [table], next_steps=[all_fields] if number == len(rows) else [])
