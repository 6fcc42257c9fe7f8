"""Columns of an input by the roles of a recipe, and errors that name what is missing."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stage_runs import ROWS
from strategies import to_table
from summaries import warnings_of

import rlpost
from rlpost.errors import DataError


def test_a_recipe_needs_its_columns():
    table = to_table(ROWS)
    for options, role in (
        ({"kl_coef": 0.1}, "old_log_probs"),
        ({"estimator": "gae"}, "values"),
    ):
        with pytest.raises(DataError, match=f"no column for {role}"):
            rlpost.enrich(table, rlpost.Recipe(**options))
    with pytest.raises(DataError, match="no column for group"):
        rlpost.enrich(table.drop_columns(["prompt_id"]))
    with pytest.raises(DataError, match="no column for difficulty"):
        rlpost.enrich(table.drop_columns(["difficulty"]), rlpost.Recipe(difficulty_weight=True))


NO_LISTS = {
    "struct": pa.array([{"data": [1, 0], "shape": [2]}, {"data": [1], "shape": [1]}] * 2),
    "nested lists": pa.array([[[1], [0]], [[1]]] * 2),
    "text": pa.array(["[1, 0]", "[1]"] * 2),
    "a number": pa.array([1, 1, 0, 1]),
    "null": pa.nulls(4),
}


@pytest.mark.parametrize("role", ["response_mask", "old_log_probs"])
@pytest.mark.parametrize("kind", NO_LISTS)
def test_a_mask_that_is_no_list_of_numbers_is_an_error(kind, role):
    """Other columns of tokens may be a number, a text or null in a dump without tokens."""
    table = pa.table({"prompt_id": ["a", "a", "b", "b"], "reward": [1.0, 0.0, 0.0, 1.0]})
    data = table.append_column(role, NO_LISTS[kind])
    if role != "response_mask" and kind not in ("struct", "nested lists"):
        assert "response_advantage" in rlpost.enrich(data)[0].column_names
        return
    with pytest.raises(DataError, match=f"`{role}` is .*a list of numbers per row is needed"):
        rlpost.enrich(data)
    recipe = rlpost.Recipe(columns={"mask" if role == "response_mask" else role: "none"})
    assert "response_advantage" in rlpost.enrich(data, recipe)[0].column_names
    recipe = rlpost.Recipe(emit=("response_advantage",))
    assert "response_advantage" in rlpost.enrich(data, recipe)[0].column_names


@pytest.mark.parametrize("name", ["response_token_ids", "ref_log_probs", "entropy"])
@pytest.mark.parametrize("of", ["files", "tables"])
def test_lists_that_stand_beside_the_written_ones_have_their_length(name, of, tmp_path):
    """They are not read: their number of values is."""
    mask = [[1, 1], [0, 0, 1], [1], [1]]
    other = [[3, 4], [1, 2, 3, 4, 5], [], [1]]
    rows = {"prompt_id": ["a", "a", "b", "b"], "reward": [1.0, 0.0, 0.0, 1.0]}
    rows["response_mask"] = mask

    def texts(values):
        kind = pa.int32() if "ids" in name else pa.float32()
        data = pa.table(rows | {name: pa.array(values, pa.list_(kind))})
        if of == "tables":
            return warnings_of(rlpost.enrich(data)[1])
        pq.write_table(data, tmp_path / "in.parquet")
        paths = tmp_path / "in.parquet", tmp_path / f"{len(values[1])}.parquet"
        return warnings_of(rlpost.advantages(*paths))

    assert texts(mask) == []
    [text] = texts(other)
    assert text.startswith(f"`{name}` has ")
    assert "`response_mask`" in text
