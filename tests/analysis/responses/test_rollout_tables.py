"""A row among the rows of its rollout: their order, its place, and the tokens that rows share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentic_run import agentic_run
from runs import loads

import rlpost
from rlpost.analysis.browse.levels import Listings, tokens
from rlpost.analysis.browse.navigation import Navigation
from rlpost.analysis.inspect.about import about
from rlpost.analysis.report import examples
from rlpost.analysis.responses import views
from rlpost.analysis.responses.index import build_index
from rlpost.analysis.responses.reader import ResponseReader


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


def test_rows_of_a_rollout_are_those_of_its_id_in_the_order_of_a_run(run, path):
    index, rows = build_index([path], {}), pq.read_table(path).to_pylist()
    reader = ResponseReader(index)
    shared = run.truth["shared"].to_pylist()
    for row, one in enumerate(rows):
        own = [n for n, other in enumerate(rows) if other["rollout_id"] == one["rollout_id"]]
        own = in_order(rows, own)
        assert index.rollout_rows(row).tolist() == own
        view = reader.read_whole(row).rollout
        if len(own) == 1:
            assert view is None
            continue
        assert view.place == own.index(row)
        assert view.following == (own[own.index(row) + 1] if row != own[-1] else None)
        assert int(view.shared[row].sum()) == shared[one["at"]]
        assert view.shared[row][: shared[one["at"]]].all()


def a_fork(run, path):
    """The row of a fork in the file."""
    at = pq.read_table(path)["at"].to_pylist()
    return at.index(next(n for n, count in enumerate(run.truth["shared"].to_pylist()) if count))


def test_inspect_row_has_the_rollout_and_the_next_row(run, path, capsys):
    row = a_fork(run, path)
    shared = sum(opened(path)[1].read_whole(row).shared)
    views.show([str(path)], columns_map={}, row=row, format="json")
    facts = loads(capsys.readouterr().out)["rollout"]
    assert facts["rows"][facts["place"]]["row"] == row
    assert facts["rows"][facts["place"]]["shared"] == shared > 0
    assert facts["rows"][facts["place"]]["turn"] == "1"
    views.show([str(path)], columns_map={}, row=row)
    text = capsys.readouterr().out
    following = facts["rows"][facts["place"] + 1]["row"]
    assert f"--row {following}" in text
    assert f"tokens 0 to {shared - 1} " in text
    assert max(map(len, text.splitlines())) <= 80 or "next:" in text
    views.show([str(path)], columns_map={}, row=row, format="markdown")
    assert "| › |" in capsys.readouterr().out


def opened(path):
    index = build_index([path], {})
    return index, ResponseReader(index)


def test_browse_lists_turns_together_and_marks_shared_tokens(run, path):
    index, reader = opened(path)
    listing = Listings(index, np.ones(len(index), np.bool_)).responses(0)
    rollouts = [index.label("rollout", row) for row in listing.ids]
    changes = 1 + sum(a != b for a, b in pairwise(rollouts))
    assert changes == len(set(rollouts))
    assert {"rollout", "turn", "branch"} <= {column.name for column in listing.columns}
    row = a_fork(run, path)
    navigation = Navigation(index, reader, None)
    navigation.flat()
    navigation.top.cursor = navigation.top.listing.place_of(row)
    assert navigation.open()
    listed = tokens(navigation.response, None)
    masks = [listed.cells(place)[2] for place in range(len(listed))]
    assert masks.count("shared") == sum(navigation.response.shared) > 0
    assert navigation.sibling(1)
    assert navigation.response.row == navigation.levels[-2].id


def test_the_report_has_the_rollout_and_its_shared_tokens(run, path):
    _, reader = opened(path)
    row = a_fork(run, path)
    response = reader.read_whole(row)
    data = examples.response_of(response, [], examples.LIMITS)
    assert sum(data["shared"]) == sum(response.shared)
    assert data["rollout"]["following"] == response.rollout.following
    marked = [cells for cells in data["rollout"]["table"]["rows"] if cells[0]]
    assert [cells[1] for cells in marked] == [str(row)]


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
