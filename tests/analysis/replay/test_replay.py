"""Recorded stages against a recipe: each from what was recorded before it, and everywhere."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replay_runs import rollouts_of

import rlpost
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.run import ReplayRequest, replay
from rlpost.errors import DataError
from rlpost.recipe.presets import PRESETS

STAGES = (
    "sample_mask",
    "response_level_rewards",
    "kl",
    "token_level_rewards",
    "raw_advantages",
    "returns",
    "advantages",
)
MASKS = {"drop_difficulty": (0.1, 0.95), "drop_single": True}
RECIPES = {
    "roll": ("roll", {"estimator": "reinforce", "norm_mean": "group", "norm_std": "group"}),
    "verl gae": ("verl", {"estimator": "gae", "lam": 0.9}),
    "verl rloo": ("verl", {"estimator": "rloo", "mask_before_norm": True}),
    "slime": ("slime", {"estimator": "reinforce_plus_plus", "advantage_clip": 1, "reward_clip": 3}),
    "openrlhf": ("openrlhf", {"estimator": "rloo", "drop_equal_rewards": True}),
    "nemo-rl": ("nemo-rl", {"estimator": "gae", "whiten_advantages": True}),
    "otb": ("verl", {"estimator": "optimal_token_baseline"}),
    "roll whitened": ("roll", {"estimator": "reinforce", "whiten_rewards": True, "gamma": 0.9}),
}


@pytest.fixture(scope="module")
def rollouts() -> pa.Table:
    return pq.read_table("sample_data/arithmetic.parquet").drop_columns(["prompt", "response"])


def recorded(rollouts: pa.Table, recipe: rlpost.Recipe) -> pa.Table:
    """Return rollouts with every stage that a recipe computes, as a trainer would record it."""
    table = rlpost.enrich(rollouts, recipe.model_copy(update={"emit": STAGES, "replace": True}))[0]
    if recipe.numerics.kl_credit == "response":  # the framework normalises rewards after KL
        fields = {"estimator": "raw", "kl_coef": recipe.kl_coef, "emit": ["token_level_rewards"]}
        numerics = recipe.numerics.model_copy(update={"kl_credit": "return"})
        raw = rlpost.Recipe.of({**fields, "emit_only": True, "numerics": numerics})
        column = rlpost.enrich(rollouts, raw)[0]["token_level_rewards"]
        at = table.schema.get_field_index("token_level_rewards")
        table = table.set_column(at, "token_level_rewards", column)
    return table


@pytest.mark.parametrize("name", RECIPES)
def test_stages_of_the_recipe_that_recorded_them_are_equal(name, rollouts):
    framework, options = RECIPES[name]
    recipe = rlpost.preset(framework, kl_coef=0.1, **MASKS, **options)
    stages = rlpost.replay(recorded(rollouts, recipe), recipe).stages
    assert {stage["stage"] for stage in stages} == {*STAGES}
    for stage in stages:
        assert stage["verdict"] == "equal", stage
        assert stage["largest"] < 1e-5, stage


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stage", ["kl", "token_level_rewards", "raw_advantages"])
def test_only_the_stage_that_was_changed_differs(name, stage, rollouts):
    framework, options = RECIPES[name]
    recipe = rlpost.preset(framework, kl_coef=0.1, **MASKS, **options)
    table = recorded(rollouts, recipe)
    changed = pa.array([np.asarray(row) * 1.01 + 0.01 for row in table[stage].to_pylist()])
    table = table.set_column(table.schema.get_field_index(stage), stage, changed)
    stages = Replayer(rollouts_of(table)).from_start(recipe, STAGES)
    (differs,) = (x for x in stages if not x.difference.equal)
    assert differs.name == stage
    assert stage != "kl" or not differs.rounding  # that of the mean of equal rewards is not in it


@pytest.mark.parametrize("name", PRESETS)
def test_what_rlpost_wrote_is_reproduced_in_memory_and_beyond_the_sample(name, rollouts, tmp_path):
    """Also token rewards after a normalisation that comes after KL; frameworks record others."""
    recipe = rlpost.preset(name, kl_coef=0.1)
    emit = [stage for stage in STAGES if stage != "sample_mask"]
    table, _ = rlpost.enrich(rollouts, recipe.model_copy(update={"emit": tuple(emit)}))
    pq.write_table(table.replace_schema_metadata(), tmp_path / "out.parquet")
    found = replay([str(tmp_path / "out.parquet")], ReplayRequest(recipe, name, sample_tokens=1000))
    assert found["reproduced"], found["first"]
    assert {one["stage"] for one in found["stages"]} == {*emit}


def test_a_sample_has_whole_steps(rollouts, tmp_path):
    recipe = rlpost.preset("verl", estimator="gae", kl_coef=0.1)
    path = tmp_path / "recorded.parquet"
    pq.write_table(recorded(rollouts, recipe), path, row_group_size=100)
    found = replay([str(path)], ReplayRequest(recipe, "verl gae", sample_tokens=1000))
    assert (found["scope"], found["responses"], found["of_responses"]) == ("whole steps", 128, 512)
    assert found["reproduced"]
    other = rlpost.preset("verl", estimator="gae", kl_coef=0.1, lam=0.5)
    found = replay([str(path)], ReplayRequest(other, "verl gae", sample_tokens=1000))
    assert not found["reproduced"]
    assert found["first"] == "raw_advantages"
    verdict = {one["stage"]: one["verdict"] for one in found["stages"]}
    assert verdict["kl"] == "equal"
    assert verdict["advantages"] == "differs"
    assert len(found["examples"]) == 3
    assert found["examples"][0]["recorded"]


@pytest.mark.parametrize(("batch", "rows"), [("step", 128), ("all", 512)])
def test_a_batch_beyond_the_sample_is_read_whole(batch, rows, rollouts, tmp_path):
    recipe = rlpost.preset("verl", estimator="gae", numerics={"batch": batch})
    path = tmp_path / "recorded.parquet"
    pq.write_table(recorded(rollouts, recipe), path)
    found = replay([str(path)], ReplayRequest(recipe, "verl gae", sample_tokens=500))
    assert found["reproduced"]
    assert {one["responses"] for one in found["stages"]} == {rows}


def test_numbers_per_response_and_other_names_are_recorded_columns(rollouts):
    recipe = rlpost.preset("trl", estimator="grpo")
    table = recorded(rollouts, recipe)
    first = [row[0] for row in table["advantages"].to_pylist()]
    table = table.drop_columns([*STAGES]).append_column("their advantage", pa.array(first))
    sample = rollouts_of(table, advantages="their advantage")
    (found,) = Replayer(sample).from_start(recipe, STAGES)
    assert found.name == "advantages"
    assert found.difference.equal


@pytest.mark.parametrize(
    ("value", "reproduced", "text"),
    [(np.nan, False, "are NaN, null or infinite in 1 of 512 responses (rows 7)"),
     (np.inf, False, "are NaN, null or infinite in 1 of 512 responses (rows 7)"),
     (None, True, "is null or empty in 1 response, which is not compared")],
)  # fmt: skip
def test_recorded_numbers_that_are_none_are_named(value, reproduced, text, rollouts):
    recipe = rlpost.preset("trl", estimator="grpo")
    table = recorded(rollouts, recipe)
    rows = table["advantages"].to_pylist()
    rows[7] = None if value is None else [value] * len(rows[7])
    table = table.select(["step", "prompt_id", "reward", "response_mask"])
    table = table.append_column("advantages", pa.array(rows))
    found = rlpost.replay(table.replace_schema_metadata(), recipe).to_dict()
    assert found["reproduced"] == reproduced
    assert found["first"] is None
    assert text in " ".join([*found["warnings"], *(one["text"] for one in found["findings"])])


def test_files_may_differ_in_the_types_of_numbers_but_not_in_lists(rollouts):
    """The numbers are those of one file; errors name the file, the column and its types."""
    recipe = rlpost.preset("trl", estimator="grpo")
    table = recorded(rollouts, recipe)
    table = table.select(["step", "prompt_id", "reward", "response_mask", "advantages"])
    first, other = table.slice(0, 256), table.slice(256)
    kinds = {"step": pa.int8(), "reward": pa.float64(), "response_mask": pa.large_list(pa.int8()),
             "advantages": pa.large_list(pa.float64())}  # fmt: skip
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in table.schema.names])
    found = rlpost.replay([first, other.cast(schema)], recipe)
    (whole,), (joint,) = rlpost.replay(table, recipe).stages, found.stages
    assert found.reproduced
    assert joint | {"column": ""} == whole | {"column": ""}
    numbers = other.set_column(4, "advantages", pa.array([0.5] * len(other)))
    text = r"^Table 1: `advantages` is a single double, and a list of \w+ in Table; one type"
    with pytest.raises(DataError, match=text):
        rlpost.replay([first, numbers], recipe)
    with pytest.raises(DataError, match=r"^Table 1: no column `advantages`, which other"):
        rlpost.replay([first, numbers.drop_columns(["advantages"])], recipe)
    without = other.drop_columns(["response_mask"])
    warnings = rlpost.replay([first, without], recipe).warnings
    assert "not read: `response_mask`, which Table 1 lacks" in warnings


def test_a_recorded_column_without_numbers_is_named(rollouts):
    recipe = rlpost.Recipe(estimator="grpo")
    table = recorded(rollouts, recipe).drop_columns(["returns"])
    result = rlpost.replay(table.append_column("returns", [["high"] * len(table)]), recipe)
    assert "not compared: `returns` is of type string, no numbers" in result.warnings
    assert result.reproduced
