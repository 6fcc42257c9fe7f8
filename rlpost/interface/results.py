"""Results of the Python functions: mappings with attributes and a view for notebooks."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.model import Facts

if TYPE_CHECKING:
    from rich.console import Console

Json = dict[str, Any]


class Inspection(Facts):
    """The statistics and findings of rollouts, as a tree of dataclasses."""

    def to_dict(self) -> Json:
        """Return what `rlpost inspect --format json` prints."""
        return self.as_json()

    def _repr_html_(self) -> str:
        """Return the output of `rlpost inspect` for a notebook."""
        from rlpost.analysis.inspect.render import show  # noqa: PLC0415 - rich, for notebooks alone
        from rlpost.display.console import as_html  # noqa: PLC0415

        return as_html(partial(show, self, "table"))


class Result(Json):
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

    def show(self, out: Console) -> None:
        """Print the result as the command does."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the command's output for a notebook."""
        from rlpost.display.console import as_html  # noqa: PLC0415 - rich is for notebooks alone

        return as_html(self.show)


class Summary(Result):
    """The summary of a run: counts, statistics, clip fractions, masks, warnings."""

    responses: int
    tokens: dict[str, int] | None
    """`all` and `policy`; None if the input has no tokens, and no lengths of responses."""
    masked: dict[str, Json]
    """By mask: `responses` and `rate`."""
    reward: Json
    response_level_reward: Json
    advantage: Json
    """`mean`, `std`, `min`, `max` over the policy tokens of kept responses; over kept responses if
    `tokens` is None."""
    groups: Json
    steps: list[Json]
    domains: list[Json]
    warnings: list[str]
    recipe: Json

    def show(self, out: Console) -> None:
        """Print the summary as `rlpost advantages` does."""
        from rlpost.render.summary import show_summary  # noqa: PLC0415

        show_summary(self, out)


class LossSummary(Result):
    """What policy losses clip, and where they leave no gradient, for each setting."""

    settings: list[Json]
    warnings: list[str]

    def show(self, out: Console) -> None:
        """Print the summary as `rlpost loss` does."""
        from rlpost.analysis.loss.render import show  # noqa: PLC0415

        show(self, "table", out)


class Comparison(Result):
    """The agreement of advantages of several files or recipes."""

    sides: list[Json]
    pairs: list[Json]
    warnings: list[str]

    def show(self, out: Console) -> None:
        """Print the comparison as `rlpost compare` does."""
        from rlpost.analysis.compare.render import show  # noqa: PLC0415

        show(self, "table", out)


class Verification(Result):
    """The verdict on each column of enriched files."""

    ok: bool
    files: list[Json]

    def show(self, out: Console) -> None:
        """Print the verdicts as `rlpost verify` does."""
        from rlpost.render.verify import show  # noqa: PLC0415

        show(self, "table", out)


class Conversion(Result):
    """What a conversion read and wrote."""

    inputs: list[str]
    outputs: list[str]

    def show(self, out: Console) -> None:
        """Print the conversion as `rlpost convert` does."""
        from rlpost.render.convert import show_converted  # noqa: PLC0415

        show_converted(self, out)
