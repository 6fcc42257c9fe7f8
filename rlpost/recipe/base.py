"""What models of options have in common: they say what is wrong in one line a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from rlpost.errors import UsageError
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Mapping


class OptionModel(BaseModel):
    """A model whose constructor raises UsageError: what came, what is allowed, field by field."""

    if not TYPE_CHECKING:  # so that type checkers know the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                text = "\n".join(type(self).problems(error, type(self).__name__))
                raise UsageError(text) from None

        # Pydantic's own word for it: model_validate, which names other places, goes past it.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def problems(
        cls, error: ValidationError, where: str, origins: Mapping[str, str] | None = None
    ) -> list[str]:
        """One line per problem: where, what came, what is needed.

        Args:
            error: of this model.
            where: what to call the place that values come from.
            origins: the places of single fields, where they differ.
        """
        lines = []
        for item in error.errors():
            loc = item["loc"]
            place = (origins or {}).get(str(loc[0]), where) if loc else where
            name = cls.called(loc)
            if item["type"] == "extra_forbidden":
                lines.append(f"{place}: no option {name!r}{cls._owner(*loc[:-1]).hint(loc[-1])}")
            elif item["type"] == "value_error":
                lines.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
            else:
                lines.append(f"{place}: {name} is {item['input']!r}: {item['msg'].lower()}")
        return list(dict.fromkeys(lines))

    @classmethod
    def called(cls, loc: tuple[int | str, ...]) -> str:
        """What errors call the place in the model that pydantic says."""
        return ".".join(str(part) for part in loc)

    @classmethod
    def hint(cls, name: Any) -> str:
        """What an unknown name may have meant."""
        return closest(str(name), cls.model_fields)

    @classmethod
    def _owner(cls, *path: Any) -> type[OptionModel]:
        """The model that an unknown name was given to: this one, or one of its fields."""
        kind = cls.model_fields[path[0]].annotation if path else cls
        return kind if isinstance(kind, type) and issubclass(kind, OptionModel) else cls
