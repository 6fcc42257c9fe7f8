"""Results of `inspect` and `report`: a tree of dataclasses, and a page about it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.model import Facts
from rlpost.interface.results import Json, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.paths import AnyPath

_HEIGHT = "48rem"  # of the page in a notebook


class Inspection(View, Facts):
    """The statistics and findings of rollouts, as a tree of dataclasses."""

    rendered_by = "rlpost.analysis.inspect.render"

    def to_dict(self) -> Json:
        """Return what `rlpost inspect --format json` prints."""
        return self.as_json()


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Inspection):
    """A page about rollouts, and the statistics that it shows. A notebook shows the page."""

    html: str
    """The page; it needs no network."""
    files: Sequence[AnyPath]
    """Of the input, which `save` does not overwrite."""

    def save(self, output: str | Path, *, overwrite: bool = False) -> None:
        """Write the page.

        Args:
            output: its path, such as `report.html`.
            overwrite: replace an existing page.

        Raises:
            UsageError: the output exists, or is an input.
            ReadWriteError: writing failed. No output is left behind.
        """
        from rlpost.analysis.report import run  # noqa: PLC0415 - polars is slow to import
        from rlpost.io.outputs import write_file  # noqa: PLC0415

        run.check_output(Path(output), self.files, overwrite=overwrite)
        write_file(Path(output), self.html.encode())

    def _repr_html_(self) -> str:
        """Return the page in a frame for a notebook, to which its scripts have no access."""
        # Links to sections stay in the frame; before the page's policy, which allows no other base.
        page = self.html.replace("<head>", '<head><base href="about:srcdoc">', 1)
        return (
            f'<iframe title="rlpost report" sandbox="allow-scripts" srcdoc="{escape(page)}" '
            f'style="width: 100%; height: {_HEIGHT}; border: 0"></iframe>'
        )
