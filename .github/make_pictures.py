"""Make README's picture from a real run: `python .github/make_pictures.py`, in the repository."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console

import rlpost
from rlpost import render

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run README's main job and draw its summary."""
    recipe = rlpost.Recipe(estimator="grpo", difficulty_mask=True, advantage_clip=2, kl_coef=0.01)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.parquet"
        summary = rlpost.advantages(ROOT / "sample_data" / "arithmetic.parquet", out, recipe)
    summary["inputs"], summary["outputs"] = ["sample_data/arithmetic.parquet"], ["out.parquet"]
    picture = Console(width=82, record=True, file=sys.stderr, force_terminal=True, highlight=False)
    render.show_summary(summary, picture)
    title = "rlpost advantages … --difficulty-mask --advantage-clip 2 --kl-coef 0.01"
    picture.save_svg(str(ROOT / ".github" / "summary.svg"), title=title)


if __name__ == "__main__":
    main()
