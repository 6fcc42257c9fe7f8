"""A row among the rows of its rollout: their order, and its place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentic_run import agentic_run
from runs import loads

import rlpost
from rlpost.analysis.browse.levels import Listings
from rlpost.analysis.browse.navigation import Navigation
from rlpost.analysis.inspect.about import about
from rlpost.analysis.report import examples
from rlpost.analysis.responses import views
from rlpost.analysis.responses.index import build_index
from rlpost.analysis.responses.reader import ResponseReader, RolloutView


@pytest.fixture(scope="module")
def run():
    return agentic_run(2, steps=1, prompts=5, restart=None, duplicates=0)


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    """The run with its rows in random order."""
    order = np.random.default_rng(1).permutation(run.table.num_rows)
    table = run.table.take(order).append_column("at", pa.array(order))
    path = tmp_path_factory.mktemp("rollouts") / "run.parquet"
    pq.write_table(table, path, row_group_size=40)
    return path


def in_order(rows, own):
    """The rows of a rollout by turn and branch; of a turn the main agent's row is the last."""

    def key(n):
        branch = rows[n]["branch"]
        number = int(branch) if branch.isdecimal() else 0
        return rows[n]["turn"], not branch.isdecimal(), number, branch

    main = rows[min(own, key=key)]["agent_role"]
    end = max(rows[n]["turn"] for n in own if rows[n]["agent_role"] == main)
    return sorted(own, key=lambda n: (min(rows[n]["turn"], end), rows[n]["agent_role"] == main,
                                      key(n)))  # fmt: skip


def test_rows_of_a_rollout_are_those_of_its_id_in_the_order_of_a_run(path):
    index, rows = build_index([path], {}), pq.read_table(path).to_pylist()
    for row, response in enumerate(rows):
        rollout = [n for n, x in enumerate(rows) if x["rollout_id"] == response["rollout_id"]]
        rollout = in_order(rows, rollout)
        assert index.rollout_rows(row).tolist() == rollout
        view = RolloutView.of(index, row)
        if len(rollout) == 1:
            assert view is None
            continue
        assert view.place == rollout.index(row)
        assert view.following == (rollout[rollout.index(row) + 1] if row != rollout[-1] else None)


def a_fork(run, path):
    """The row of a fork in the file."""
    at = pq.read_table(path)["at"].to_pylist()
    return at.index(next(n for n, count in enumerate(run.truth["shared"].to_pylist()) if count))


def test_screens_of_a_row_have_its_rollout_and_the_next_row(run, path, capsys):
    """`inspect --row` in each format, the page of a report, and the browser."""
    row = a_fork(run, path)
    shown = {}
    for how in ("json", "table", "markdown"):
        views.show([str(path)], columns_map={}, row=row, format=how)
        shown[how] = capsys.readouterr().out
    facts = loads(shown["json"])["rollout"]
    assert facts["rows"][facts["place"]]["row"] == row
    assert facts["rows"][facts["place"]]["turn"] == "1"
    following = facts["rows"][facts["place"] + 1]["row"]
    assert f"--row {following}" in shown["table"]
    assert "| › |" in shown["markdown"]
    index = build_index([path], {})
    reader = ResponseReader(index)
    data = examples.response_of(*reader.read([row]), [], examples.LIMITS)
    assert data["rollout"]["following"] == following
    marked = [cells for cells in data["rollout"]["table"]["rows"] if cells[0]]
    assert [cells[1] for cells in marked] == [str(row)]
    listing = Listings(index, np.ones(len(index), np.bool_)).responses(0)
    rollouts = [index.label("rollout", row) for row in listing.ids]
    changes = 1 + sum(a != b for a, b in pairwise(rollouts))
    assert changes == len(set(rollouts))
    assert {"rollout", "turn", "branch"} <= {column.name for column in listing.columns}
    navigation = Navigation(index, reader, None)
    navigation.flat()
    navigation.top.cursor = navigation.top.listing.place_of(row)
    assert navigation.open()
    assert navigation.sibling(1)
    assert navigation.response.row == navigation.levels[-2].id


def test_rows_of_an_older_attempt_are_marked_and_are_no_rows_of_the_rollout(tmp_path, capsys):
    rows = {
        "prompt_id": [*"qqqqqqqqpp"],
        "rollout_id": [0, 0, 1, 1, 0, 0, 1, 1, 2, 2],
        "turn": [0, 1] * 5,
        "step": [0] * 8 + [1] * 2,
        "run_attempt": [0] * 4 + [1] * 6,
        "reward": [None, 1.0, None, 0.0, None, 0.0, None, 0.5, None, 1.0],
        "response_mask": [[1] * (n + 1) for n in range(10)],
    }
    path = tmp_path / "run.parquet"
    pq.write_table(pa.table(rows), path)
    index = build_index([path], {}, attempts="newest")
    assert [index.rollout_rows(row).tolist() for row in (0, 4)] == [[0, 1], [4, 5]]
    assert build_index([path], {}).rollout_rows(5).tolist() == [4, 5]
    for count in (None, 3):
        views.show([str(path)], columns_map={}, prompt="q", count=count, attempts="newest")
        headings = [x for x in capsys.readouterr().out.splitlines() if x.startswith("row ")]
        assert len(headings) == (count or 8)
        marked = [int(x.split()[1]) for x in headings if " · superseded: left out · " in x]
        assert sorted(marked) == [n for n in range(4) if f"row {n} " in " ".join(headings)]
    # A listing has tokens of rollouts, a topic those of rows that count, and both say so.
    (listed,) = (x for x in Listings(index, index.counts).steps().columns if "tokens" in x.name)
    assert (listed.name, listed.values.tolist()) == ("tokens/rollout", [13.0, 19.0])
    table = about("steps", rlpost.inspect(path, attempts="newest")).parts[-1]
    cells = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert [(x["rows"], x["tokens"]) for x in cells] == [("4", "6.500"), ("2", "9.500")]
    assert table.title == "By step, tokens of a row"
