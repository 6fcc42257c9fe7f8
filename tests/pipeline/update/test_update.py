"""`--update`: what is written again and what is not, and that the numbers are those of one run."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from strategies import ESTIMATORS, fitting, recipes, rollouts, to_table
from test_invariance import same_bits
from updates import PLAIN, UPDATE, save

import rlpost
from rlpost.errors import DataError, UsageError

NEW = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight")

# The law: an update equals a run over all files, or it is an error


def law_recipes():
    """Recipes of all estimators, with parts that couple responses in ways of their own."""
    more = st.fixed_dictionaries(
        {},
        optional={
            "is_weight": st.just("token"),
            "is_normalise": st.sampled_from([True]),
            "unit": st.just("rollout"),
            "rollout_reward": st.just("mean"),
            "emit": st.just((*NEW[:3], "group_mean", "group_pass_rate")),
        },
    )
    details = st.fixed_dictionaries(
        {},
        optional={
            "single": st.sampled_from(["raw", "zero_always", "normalise"]),
            "states": st.just("batch"),
            "correction": st.just("first"),
            "gdpo_batch": st.just("tokens"),
        },
    )
    names = (*ESTIMATORS, "rae", "optimal_token_baseline", "opd")
    return st.tuples(recipes(names), more, details).map(_joined)


def _joined(parts):
    options, more, details = parts
    if "is_weight" not in more:
        more.pop("is_normalise", None)
    return fitting({**options, **more, "numerics": {**options.get("numerics", {}), **details}})


@st.composite
def histories(draw):
    """Rows, and for two moments the file of each row (-1: none yet)."""
    rows = draw(rollouts(max_groups=3, max_group_size=3, max_tokens=5))
    by = draw(st.sampled_from(["batch", "batch", "group", "row"]))
    keys = {"batch": lambda r: r.batch, "group": lambda r: (r.batch, r.group), "row": id}[by]
    units = list(dict.fromkeys(map(keys, rows)))
    files = dict(zip(units, draw(st.lists(st.integers(0, 3), min_size=len(units))), strict=False))
    if by == "batch":
        files = {unit: unit for unit in units}
    after = [files.get(keys(row), 0) for row in rows]
    names = sorted({*after})
    late = {*names[len(names) // 2 :]} if draw(st.booleans()) else {draw(st.sampled_from(names))}
    cut = draw(st.booleans())  # a file that is there already, and grows
    before = [
        -1 if one in late or (cut and index == len(rows) - 1) else one
        for index, one in enumerate(after)
    ]
    return rows, before, after


def law(case, options, *, steps=True):
    """Run both updates, and compare with one run over all files; count what happened."""
    rows, before, after = case
    table = to_table(rows, without=() if steps else ("step",))
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        inputs, out, whole = top / "in", top / "out", top / "whole"
        recipe = rlpost.Recipe(**options)
        own = replace(UPDATE, state=top / "state.json")
        save(table, after, top / "all")
        try:
            wanted = replace(PLAIN, state=top / "other.json")
            rlpost.advantages(top / "all", whole, recipe, wanted)
            save(table, before, inputs)
            rlpost.advantages(inputs, out, recipe, own)
        except (DataError, UsageError):  # options that do not go together, or nothing is left
            assume(False)  # noqa: FBT003
        save(table, after, inputs)
        what = "equal"
        try:
            rlpost.advantages(inputs, out, recipe, own)
        except DataError:
            assume(False)  # noqa: FBT003
        except UsageError:
            what = "refused"
            try:
                rlpost.advantages(inputs, out, recipe, replace(own, overwrite=True))
            except UsageError as error:
                if "start over" in str(error):
                    return "start over"
                raise
        for path in sorted(whole.glob("*.parquet")):
            got, want = pq.read_table(out / path.name), pq.read_table(path)
            assert got.schema.names == want.schema.names
            new = [one for one in want.schema.names if one not in table.schema.names]
            same_bits(got.select(new), want.select(new))
        nothing = rlpost.advantages(inputs, out, recipe, own)
        assert nothing["update"]["chosen"] == 0
        assert rlpost.verify(out)["ok"]
        states = [json.loads((top / one).read_text()) for one in ("state.json", "other.json")]
        states[0].pop("step", None)
        assert states[0] == states[1]
        return what


LAW = int(os.environ.get("LAW", "0"))  # examples, by hand


@settings(max_examples=LAW or 8, deadline=None, phases=[Phase.generate] if LAW else [*Phase])
@given(histories(), law_recipes(), st.sampled_from([True, True, False]))
def test_an_update_equals_one_run_over_all_files_or_is_an_error(case, options, steps):
    what = law(case, options, steps=steps)
    if LAW:
        print(what, options)  # noqa: T201
