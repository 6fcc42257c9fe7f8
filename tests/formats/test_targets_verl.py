"""`--to verl`: the tensors that verl gets, padded on both sides; verl itself writes the file."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from exported_rows import rollouts
from forked_runs import run

import rlpost
from rlpost.errors import UnavailableError
from rlpost.formats import export as work
from rlpost.formats.targets import TARGETS


class DataProto:
    """verl's class, as far as the target uses it; test_exports.py has the real one."""

    def __init__(self, batch, others, meta):
        self.batch, self.non_tensor_batch, self.meta_info = batch, others, meta

    @classmethod
    def from_dict(cls, tensors, non_tensors, meta_info):
        sizes = {len(one) for one in (*tensors.values(), *non_tensors.values())}
        assert len(sizes) == 1
        return cls(tensors, non_tensors, meta_info)

    def save_to_disk(self, path):
        torch.save((self.batch, self.non_tensor_batch, self.meta_info), path)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Export a table with that class in the place of verl's, and return the files by step."""
    module = ModuleType("verl")
    module.DataProto = DataProto
    monkeypatch.setitem(sys.modules, "verl", module)
    monkeypatch.setattr(work, "need", lambda *_: None)

    def export(table):
        found = rlpost.export(table, tmp_path / "o", "verl", overwrite=True)
        assert found.lost == {}
        files = {int(Path(path).stem): Path(path) for path in found.outputs}
        return {step: torch.load(path, weights_only=False) for step, path in files.items()}

    return export


def test_prompts_are_padded_on_the_left_and_responses_on_the_right(load):
    table = rollouts()
    for step, (batch, _, meta) in load(table).items():
        rows = [row for row in table.to_pylist() if row["step"] == step]
        assert meta == {"global_steps": step}
        prompts, responses = (
            [row[f"{x}_token_ids"] for row in rows] for x in ("prompt", "response")
        )
        left, right = max(map(len, prompts)), max(map(len, responses))
        assert batch["prompts"].tolist() == [[0] * (left - len(x)) + x for x in prompts]
        assert batch["responses"].tolist() == [x + [0] * (right - len(x)) for x in responses]
        assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], batch["responses"]], 1))
        for row, attention, places in zip(
            rows, batch["attention_mask"], batch["position_ids"].tolist(), strict=True
        ):
            before, count = left - len(row["prompt_token_ids"]), int(attention.sum())
            assert count == len(row["prompt_token_ids"]) + len(row["response_token_ids"])
            assert attention[before : before + count].all()
            assert places[before : before + count] == [*range(count)]
            assert places[:before] == [0] * before
            assert {*places[before + count :]} <= {count - 1}


def test_numbers_of_tokens_and_responses_have_verls_names(load):
    table = rollouts()
    for step, (batch, others, _) in load(table).items():
        rows = [row for row in table.to_pylist() if row["step"] == step]
        width = batch["responses"].shape[1]
        for i, row in enumerate(rows):
            fill = [0.0] * (width - len(row["response_token_ids"]))
            assert batch["rollout_log_probs"][i].tolist() == row["infer_log_probs"] + fill
            assert batch["advantages"][i].tolist() == row["advantages"] + fill
            kept = [x * row["sample_mask"] for x in row["response_mask"]]
            assert batch["response_mask"][i].tolist() == kept + fill
            scores = [0.0] * width
            if kept:
                scores[len(kept) - 1] = pytest.approx(row["reward"], rel=1e-6)
            assert batch["token_level_scores"][i].tolist() == scores
            assert others["uid"][i] == row["prompt_id"]
            assert others["parts"][i] == row["parts"]


def test_a_list_with_a_number_per_token_is_a_tensor_until_one_differs(load):
    table = rollouts()
    table = table.append_column("speed", table["advantages"])
    assert all("speed" in batch for batch, *_ in load(table).values())
    lists = table["advantages"].to_pylist()
    lists[0] = [*lists[0], 1.0]
    place = table.schema.get_field_index("speed")
    table = table.set_column(place, "speed", [lists])
    first, second = load(table.set_column(0, "step", [[5] * 6 + [6]])).values()
    assert "speed" not in first[0]
    assert first[1]["speed"][0].tolist() == lists[0]
    assert "speed" in second[0]


def test_help_list_and_error_say_that_verl_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.optional.find_spec", {}.get)
    with pytest.raises(UnavailableError, match=r"--to verl, .* needs verl, which"):
        rlpost.export(rollouts(), tmp_path / "o", "verl")
    help_text = " ".join(run("export", "--help").out.split())
    for library in {target.library for target in TARGETS.values()} - {""}:
        assert f"--to {library} needs the package {library}" in help_text
        assert f"the package {library}" in run("list", "targets", library).out
