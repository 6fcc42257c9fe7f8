"""What `rlpost list` and `rlpost config` print: lists of kinds, recipes and their differences."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text

from rlpost.display.console import PIPED_WIDTH, console
from rlpost.display.page import Page, show_page
from rlpost.display.tables import TextTable, show_json, show_list, show_markdown
from rlpost.display.text import counted, number, percent
from rlpost.errors import UsageError, no_such
from rlpost.recipe import presets
from rlpost.recipe.base import is_plain
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import LossOptions, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.cli.arguments import Setting
    from rlpost.estimators import Estimator
    from rlpost.formats.base import Format
    from rlpost.formats.targets.base import ExportTarget
    from rlpost.losses import Loss
    from rlpost.recipe.functions import Option
    from rlpost.recipe.presets import FieldDifference


Listed = TypeVar("Listed")
Json = dict[str, Any]
NONE = "–"
SETTING = ("field", "value", "from")
OPTION = ("option", "type", "default", "meaning")
ABOUT = {
    "estimators": "--estimator: formula, columns, options, source",
    "losses": "--loss of rlpost loss: formula, columns, options, source",
    "presets": "--preset: the code of a framework that each reproduces",
    "dumps": "dumps of frameworks that every command reads",
    "targets": "--to of rlpost export: files that trainers read",
    "checks": "what rlpost inspect looks for",
}
"""What `rlpost list` lists."""


def show(kind: str | None, names: Sequence[str], how: str) -> None:
    """Print a list on stdout, or all about some of its entries by name.

    Args:
        kind: of `ABOUT`; None: the list of kinds.
        names: of entries; none: all.
        how: `table`, `json` or `markdown`.

    Raises:
        UsageError: there is no such kind, or no entry of this name.
    """
    if kind is None:
        table = TextTable(("kind", "what"), [*ABOUT.items()], text=(0, 1))
        if how == "json":
            show_json(ABOUT)
        else:
            steps = ["rlpost list estimators", "rlpost list presets"]
            show_page(Page("rlpost list", (), [table], next_steps=steps), how)
        return
    if kind not in ABOUT:
        raise UsageError(no_such(f"no kind {kind!r}", kind, ABOUT, "rlpost list"))
    _SHOW[kind](names, how)


def _chosen(kind: str, entries: Mapping[str, Listed], names: Sequence[str]) -> list[Listed]:
    """Return the entries of some names, or all; raises UsageError for a name without one."""
    for name in names:
        if name not in entries:
            lists = f"rlpost list {kind}"
            raise UsageError(no_such(f"no {kind[:-1]} {name!r}", name, entries, lists))
    return [entries[name] for name in names or entries]


def _estimators(names: Sequence[str], how: str) -> None:
    """Print estimators: level, required columns, options, formula, source."""
    from rlpost.estimators import ESTIMATORS, estimator_named  # noqa: PLC0415 - slow to import
    from rlpost.recipe.estimators import installed  # noqa: PLC0415

    estimators = [*map(estimator_named, names)] if names else [*ESTIMATORS.values()]
    headings = ("estimator", "level", "needs", "options", "formula", "source")
    rows: list[tuple[Any, ...]] = []
    for entry in estimators:
        options = [_option_row(option) for option in entry.options.values()]
        flags = [flag_of(name) for name in entry.keywords if name in Recipe.model_fields]
        typed = ", ".join([*(f"{name}={_default(x)}" for name, _, x, _ in options), *flags])
        cell = _records(options) if how == "json" else typed
        needs = ", ".join(entry.roles)
        rows.append((entry.name, _level(entry), needs, cell, entry.formula, entry.source))
    for name, point in {} if names else installed().items():
        about = f"see rlpost list estimators {name}"
        rows.append((name, "", "", [] if how == "json" else "", about, point.value))
    tables = [
        _option_table(entry.name, [_option_row(option) for option in entry.options.values()])
        for entry in estimators
        if names and entry.options
    ]
    note = ["rlpost list estimators grpo  # its options"]
    if names:
        note = [f"# {flag_of('options')} NAME=VALUE sets one without dashes"] if tables else []
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
    show_page(
        Page(f"rlpost list {name} · {len(rows)}", parts=[table, *tables], next_steps=steps), how
    )


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


def _losses(names: Sequence[str], how: str) -> None:
    """Print policy losses: required columns, formula, aggregation, options, source."""
    from rlpost.losses import LOSSES, loss_named  # noqa: PLC0415 - slow to import

    losses = [*map(loss_named, names)] if names else [*LOSSES.values()]
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
    steps = ["rlpost help your own loss  # your own: --loss my_losses.py:function"]
    tables = [_table_of_loss(loss) for loss in losses if loss.parameters] if names else []
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


def _presets(_: Sequence[str], how: str) -> None:
    """Print the presets: the code that each reproduces, and names of the framework."""
    headings = ("preset", "repository", "release", "date", "commit")
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, str]] = []
    notes: dict[int, str] = {}
    for place, name in enumerate(presets.PRESETS):
        source = presets.source_of(name)
        losses = ", ".join(presets.loss_variants(name))
        both = [", ".join(presets.variants(name)), f"losses {losses}" if losses else ""]
        notes[place] = "; ".join(filter(None, both))
        rows.append((name, source.repository, source.release, source.date, source.commit))
        record = dict(zip(headings, rows[-1], strict=True))
        names = {"own_estimators_and_losses": notes[place], "framework": str(source)}
        records.append(record | names)
    if how == "json":
        show_json(records)
        return
    about = (
        "--preset NAME computes as this code of a framework does. Below each: the estimators and "
        "losses that it sets."
    )
    steps = ["rlpost list presets verl", "rlpost config diff verl trl"]
    page = Page(f"rlpost list presets · {len(rows)}", [about], [_listed(headings, rows, notes)],
                next_steps=steps)  # fmt: skip
    show_page(page, how)


def show_preset(name: str, estimator: str | None, loss: str | None, how: str) -> None:
    """Print the recipe and the policy loss of a preset as TOML for `--config`, or as its fields.

    Args:
        name: of the preset; `default` has all numerics.
        estimator: which the recipe is for; None: its usual one.
        loss: which its loss is; None: its usual one.
        how: `table`, `json` or `markdown`.
    """
    recipe = presets.preset(name, **({"estimator": estimator} if estimator else {}))
    options = presets.loss_preset(name, **({"loss": loss} if loss else {}))
    whole = name == presets.DEFAULT
    values = presets.changed(recipe, options, whole=whole)
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
        lines = presets.toml_comment(presets.about(name))
        lines += presets.toml_lines(recipe, options, whole=whole)
        console(sys.stdout).print("\n".join(lines), markup=False, soft_wrap=True)


def _dumps(names: Sequence[str], how: str) -> None:
    """Print the formats of dumps."""
    from rlpost.formats import FORMATS  # noqa: PLC0415 - slow to import

    formats = _chosen("dumps", FORMATS, names)
    records = [
        {
            "format": dump.name, "reads": dump.title, "roles": ", ".join(dump.roles),
            "missing_roles": "; ".join(
                f"{role}: {why}" for role, why in dump.missing_roles.items() if why
            ),
            "note": dump.note, "source": dump.source,
        }
        for dump in formats
    ]  # fmt: skip
    facts = [{**_roles_of(dump), "source": dump.source} for dump in formats]
    _show_facts("dumps", "slime-train", records, facts if names else (), how)


def _roles_of(dump: Format) -> dict[str, str]:
    """Return the roles that every dump has, some dumps have, and no dump has."""
    from rlpost.formats.dumps import GENERIC  # noqa: PLC0415

    if dump.name in GENERIC:
        return {"if dumped": "every role", "note": dump.note}
    always = [role for role in dump.roles if role not in dump.missing_roles]
    sometimes = [role for role in dump.roles if role in dump.missing_roles]
    never = [role for role in dump.missing_roles if role not in dump.roles]
    lists = {"always": always, "if dumped": sometimes, "never": never}
    return {**{name: ", ".join(roles) for name, roles in lists.items()}, "note": dump.note}


def _targets(names: Sequence[str], how: str) -> None:
    """Print the targets of exports."""
    from rlpost.formats.targets import TARGETS  # noqa: PLC0415 - slow to import

    targets = _chosen("targets", TARGETS, names)
    facts = [target_facts(target) for target in targets]
    records = [
        {"target": target.name, "writes": target.title}
        | {name.replace(" ", "_"): text for name, text in of_target.items()}
        for target, of_target in zip(targets, facts, strict=True)
    ]
    _show_facts("targets", "slime", records, facts if names else (), how)


def _installed(target: ExportTarget) -> list[str]:
    """Return the package that writes the file of a target, as what the target needs."""
    return [f"the package {target.library}"] if target.library else []


def target_facts(target: ExportTarget) -> dict[str, str]:
    """Return what a target needs, what else it holds, and what becomes of other columns."""
    optional = [item for item in target.fields if item not in target.needs]
    return {
        "needs": ", ".join([*target.needs, *_installed(target)]),
        "optional": ", ".join(optional),
        "other columns": target.others or "lost",
        "note": target.note,
        "source": target.source,
    }


def _show_facts(
    kind: str, example: str, records: Sequence[dict[str, str]], facts: Sequence[dict[str, str]],
    how: str,
) -> None:  # fmt: skip
    """Print a line for each record, or its facts; JSON and Markdown have all of both.

    Args:
        kind: of what they are.
        example: the name of one.
        records: the name, the title, and all else.
        facts: of each record, for its page; none: a list.
        how: `table`, `json` or `markdown`.
    """
    headings = [name.replace("_", " ") for name in records[0]]
    rows = [(*record.values(),) for record in records]
    title = f"rlpost list {kind} ·"
    if how != "table":
        show_list(headings, rows, how)
    elif facts:
        for (name, about, *_), of_name in zip(rows, facts, strict=True):
            lines = [(label, text) for label, text in of_name.items() if text]
            table = TextTable((), lines, text=(0, 1))
            show_page(Page(f"{title} {name}: {about}", (), [table]), how)
    else:
        table = TextTable(headings[:2], [row[:2] for row in rows], text=(0, 1))
        steps = [f"rlpost list {kind} {example}"]
        show_page(Page(f"{title} {len(rows)}", (), [table], next_steps=steps), how)


def _checks(names: Sequence[str], how: str) -> None:
    """Print the checks of inspect."""
    from rlpost.analysis.inspect.about import checks  # noqa: PLC0415 - slow to import
    from rlpost.analysis.inspect.findings import FINDINGS  # noqa: PLC0415

    named = [check.name for check in _chosen("checks", FINDINGS, names)]
    if how == "json":
        show_json([checks.check_json(name, None) for name in named])
    elif names:
        for name in named:
            show_page(checks.check_page(name), how)
    else:
        show_page(checks.list_page(), how)


_SHOW: dict[str, Callable[[Sequence[str], str], None]] = {
    "estimators": _estimators,
    "losses": _losses,
    "presets": _presets,
    "dumps": _dumps,
    "targets": _targets,
    "checks": _checks,
}


def show_differences(
    names: tuple[str, str],
    differences: Sequence[FieldDifference],
    effects: Mapping[str, Json | None] | None,
    how: str,
    *,
    explain: bool,
) -> None:
    """Print the fields in which two recipes differ.

    Args:
        names: of the recipes.
        differences: in the order of the page.
        effects: by field, what the other value changes in a file; None: without a file.
        how: `table`, `json` or `markdown`.
        explain: with the description of each field; JSON has it always.
    """
    keys = ("field", *names, "meaning")
    records = [dict(zip(keys, difference, strict=True)) for difference in differences]
    if how == "json":
        show_json([
            record if effects is None else record | {"effect": effects.get(difference.path)}
            for record, difference in zip(records, differences, strict=True)
        ])  # fmt: skip
        return
    title = f"rlpost config diff · {', '.join(names)}"
    if not differences:
        show_page(Page(title, ["They have equal options."]), how)
        return
    styles = ("bold", "cyan", "magenta")
    headings, columns = ["field", *names], range(3)
    cells = [(x.field, _word(x.left), _word(x.right)) for x in differences]
    rows = [[*map(Text, line, styles)] for line in cells]
    if effects is not None:
        headings += ["changes", "by at most"]
        for row, difference in zip(rows, differences, strict=True):
            effect = effects.get(difference.path) or {"share": None, "largest": None}
            row += [Text(percent(effect["share"])), Text(number(effect["largest"]))]
    if explain and how == "markdown":
        headings.append("what it is")
        for row, difference in zip(rows, differences, strict=True):
            row.append(Text(difference.meaning))
    notes = {i: x.meaning for i, x in enumerate(differences)} if explain else {}
    verb = "differs" if len(rows) == 1 else "differ"
    lines = [f"{counted(len(rows), 'field')} {verb}; equal fields are omitted"]
    if effects is not None:
        lines.append(f"changes: advantages of responses that change if {names[0]} has the value "
                     f"of {names[1]} alone; – is no field of advantages")  # fmt: skip
    table = TextTable(headings, rows, text=columns, row_notes=notes if how == "table" else {})
    steps = [] if explain else ["# --explain describes each field"]
    show_page(Page(title, lines, [table], next_steps=steps), how)


def _word(value: Any) -> str:
    """Return a value as it is typed in a command."""
    if value is None:
        return NONE
    return "never" if value == math.inf else word(value)


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
    all_fields = "# --all lists all fields"
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
