"""What `rlpost list` and `rlpost config` print: records, as a table, one by one, or as JSON."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.text import Text

from rlpost.display.console import PIPED_WIDTH
from rlpost.display.page import Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.errors import UsageError, no_such
from rlpost.recipe import presets
from rlpost.recipe.base import is_plain
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import LossOptions, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.recipe.functions import Option


Entry = TypeVar("Entry")
Json = dict[str, Any]
NONE = "–"
OPTION = ("option", "type", "default", "meaning")


class Kind(NamedTuple):
    """Something that `rlpost list` lists."""

    about: str
    records: Callable[[Sequence[str]], list[Json]]
    """Returns the records of entries by name, or of all; raises UsageError for another name."""
    columns: int
    """How many of the values of a record the list has."""
    steps: Sequence[str]
    """What to type next, below the list."""


def show(kind: str | None, names: Sequence[str], how: str) -> None:
    """Print a list on stdout, or all about some of its entries by name.

    Args:
        kind: of `KINDS`; None: the list of kinds.
        names: of entries; none: all.
        how: `table`, `json` or `markdown`.

    Raises:
        UsageError: there is no such kind, or no entry of this name.
    """
    if kind is None:
        kinds = [{"kind": name, "what": entry.about} for name, entry in KINDS.items()]
        steps = ["rlpost list estimators", "rlpost list presets"]
        show_records("rlpost list", kinds, how, steps=steps)
        return
    if kind not in KINDS:
        raise UsageError(no_such(f"no kind {kind!r}", kind, KINDS, "rlpost list"))
    entry = KINDS[kind]
    records = entry.records(names)
    title = f"rlpost list {kind} ·"
    if how == "json" or not names:
        title = f"{title} {len(records)}"
        show_records(title, records, how, columns=entry.columns, steps=entry.steps)
        return
    for record in records:
        show_page(_page_of(title, record), how)


def show_records(
    title: str,
    records: Sequence[Json],
    how: str,
    *,
    columns: int | None = None,
    lines: Sequence[str] = (),
    steps: Sequence[str] = (),
) -> None:
    """Print records with the same keys as a table, or as JSON.

    Args:
        title: of the page.
        records: with all their keys in JSON.
        how: `table`, `json` or `markdown`.
        columns: the first keys, which the table has; None: all.
        lines: above the table.
        steps: what to type next.
    """
    if how == "json":
        show_json(records)
        return
    # In a pipe, too, long texts are below their row: programs read JSON.
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    rows = [[*map(_cell, [*record.values()][:columns])] for record in records]
    styled: list[list[str | Text]] = [[Text(name, "bold"), *cells] for name, *cells in rows]
    headings = [name.replace("_", " ") for record in records[:1] for name in [*record][:columns]]
    table = TextTable(headings, styled, text=range(len(headings)), width=width)
    show_page(Page(title, lines, [table] * bool(records), next_steps=steps), how)


def _page_of(title: str, record: Json) -> Page:
    """Return all about an entry: its values, then its options."""
    values = dict(record)
    name, options = next(iter(record.values())), values.pop("options", [])
    facts = [(key.replace("_", " "), text) for key, text in values.items() if text]
    parts = [TextTable((), facts[1:], text=(0, 1))]
    if options:
        cells = [[*map(_cell, option.values())] for option in options]
        headings = (f"options of {name}", *OPTION[1:])
        parts.append(TextTable(headings, cells, text=range(len(OPTION))))
    return Page(f"{title} {name}", parts=parts)


def _cell(value: Any) -> str:
    """Return a value of a record as text; of options their names and defaults."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(f"{option['option']} {_cell(option['default'])}" for option in value)
    if value is None or value == []:
        return NONE
    return "never" if value == math.inf else word(value)


def _chosen(kind: str, entries: Mapping[str, Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries of some names, or all; raises UsageError for a name without one."""
    for name in names:
        if name not in entries:
            lists = f"rlpost list {kind}"
            raise UsageError(no_such(f"no {kind[:-1]} {name!r}", name, entries, lists))
    return [entries[name] for name in names or entries]


def _estimators(names: Sequence[str]) -> list[Json]:
    from rlpost.estimators import ESTIMATORS, estimator_named  # noqa: PLC0415 - slow to import
    from rlpost.recipe.estimators import KNOWN  # noqa: PLC0415

    records = []
    for entry in map(estimator_named, names) if names else ESTIMATORS.values():
        by_columns = entry.level == "response" and entry.named_columns  # which may have tokens
        flags = [flag_of(name) for name in entry.keywords if name in Recipe.model_fields]
        options = [_option(option) for option in entry.options.values()]
        records.append({
            "estimator": entry.name, "level": "by columns" if by_columns else entry.level,
            "needs": ", ".join(entry.roles), "flags": ", ".join(flags), "options": options,
            "formula": entry.formula, "source": entry.source,
        })  # fmt: skip
    for name, point in {} if names else KNOWN.installed().items():
        about = {"formula": f"see rlpost list estimators {name}", "source": point.value}
        records.append({**dict.fromkeys(records[0], ""), "estimator": name, "options": [], **about})
    return records


def _losses(names: Sequence[str]) -> list[Json]:
    from rlpost.losses import LOSSES, loss_named  # noqa: PLC0415 - slow to import

    records = []
    for loss in map(loss_named, names) if names else LOSSES.values():
        texts = {name: LossOptions.model_fields[name].description or "" for name in loss.fields}
        options = [
            _option(option, texts.get(option.name, "")) for option in loss.parameters.values()
        ]
        flags = [flag_of(name) for name in loss.parameters if name in loss.fields]
        records.append({
            "loss": loss.name, "needs": ", ".join((*loss.needs, *["group"] * loss.grouped)),
            "formula": loss.formula, "aggregation": loss.aggregation,
            "flags": ", ".join(flags), "options": options, "source": loss.source,
        })  # fmt: skip
    return records


def _option(option: Option, otherwise: str = "") -> Json:
    """Return an option as a record; `otherwise` is what it means if its function does not say."""
    default = f"<{option.type_name}>" if option.required else option.default
    if option.kind and not option.required and is_plain(option.default):
        default = option.plain(option.default)
    kind = option.type_name.replace(" | ", "|").replace("'", "")
    meaning = " ".join((option.text or otherwise).split()).removesuffix(".")
    record = option.name, kind, "never" if default == math.inf else default, meaning
    return dict(zip(OPTION, record, strict=True))


def _presets(names: Sequence[str]) -> list[Json]:
    records = []
    for name in _chosen("presets", {name: name for name in presets.PRESETS}, names):
        source, losses = presets.source_of(name), ", ".join(presets.loss_variants(name))
        both = [", ".join(presets.variants(name)), f"losses {losses}" if losses else ""]
        records.append({
            "preset": name, "repository": source.repository, "release": source.release,
            "date": source.date, "commit": source.commit,
            "own_estimators_and_losses": "; ".join(filter(None, both)), "framework": str(source),
        })  # fmt: skip
    return records


def show_preset(name: str, how: str) -> None:
    """Print the recipe and the policy loss of a preset as a file that `--config` reads, or JSON."""
    recipe, loss = presets.preset(name), presets.loss_preset(name)
    values = presets.changed(recipe, loss, whole=name == presets.DEFAULT)
    if how == "json":
        show_json(values)
    else:
        lines = [*presets.toml_comment(presets.about(name)), *presets.toml_of(values)]
        sys.stdout.write("\n".join(lines) + "\n")


def _dumps(names: Sequence[str]) -> list[Json]:
    from rlpost.formats import FORMATS  # noqa: PLC0415 - slow to import
    from rlpost.formats.listing import GENERIC  # noqa: PLC0415

    records = []
    for dump in _chosen("dumps", FORMATS, names):
        roles = {
            "always": [role for role in dump.roles if role not in dump.missing_roles],
            "if_dumped": [role for role in dump.roles if role in dump.missing_roles],
            "never": [role for role in dump.missing_roles if role not in dump.roles],
        }
        if dump.name in GENERIC:
            roles = {"always": [], "if_dumped": ["every role"], "never": []}
        texts = {label: ", ".join(roles) for label, roles in roles.items()}
        missing = (f"{role}: {why}" for role, why in dump.missing_roles.items() if why)
        about = {"missing_roles": "; ".join(missing), "note": dump.note, "source": dump.source}
        records.append({"format": dump.name, "reads": dump.title, **texts, **about})
    return records


def _targets(names: Sequence[str]) -> list[Json]:
    from rlpost.formats.targets import TARGETS  # noqa: PLC0415 - slow to import

    records = []
    for target in _chosen("targets", TARGETS, names):
        package = [f"the package {target.library}"] if target.library else []
        optional = [item for item in target.fields if item not in target.needs]
        records.append({
            "target": target.name, "writes": target.title,
            "needs": ", ".join([*target.needs, *package]), "optional": ", ".join(optional),
            "other_columns": target.others or "lost", "note": target.note, "source": target.source,
        })  # fmt: skip
    return records


def _checks(names: Sequence[str]) -> list[Json]:
    from rlpost.analysis.inspect.about import checks  # noqa: PLC0415 - slow to import
    from rlpost.analysis.inspect.findings import FINDINGS  # noqa: PLC0415

    return [checks.check_json(check.name, None) for check in _chosen("checks", FINDINGS, names)]


KINDS = {
    "estimators": Kind("--estimator: formula, columns, options, source", _estimators, 7,
                       ["rlpost list estimators grpo  # its options: --option NAME=VALUE"]),
    "losses": Kind("--loss of rlpost loss: formula, columns, options, source", _losses, 7,
                   ["rlpost help your own loss  # your own: --loss my_losses.py:function"]),
    "presets": Kind("--preset: the code of a framework that each reproduces", _presets, 6,
                    ["rlpost list presets verl", "rlpost config diff verl trl"]),
    "dumps": Kind("dumps of frameworks that every command reads", _dumps, 2,
                  ["rlpost list dumps slime-train"]),
    "targets": Kind("--to of rlpost export: files that frameworks read", _targets, 2,
                    ["rlpost list targets slime"]),
    "checks": Kind("what rlpost inspect looks for", _checks, 4,
                   ["rlpost list checks unequal_lengths"]),
}  # fmt: skip
"""What `rlpost list` lists, by the name of the kind."""
