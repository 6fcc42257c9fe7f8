"""The screens of `advantages`: any recipe on any rollouts fits the terminal, and adds up."""

import io
import os
import re

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from strategies import recipes, rollouts, to_table
from summaries import numbers, parts, whole

import rlpost
from rlpost.errors import RlpostError
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline.run import bind
from rlpost.recipe.recipe import Recipe
from rlpost.render.plan import plan_page
from rlpost.render.summary import page as summary_page

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


SIGNS = ("positive", "negative", "zero")
SPREADS = {"count", "mean", "std", "min", "max"}


def add_up(summary):
    """What is printed as parts of a whole is that."""
    slices = {by: parts(summary, by) for by in ("step", "domain")}
    for numbers_of in ({"label": None, **numbers(summary)}, *slices["step"], *slices["domain"]):
        measures = {name: entry for name, entry in numbers_of.items() if name != "label"}
        tokens, lengths = ([measures[f"{of}_{x}"] for x in SIGNS] for of in ("advantage", "length"))
        assert sum(entry["total"] for entry in tokens) == measures["advantage"]["count"]
        assert sum(entry["count"] for entry in lengths) <= measures["kept"]["total"]
        trained = sum((entry["mean"] or 0) * entry["count"] for entry in lengths)
        assert trained == pytest.approx(measures["advantage"]["count"])
        of_masks(measures)
        of_groups(measures)
        for entry in measures.values():
            assert {*entry} in (SPREADS, {"count", "total", "mean"}, {"count", "mean"},
                                {"count", "value"})  # fmt: skip
            assert 0 <= entry.get("total", 0) <= entry["count"]
    totals = [whole(summary, f"advantage_{sign}")["total"] for sign in SIGNS[:2]]
    assert sum(summary["profiles"]["advantage"]["counts"]) == sum(totals)
    for rows in slices.values():
        for name in ("advantage", "kept", "reward", "group_size", "equal_rewards") if rows else ():
            for part in {"count", "total"} & whole(summary, name).keys():
                present = [row[name][part] for row in rows if name in row]
                assert sum(present) == whole(summary, name)[part], name


def of_masks(measures):
    """What masks newly drop, and what is left out, is what does not train."""
    lost = 0
    for name, entry in measures.items():
        if name.startswith("newly_dropped:"):
            assert entry["total"] <= measures[name.removeprefix("newly_")]["total"]
        if name.startswith(("newly_dropped:", "left_out:")):
            lost += entry["total"]
    assert lost == measures["kept"]["count"] - measures["kept"]["total"]


def of_groups(measures):
    """Groups of equal rewards are of several responses, and those that pass are of them."""
    if "equal_rewards" in measures:
        equal, single = measures["equal_rewards"], measures["single"]
        assert measures["all_pass"]["total"] <= equal["total"]
        assert (
            equal["count"] + single["total"] == single["count"] == measures["group_size"]["count"]
        )


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
        assert page.markdown().startswith("# ")
