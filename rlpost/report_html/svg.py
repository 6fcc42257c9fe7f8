"""Charts as SVG, drawn without a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlpost.report_html.model import Json


def drawn(spec: Json) -> str:
    """The SVG of a Vega-Lite specification; marks have their text as `aria-label`."""
    import vl_convert  # noqa: PLC0415 - its engine takes a second to start

    svg: Any = vl_convert.vegalite_to_svg(spec)
    return str(svg)
