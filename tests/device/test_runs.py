"""Runs on the shadow: files, tasks on files and tables, full memory, several cards, functions."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed_runs import InProcess, in_tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import recipes as random_recipes
from strategies import rollouts as random_rollouts
from strategies import to_table

import rlpost
from rlpost import functional
from rlpost.distributed import driver
from rlpost.distributed import partition as partitions
from rlpost.distributed.partition import TablePartition, TaskContext
from rlpost.errors import RlpostError, UnavailableError
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline.accelerators import TorchDevices
from rlpost.pipeline.device_choice import DeviceChoice
from rlpost.pipeline.run import bind
from rlpost.pipeline.running_state import RunState
from tests.device.inputs import rollouts

SAMPLES = Path(__file__).parents[2] / "sample_data"
SMALL = rlpost.Options(device="torch:cpu", chunk_tokens=3000, workers=2)
ON_CARD = replace(SMALL, device="shadow:0")
RECIPES = {
    "gae": rlpost.Recipe(estimator="gae", unit="row", kl_coef=0.05, whiten_advantages=True),
    "filters": rlpost.Recipe(
        estimator="rloo",
        unit="row",
        is_weight="segment",
        is_cap=1.1,
        is_normalise=True,
        is_filter=("token:ratio:0.8:1.25", "sequence:ratio:0.5:2"),
    ),
}
FIXTURE = HealthCheck.function_scoped_fixture
BASELINES = rlpost.Recipe(
    estimator="optimal_token_baseline", kl_coef=0.05, kl_target=0.1, whiten_advantages=True
)
WAYS = ("to_device_bytes", "to_host_bytes")
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@every_recipe
@pytest.mark.parametrize("sample", ["arithmetic", "calculator"])
def test_a_file_has_the_bytes_of_the_cpu(measure, tmp_path, recipe, sample):
    paths = []
    for options in (SMALL, ON_CARD):
        path = tmp_path / f"{options.device.replace(':', '-')}.parquet"
        with measure.measured() as run:
            summary = rlpost.advantages(SAMPLES / f"{sample}.parquet", path, recipe, options)
        paths.append(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert all(chunk.counts.waits <= 1 for chunk in run.chunks)
    rows, counts = sum(each.rows for each in run.chunks), [each.counts for each in run.chunks]
    sent, fetched = (sum(getattr(each, way) for each in counts) for way in WAYS)
    assert summary["bytes"]["to_host"] == fetched
    assert sent - 16 * rows <= summary["bytes"]["to_device"] <= sent  # not offsets of segments


def test_a_chunk_that_does_not_fit_is_halved(shadow, measure):
    recipe, table = RECIPES["gae"], rollouts(observations=True)
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    _, _, whole = measure.on_shadow(table, recipe, chunk_tokens=1 << 20, workers=1)
    with shadow.limited(0, shadow.cards[0].allocated + whole.peak // 3) as card:
        result, _, run = measure.on_shadow(table, recipe, chunk_tokens=1 << 20, workers=1)
        assert card.peak <= card.limit
    assert [len(chunks) for chunks in whole.passes] == [1, 1, 1]
    assert all(len(chunks) > 2 for chunks in run.passes[1:])
    assert result.equals(expected)


@pytest.mark.nightly
def test_columns_that_do_not_fit_are_computed_again(shadow, measure, monkeypatch):
    """A card may report more free memory than this process gets."""
    recipe, table = RECIPES["gae"], rollouts(observations=True)
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    monkeypatch.setattr(TorchDevices, "room", lambda _: 1 << 33)
    with shadow.limited(0, shadow.cards[0].allocated + 3 * table["values"].nbytes):
        result, _, run = measure.on_shadow(table, recipe, chunk_tokens=200, workers=1)
    assert result.equals(expected)
    assert any("values" in chunk.roles for chunk in run.passes[2])


def test_a_response_that_does_not_fit_alone_is_an_error(shadow):
    used = shadow.cards[0].allocated
    with (
        shadow.limited(0, used + (1 << 13)),
        pytest.raises(UnavailableError, match=r"row 0: this response does not fit .* shadow:0"),
    ):
        rlpost.enrich(rollouts(observations=True), RECIPES["gae"], ON_CARD)
    assert shadow.cards[0].allocated == used


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", [*RECIPES.values(), BASELINES], ids=[*RECIPES, "baselines"])
def test_two_cards_share_the_chunks_of_four_workers(shadow, recipe):
    table = rollouts(observations=True)
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    before = [card.allocated for card in shadow.cards]
    for card in shadow.cards:
        card.peak = card.allocated
    options = replace(ON_CARD, device="shadow", chunk_tokens=500, workers=4)
    result, _ = rlpost.enrich(table, recipe, options)
    assert result.equals(expected)
    assert all(card.peak > start for card, start in zip(shadow.cards, before, strict=True))


@pytest.mark.nightly
@every_recipe
@pytest.mark.parametrize("divided", [False, True])
def test_tasks_leave_the_bytes_of_a_run_on_the_cpu(shadow, tmp_path, recipe, divided):
    (tmp_path / "in").mkdir()
    table = rollouts(observations=True)
    for place, (start, stop) in enumerate(pairwise((0, 40, 96))):
        part = table.slice(start, stop - start)
        pq.write_table(part, tmp_path / "in" / f"{place}.parquet", row_group_size=9)
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, SMALL)
    with (
        mock.patch.object(driver, "ROWS_A_BUCKET", 50),
        mock.patch.object(partitions, "PART_BYTES", 1 if divided else partitions.PART_BYTES),
        shadow.counted() as counts,
    ):
        in_tasks(tmp_path / "in", tmp_path / "out", recipe, ON_CARD)
    assert counts.to_device > 0
    for path in (tmp_path / "local").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.nightly
@settings(max_examples=12, suppress_health_check=[*settings.default.suppress_health_check, FIXTURE])
@given(random_rollouts(extreme=True), random_recipes(tuple(ESTIMATORS)), st.integers(1, 40))
def test_any_rollouts_have_the_bits_of_the_cpu(measure, rows, options, chunk_tokens):
    table, recipe = to_table(rows), rlpost.Recipe(**options)
    cut = {"chunk_tokens": chunk_tokens, "workers": 1}
    try:
        expected, summary = rlpost.enrich(table, recipe, rlpost.Options(device="torch:cpu", **cut))
    except RlpostError as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            measure.on_shadow(table, recipe, **cut)
        return
    result, ours, run = measure.on_shadow(table, recipe, **cut)
    assert result.equals(expected)
    assert measure.same_results(ours, summary)
    assert not run.counts.unordered
    assert all(sum(each.counts.waits for each in one) <= len(one) + 1 for one in run.passes)


@every_recipe
def test_tasks_on_tables_return_the_columns_of_the_cpu(shadow, recipe):
    table = rollouts(observations=True)
    plan = bind(TableSource(table), recipe, RunState())
    card = DeviceChoice("shadow:1", "asked for")
    context = TaskContext(recipe, plan.columns, RunState(), 1, device=card, chunk_tokens=3000)
    parts = [TablePartition(table.slice(start, 48), 48) for start in (0, 48)]
    with shadow.counted() as counts:
        reduced = driver.reduce_responses(context, parts, InProcess())
        _, tables = driver.last_pass(context, parts, reduced, InProcess())
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    assert counts.to_device > 0
    assert pa.concat_tables(tables).equals(expected)


LENGTHS = [3, 0, 17, 1, 40, 8]


def _ragged():
    random = torch.Generator().manual_seed(7)
    count = sum(LENGTHS)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    normal = {name: torch.randn(count, generator=random) for name in ("a", "b")}
    logs = {name: -torch.rand(count, generator=random) for name in ("new", "old", "infer")}
    mask = torch.rand(count, generator=random) > 0.3
    rewards = torch.rand(len(LENGTHS), generator=random)
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    padded = {name: torch.randn(4, 9, generator=random) for name in ("p", "q")}
    shape = {"padded_mask": torch.rand(4, 9, generator=random) > 0.4}
    return {
        "offsets": offsets, "mask": mask, "rewards": rewards, "groups": groups, "p4": rewards[:4],
        **normal, **logs, **padded, **shape,
    }  # fmt: skip


F, P = functional, functional.padded
TURNS = torch.tensor([0, 1, 0, 1, 0, 0]), ["a", "a", "b", "b", "c", "d"]
JOINED = {"turns": TURNS[0], "rollouts": TURNS[1]}
FUNCTIONS = {
    "gae": lambda x: F.gae(x["a"], x["b"], x["offsets"], x["mask"], lam=0.9),
    "discounted_returns": lambda x: F.discounted_returns(x["a"], x["offsets"], gamma=0.9),
    "response_rewards": lambda x: F.response_rewards(x["rewards"], x["a"], x["offsets"]),
    "place_rewards": lambda x: F.place_rewards(x["rewards"], x["offsets"], x["mask"]),
    "to_tokens": lambda x: F.to_tokens(x["rewards"], x["offsets"], x["mask"]),
    "whiten": lambda x: F.whiten(x["a"], x["mask"]),
    "value_loss": lambda x: F.value_loss(x["a"], x["b"], x["new"], x["mask"], clip=0.2).loss,
    "accepted_tokens": lambda x: F.accepted_tokens(
        x["old"], x["infer"], x["offsets"], x["mask"], filters=["token:ratio:0.8:1.2"]
    ),
    "top_entropy": lambda x: F.top_entropy(x["a"], x["mask"], quantile=0.3),
    "proximal_log_probs": lambda x: F.proximal_log_probs(
        x["new"], x["infer"], abs(4 * x["a"]), x["mask"]
    ),
    "layout_weights": lambda x: (
        F.layout_weights(x["a"], x["offsets"], x["mask"], micro_batch=1).effective
    ),
    "padded.layout_weights": lambda x: (
        P.layout_weights(x["p"], x["padded_mask"], micro_batch=1).effective
    ),
    "turn_gae": lambda x: F.turn_gae(x["a"], x["b"], x["offsets"], x["mask"]),
    "agentic_reinforce": lambda x: F.agentic_reinforce(x["a"], x["offsets"], x["mask"]),
    "vtrace": lambda x: F.vtrace(
        x["a"], x["b"], x["old"], x["infer"], x["offsets"], x["mask"], gamma=0.9
    ),
    "mt_grpo": lambda x: F.mt_grpo(x["rewards"], x["rewards"], *TURNS, x["groups"]),
    "turn_credit": lambda x: F.turn_credit(
        x["rewards"], x["rewards"], *TURNS, x["groups"], x["offsets"].diff()
    ),
    "turn_returns": lambda x: F.turn_returns(x["rewards"], *TURNS, step_gamma=0.9),
    "gar": lambda x: F.gar(x["rewards"], x["rewards"] / 2, x["groups"]),
    "per_rollout": lambda x: F.per_rollout(
        F.grpo, x["rewards"][[0, 0, 1, 1, 2, 3]], TURNS[1], x["groups"]
    ),
    "over_rollouts": lambda x: F.over_rollouts(
        F.gae, x["a"], x["b"], offsets=x["offsets"], mask=x["mask"], **JOINED
    ),
    "padded.turn_gae": lambda x: P.turn_gae(x["p"], x["q"], x["padded_mask"]),
    "padded.agentic_reinforce": lambda x: P.agentic_reinforce(x["p"], x["padded_mask"]),
    "padded.vtrace": lambda x: P.vtrace(x["p"], x["q"], -x["p"], -x["q"], x["padded_mask"]),
    "padded.over_rollouts": lambda x: P.over_rollouts(
        F.gae, x["p"], x["q"], mask=x["padded_mask"], rollouts=[0, 0, 1, 1], turns=TURNS[0][:4]
    ),
    "padded.top_entropy": lambda x: P.top_entropy(x["p"], x["padded_mask"], quantile=0.3),
    "padded.proximal_log_probs": lambda x: P.proximal_log_probs(
        -abs(x["p"]), -abs(x["q"]), abs(x["p"]), x["padded_mask"]
    ),
    "padded.value_loss": lambda x: P.value_loss(x["p"], x["q"], x["q"], x["padded_mask"]).loss,
    "padded.accepted_tokens": lambda x: P.accepted_tokens(
        x["p"], x["q"], x["padded_mask"], filters=["token:ratio:0.8:1.2"]
    ),
    "kl": lambda x: F.kl(x["new"], x["old"], x["mask"], kl_estimator="k3"),
    "importance_weights": lambda x: F.importance_weights(
        x["old"], x["infer"], x["offsets"], x["mask"], level="segment", cap=1.2
    ),
    "policy_loss": lambda x: F.policy_loss(
        x["new"], x["old"], x["a"], x["offsets"], x["mask"], infer_log_probs=x["infer"]
    ),
    "aggregate": lambda x: F.aggregate(x["a"], x["offsets"], x["mask"], how="seq-mean-token-mean"),
    "grpo": lambda x: F.grpo(x["rewards"], x["groups"]),
    "dr_grpo": lambda x: F.dr_grpo(x["rewards"], x["groups"]),
    "rloo": lambda x: F.rloo(x["rewards"], x["groups"]),
    "opo": lambda x: F.opo(x["rewards"], x["offsets"].diff() + 1, x["groups"]),
    "gpg": lambda x: F.gpg(x["rewards"], x["groups"]),
    "grpo_passk": lambda x: F.grpo_passk(x["rewards"], x["groups"]),
    "max_rl": lambda x: F.max_rl(x["rewards"], x["groups"]),
    "gdpo": lambda x: F.gdpo(torch.stack([x["rewards"], x["rewards"] ** 2], 1), x["groups"]),
    "padded.gae": lambda x: P.gae(x["p"], x["q"], x["padded_mask"]),
    "padded.discounted_returns": lambda x: P.discounted_returns(x["p"], x["padded_mask"]),
    "padded.place_rewards": lambda x: P.place_rewards(x["p4"], x["padded_mask"]),
    "padded.response_rewards": lambda x: P.response_rewards(x["p4"], x["p"]),
    "padded.to_tokens": lambda x: P.to_tokens(x["p4"], x["padded_mask"]),
    "padded.importance_weights": lambda x: P.importance_weights(
        x["p"], x["q"], x["padded_mask"], level="geometric"
    ),
    "padded.policy_loss": lambda x: P.policy_loss(x["p"], x["q"], x["p"], x["padded_mask"]),
    "padded.aggregate": lambda x: P.aggregate(x["p"], x["padded_mask"]),
    "padded.whiten": lambda x: P.whiten(x["p"], x["padded_mask"]),
    "padded.kl": lambda x: P.kl(x["p"], x["q"], x["padded_mask"]),
}


def test_all_functions_are_here():
    classes = {"Credit", "LayoutWeights", "PolicyLoss", "ValueLoss", "Weights", "padded"}
    every = {*F.__all__} - classes | {f"padded.{name}" for name in P.__all__}
    assert every == {*FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_cpus_bits_on_the_card_of_its_input(shadow, name):
    device = shadow.cards[1].device
    inputs = _ragged()
    expected = FUNCTIONS[name](inputs)
    with shadow.counted() as counts:
        result = FUNCTIONS[name]({key: value.to(device) for key, value in inputs.items()})
    assert not counts.unordered
    left, right = (one if isinstance(one, tuple) else (one,) for one in (expected, result))
    for here, there in zip(left, right, strict=True):
        assert there.device == device
        assert torch.equal(here, there.cpu())
