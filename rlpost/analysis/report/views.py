"""Views of results in notebooks: the charts of the report within the command's page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.charts import Chart

_HEIGHT = "48rem"
_TRENDS = (
    ("Mean raw reward", False, "reward", "mean"),
    ("Groups with signal", True, "with_signal", "mean"),
    ("Advantages of exactly 0", True, "advantage_zero", "mean"),
    ("KL per token", False, "kl", "mean"),
    ("Std of advantages", False, "advantage", "std"),
)
"""Of the steps of a summary: title, whether it is a share, measure and number."""


def charts_of_facts(facts: Facts) -> str:
    """Return the report's distributions and its charts of groups as HTML."""

    def charts() -> Iterator[Chart]:
        from rlpost.analysis.report.topics import CHARTS  # noqa: PLC0415

        for name in ("rewards", "lengths", "advantages", "groups"):
            yield from CHARTS[name](facts)

    return _html(charts)


def charts_of_steps(summary: dict[str, Any]) -> str:
    """Return trends over the steps of a run as HTML; empty if there are fewer than two."""
    steps = {name: entry.get("step", {}) for name, entry in summary["facts"].items()}

    def charts() -> Iterator[Chart]:
        from rlpost.analysis.report.charts import line  # noqa: PLC0415

        for title, share, name, number in _TRENDS:
            values = steps.get(name, {}).get(number, [])
            if any(value is not None for value in values):
                yield line(title, steps[name]["label"], values, "step", share=share)

    return _html(charts) if len(steps["kept"].get("label", ())) > 1 else ""


def _html(charts: Callable[[], Iterable[Chart]]) -> str:
    """Return charts side by side, in the colours of the notebook."""
    from rlpost.analysis.report.charts import figures  # noqa: PLC0415

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
