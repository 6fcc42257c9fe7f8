"""Results of Python functions: mappings with attributes and a view for notebooks."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from rlpost.display.page import Page

Json = dict[str, Any]


class View:
    """Shows a result as its command prints it: at the prompt, and in notebooks."""

    rendered_by = ""
    """The module whose `page` returns the page of a result."""

    def to_dict(self) -> Json:
        """Return the result as plain dicts and lists."""
        raise NotImplementedError

    def page(self, **options: Any) -> Page:
        """Return what the command prints, with options such as `verbose`."""
        page: Page = import_module(self.rendered_by).page(self, **options)
        return page

    def show(self, out: Console) -> None:
        """Print the result as the command does."""
        self.page().show(out)

    def __repr__(self) -> str:
        from rlpost.display.console import as_text  # noqa: PLC0415 - rich takes a while to import

        return as_text(self.show)

    def _repr_html_(self) -> str:
        """Return the command's page for a notebook."""
        from rlpost.display.page import stylesheet  # noqa: PLC0415

        return f"<style>{stylesheet()}</style>{self.page().html()}"


class Result(View, Json):
    """A result of a command: the mapping that its `--format json` prints, with attributes."""

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key."""
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}")

    def __dir__(self) -> list[str]:
        """The keys, which are attributes, and the methods."""
        return [*super().__dir__(), *self]

    def to_dict(self) -> Json:
        """Return a copy as plain dicts and lists."""
        return copy.deepcopy(dict(self))


class Summary(Result):
    """The summary of a run: measures, each with its population, a verdict and findings."""

    rendered_by = "rlpost.render.summary"
    responses: int
    rollouts: int | None
    """None if each row counts as a response."""
    groups: int | None
    groups_with_signal: int | None
    """Groups in which an advantage is not 0; None if advantages differ within responses."""
    tokens: dict[str, int] | None
    """`all` and `policy`; None if the input has no tokens, and no lengths of responses."""
    verdict: Json
    """`level` and `text`: whether anything is learnt."""
    findings: list[Json]
    """`check`, `level` (error or warning), `text`, `columns`, `rows`, `option`; errors first."""
    facts: dict[str, Json]
    """By measure: `of`, its population; and its numbers under `all`, `step` and `domain`: `count`
    and `mean`; `std`, `min`, `max` of several numbers, `total` of a share. Those by step and domain
    are lists beside `label`."""
    recipe: Json

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key; None for what an update with nothing to write has not."""
        if name in Summary.__annotations__ and name not in self:
            return None
        return super().__getattr__(name)


class LossSummary(Result):
    """What a policy loss clips, and where it leaves no gradient; of a sweep with `settings`."""

    rendered_by = "rlpost.analysis.loss.render"
    facts: Json
    findings: list[Json]


class Comparison(Result):
    """The agreement of advantages of several files or recipes."""

    rendered_by = "rlpost.analysis.compare.render"
    facts: Json
    """Statistics of measures: `advantage:SIDE`, `difference:LEFT:RIGHT` and others."""
    sides: list[str]
    pairs: list[Json]
    findings: list[Json]


class Replay(Result):
    """What a trainer recorded against what a recipe computes, stage by stage."""

    rendered_by = "rlpost.analysis.replay.render"
    reproduced: bool
    """Whether every recorded stage that was compared is equal."""
    first: str | None
    """The first stage that differs, by its column of `emit`; None if none does."""
    stages: list[Json]
    """In order: recorded column, counts, differences, and the verdict, equal or differs."""
    findings: list[Json]
    """What the difference is: `check`, `text`, `advice`, `option`, `explains`."""
    examples: list[Json]
    recipe: Json
    """`named` and `toml`, which `--config` reads."""
    recorded: dict[str, str]
    """Stage -> recorded column."""
    warnings: list[str]


class Verification(Result):
    """The verdict on each column of enriched files."""

    rendered_by = "rlpost.render.verify"
    ok: bool
    files: list[Json]


class Conversion(Result):
    """What a conversion read and wrote."""

    rendered_by = "rlpost.render.convert"
    inputs: list[str]
    outputs: list[str]


class Export(Result):
    """What an export wrote, and what it lost."""

    rendered_by = "rlpost.render.export"
    inputs: list[str]
    outputs: list[str]
    responses: int
    fields: dict[str, str]
    """Column -> field of the target."""
    others: list[str]
    """Other columns that were written."""
    lost: dict[str, str]
    """Column -> why the target does not hold it."""
    warnings: list[str]
