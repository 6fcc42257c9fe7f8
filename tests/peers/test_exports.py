"""Exports are read by the targets themselves: `python -m tests.peers verl`."""

from importlib.util import find_spec

import pyarrow as pa
import pytest
import torch
from exported_rows import changed, every_column, rollouts
from peers.comparison import quiet

import rlpost

pytestmark = pytest.mark.filterwarnings("ignore")


def case(name):
    reason = f"{name} is not installed; `python -m tests.peers {name}` runs this with it"
    skip = pytest.mark.skipif(find_spec(name) is None, reason=reason)
    return pytest.mark.parametrize("target", [pytest.param(name, id=f"{name}-export", marks=skip)])


@case("verl")
def test_verl_reads_its_file(target, tmp_path):
    with quiet():
        from verl import DataProto  # noqa: PLC0415
        from verl.utils.model import compute_position_id_with_mask  # noqa: PLC0415

        found = rlpost.export(rollouts(), tmp_path / "o", target)
    assert (found.lost, len(found.outputs)) == ({}, 2)
    for step in (5, 6):
        rows = [row for row in rollouts().to_pylist() if row["step"] == step]
        data = DataProto.load_from_disk(tmp_path / "o" / f"{step}.pkl")
        assert (len(data), data.meta_info) == (len(rows), {"global_steps": step})
        width = data.batch["prompts"].shape[1]
        whole = data.batch["attention_mask"][:, width:]
        positions = compute_position_id_with_mask(data.batch["attention_mask"])
        assert torch.equal(data.batch["position_ids"], positions)
        ids = torch.cat([data.batch["prompts"], data.batch["responses"]], dim=1)
        assert torch.equal(data.batch["input_ids"], ids)
        for i, row in enumerate(rows):
            one = {name: tensor[i] for name, tensor in data.batch.items()}
            tokens = one["input_ids"][one["attention_mask"].bool()].tolist()
            assert tokens == row["prompt_token_ids"] + row["response_token_ids"]
            for name, column in {
                "responses": "response_token_ids",
                "advantages": "advantages",
                "returns": "returns",
                "old_log_probs": "old_log_probs",
                "rollout_log_probs": "infer_log_probs",
            }.items():
                assert one[name][whole[i].bool()].tolist() == row[column]
            kept = [x * row["sample_mask"] for x in row["response_mask"]]
            assert one["response_mask"].tolist() == kept + [0] * (len(one["responses"]) - len(kept))
            score = row["reward"] if kept else 0
            assert one["token_level_scores"].sum().item() == pytest.approx(score, rel=1e-6)
            assert data.non_tensor_batch["uid"][i] == row["prompt_id"]
            assert data.non_tensor_batch["parts"][i] == row["parts"]
    assert [len(part) for part in data.chunk(3)] == [1, 1, 1]


@case("verl")
def test_verl_has_every_column(target, tmp_path):
    with quiet():
        from verl import DataProto  # noqa: PLC0415

    def export(table, name):
        with quiet():
            found = rlpost.export(table, tmp_path / name, target)
        (file,) = (tmp_path / name).iterdir()
        data = DataProto.load_from_disk(file)
        tensors = {key: tensor.tolist() for key, tensor in data.batch.items()}
        return found, str([tensors, data.non_tensor_batch, data.meta_info])

    table = every_column()
    found, before = export(table, "before")
    assert [*found.lost] == ["response_mask"]  # the final mask has its name
    for i, name in enumerate(table.column_names):
        other = pa.array(changed(table[name].to_pylist()), table.schema.field(i).type)
        assert (export(table.set_column(i, name, other), name)[1] != before) == (
            name not in found.lost
        ), name
