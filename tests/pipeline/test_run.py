"""A run: of a table or a file, of an output, again, and with the state of the last one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processed_files import USUAL
from runs import rollout, run, save, strict_json


def test_columns_of_the_same_name_are_replaced_where_asked(process):
    table = rollout().add_column(0, "returns", [["old"] * 12])
    out = process(table, "--replace")
    assert out.column_names == [*rollout().column_names, *USUAL]
    assert out.select(USUAL).equals(process(rollout()).select(USUAL))


STATEFUL = {
    "running": "--norm-mean running --norm-std running --estimator raw",
    "kl": "--kl-coef 0.3 --kl-target 0.01:5",
    "early kl": "--kl-coef 0.3 --kl-target 0.01:5 --numerics kl_credit=response",
    "both": "--norm-mean running --estimator raw --kl-coef 0.3 --kl-target 0.01:5",
}


@pytest.mark.parametrize("words", STATEFUL.values(), ids=STATEFUL)
def test_statistics_and_coefficients_go_on_where_the_last_call_ended(tmp_path, words):
    table = rollout().append_column("step", [[1] * 5 + [2] * 7])
    table = table.append_column("domain", [["math", "code", "math"] * 4])
    state = tmp_path / "state.json"
    parts = []
    for first, rows in ((0, 5), (5, 7)):
        source = save(table.slice(first, rows), tmp_path / f"{first}.parquet")
        target = tmp_path / f"out{first}.parquet"
        assert run("advantages", source, target, "--state", state, "-q", *words.split()).code == 0
        assert run("verify", target).code == 0
        parts.append(pq.read_table(target))
    once = tmp_path / "once.parquet"
    other = tmp_path / "other.json"
    source = save(table, tmp_path / "in.parquet")
    assert run("advantages", source, once, "--state", other, "-q", *words.split()).code == 0
    assert pa.concat_tables(parts).equals(pq.read_table(once))
    assert state.read_text() == other.read_text()
    found = strict_json(state.read_text())
    assert set(found["running"]) == ({"math", "code"} if "running" in words else set())
    assert ("kl_coef" in found) == ("--kl-target" in words)
