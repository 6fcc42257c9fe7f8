"""Views of results in notebooks: the charts of the report within the command's page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from rlpost.errors import UnavailableError
from rlpost.optional import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.charts import Chart

_HEIGHT = "48rem"
_TRENDS: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
    ("Mean raw reward", False, ("reward", "mean")),
    ("Groups with signal", True, ("signal", "groups", "with_signal")),
    ("Advantages of exactly 0", True, ("signal", "tokens", "zero", "share")),
    ("KL per token", False, ("kl", "mean")),
    ("Std of advantages", False, ("advantage", "std")),
)
"""Of a step of a summary: title, whether it is a share, and the keys of the number."""


def charts_of_facts(facts: Facts) -> str:
    """Return the report's distributions and its charts of groups as HTML."""

    def charts() -> Iterator[Chart]:
        from rlpost.analysis.report.topics import CHARTS  # noqa: PLC0415 - altair is an extra

        for name in ("rewards", "lengths", "advantages", "groups"):
            yield from CHARTS[name](facts)

    return _html(charts)


def charts_of_steps(summary: dict[str, Any]) -> str:
    """Return trends over the steps of a run as HTML; empty if there are fewer than two."""
    steps = summary["steps"]
    labels = [one["step"] for one in steps]

    def charts() -> Iterator[Chart]:
        from rlpost.analysis.report.charts import line  # noqa: PLC0415 - altair is an extra

        for title, share, keys in _TRENDS:
            values = [_number_at(one, keys) for one in steps]
            if any(value is not None for value in values):
                yield line(title, labels, values, "step", share=share)

    return _html(charts) if len(steps) > 1 else ""


def _number_at(step: Any, keys: Sequence[str]) -> float | None:
    """Return a number of a step; a count of groups as their share. None if there is none."""
    parent: Any = {}
    for key in keys:
        parent, step = step, step.get(key) if step else None
    whole = parent["count"] if step is not None and keys[-1] == "with_signal" else 1
    return None if step is None or not whole else float(step / whole)


def _html(charts: Callable[[], Iterable[Chart]]) -> str:
    """Return charts side by side, in the colours of the notebook; without the extra, a hint."""
    try:
        need("a view with charts", "report", "altair", "vl_convert")
    except UnavailableError as error:
        return f"<p>{escape(str(error))}</p>"
    from rlpost.analysis.report.charts import figures  # noqa: PLC0415 - altair is an extra

    return figures(charts())


def frame(page: str) -> str:
    """Return a page as a frame in a notebook; its scripts have no access to the notebook."""
    # Links to sections stay in the frame; before the page's policy, which allows no other base.
    page = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
    style = f"width: 100%; height: {_HEIGHT}; border: 0"
    return (
        f'<iframe title="rlpost report" sandbox="allow-scripts" srcdoc="{escape(page)}" '
        f'style="{style}"></iframe>'
    )
