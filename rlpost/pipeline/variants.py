"""Several recipes in one plan: the stages of each have columns of their own, under a prefix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.stages import Stage
    from rlpost.recipe.recipe import Recipe

_MARK = "variant:"


@dataclass(frozen=True)
class Variant:
    """A recipe of a sweep, and the settings that it computes the advantages of."""

    recipe: Recipe | None
    """None for that of the run."""
    indices: tuple[int, ...]
    """Of the settings."""
    prefix: str = ""
    """Of the columns that its stages compute; empty if it is the only one."""

    def stage(self, stage: Stage) -> Stage:
        """Return a stage that reads and adds the columns of this variant."""
        if not self.prefix:
            return stage
        parts = stage.parts(lambda name, part: partial(getattr(self, f"_{name}"), part))
        uses, makes = (frozenset(map(self._name, x)) for x in (stage.uses, stage.makes))
        return replace(stage, **parts, uses=uses, makes=makes, observed=False)

    def responses(self, responses: Responses) -> Responses:
        """Return the table as the stages of this variant see it."""
        columns, shared = map(self._seen, (responses.columns, responses.shared))
        return replace(responses, columns=columns, shared=shared)

    def batch(self, batch: Batch) -> Batch:
        """Return a batch as the stages of this variant see it."""
        names = ("tokens", "responses", "table", "shared")
        seen: dict[str, Any] = {name: self._seen(getattr(batch, name)) for name in names}
        return replace(batch, **seen)

    def _name(self, name: str) -> str:
        return self.prefix + name

    def _seen(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that no variant computed, and those of this one by their names."""
        common = {name: x for name, x in columns.items() if not name.startswith(_MARK)}
        begin = self.prefix or _MARK
        added = {name: x for name, x in columns.items() if name.startswith(begin)}
        return common | {name.removeprefix(begin): x for name, x in added.items()}

    def _added(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that are new or other ones, by their names with the prefix."""
        return {self._name(name): x for name, x in after.items() if before.get(name) is not x}

    def _map(self, stage: Callable[[Batch], dict[str, Array]], batch: Batch) -> dict[str, Array]:
        return {self._name(name): x for name, x in stage(self.batch(batch)).items()}

    def _gather(
        self, stage: Callable[..., Responses], responses: Responses, parts: Iterable[dict[str, Any]]
    ) -> Responses:
        named = ({name.removeprefix(self.prefix): x for name, x in part.items()} for part in parts)
        return self._reduce(lambda table: stage(table, named), responses)

    def _reduce(self, stage: Callable[[Responses], Responses], responses: Responses) -> Responses:
        before = self.responses(responses)
        after = stage(before)
        return replace(
            responses,
            columns={**responses.columns, **self._added(before.columns, after.columns)},
            shared={**responses.shared, **self._added(before.shared, after.shared)},
            notes=after.notes,
        )

    def _apply(self, stage: Callable[[Batch], Batch], batch: Batch) -> Batch:
        before = self.batch(batch)
        return batch.with_(**self._added(before.tokens, stage(before).tokens))


def variants_of(configs: Sequence[LossConfig]) -> list[Variant]:
    """Return the recipes of the settings of a sweep, in the order of the settings."""
    recipes: list[Recipe | None] = []
    for config in configs:
        if config.recipe not in recipes:
            recipes.append(config.recipe)
    places = [recipes.index(config.recipe) for config in configs]
    return [
        Variant(
            recipe,
            tuple(index for index, place in enumerate(places) if place == number),
            f"{_MARK}{number}:" if len(recipes) > 1 else "",
        )
        for number, recipe in enumerate(recipes)
    ]
