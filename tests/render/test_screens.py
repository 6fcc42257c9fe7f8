"""The screens of `advantages`: any recipe on any rollouts fits the terminal, and adds up."""

import io
import os
import re

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from strategies import recipes, rollouts, to_table

import rlpost
from rlpost.errors import RlpostError
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline.run import bind
from rlpost.recipe.recipe import Recipe
from rlpost.render.plan import plan_page
from rlpost.render.summary import summary_page

LAW = int(os.environ.get("LAW", "0"))  # examples, by hand
WIDTHS = (60, 80, 120)
ESTIMATORS = ("grpo", "gae", "rloo", "reinforce_pp", "raw", "gdpo", "opo", "remax", "max_rl")


def lines_of(page, width):
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    page.show(out)
    return out.file.getvalue().splitlines()


@st.composite
def cases(draw):
    rows = draw(rollouts(extreme=draw(st.booleans())))
    options = draw(recipes(ESTIMATORS, gammas=(0.9, 1.0)))
    switches = {
        "drop_equal_rewards": True, "drop_truncated": True, "drop_single": True,
        "reward_clip": 0.5, "advantage_clip": 0.75, "is_weight": "token",
        "is_filter": ("sequence:ratio:0.9:1.1",), "nonfinite": "mask",
    }  # fmt: skip
    options |= {name: x for name, x in switches.items() if draw(st.integers(0, 3)) == 0}
    return rows, options


def add_up(summary):
    """What is printed as parts of a whole is that."""
    signal, masked = summary["signal"], summary["masked"]
    tokens = signal["tokens"]
    signs = [tokens[name] for name in ("positive", "negative", "zero")]
    assert sum(one["tokens"] for one in signs) == tokens["count"]
    assert all(one["tokens"] >= 0 <= one["responses"] for one in signs)
    assert sum(signal["histogram"]["counts"]) == signs[0]["tokens"] + signs[1]["tokens"]
    assert sum(one["new"] for name, one in masked.items() if name != "all") == masked["all"]["new"]
    assert all(0 <= one["new"] <= one["responses"] for one in masked.values())
    for groups in (signal["groups"], *(row["signal"]["groups"] for row in summary["steps"])):
        if groups and groups["equal_rewards"] is not None:
            assert groups["all_pass"] + groups["none_pass"] == groups["equal_rewards"]
            assert max(groups["equal_rewards"], groups["with_signal"] or 0) <= groups["count"]
    for table in ("steps", "domains"):
        if summary[table]:
            own = [row["signal"]["tokens"]["count"] for row in summary[table]]
            assert sum(own) == tokens["count"]
            own = [row["signal"]["groups"]["count"] for row in summary[table]]
            assert sum(own) == signal["groups"]["count"]


def numbers_are_numbers(lines):
    text = "\n".join(lines)
    assert not re.search(r"\bnan\b|\binf\b|(?<![\w.])-0(\.0*)?(?![\d.e])", text), text


@settings(max_examples=LAW or 15, deadline=None, phases=[Phase.generate] if LAW else [*Phase])
@given(cases())
def test_any_run_fits_the_terminal_and_adds_up(case):
    rows, options = case
    table = to_table(rows)
    try:
        recipe = Recipe(**options)
        summary = rlpost.enrich(table, recipe)[1]
    except RlpostError:
        return
    if LAW:
        print("ran", summary["responses"])  # noqa: T201
    add_up(summary)
    pages = [summary_page(summary, verbose=verbose) for verbose in (False, True)]
    pages.append(plan_page(bind(TableSource(table), recipe), None, summary["device"], verbose=True))
    for page in pages:
        for width in WIDTHS:
            lines = lines_of(page, width)
            assert max(map(len, lines)) <= width, lines
            numbers_are_numbers(lines)
        assert page.verdict is not None
        assert page.markdown().startswith("# rlpost advantages")
