"""Exports are read back by readers written from the sources of the targets.

`tests/peers/test_exports.py` reads them with the targets' own code.
"""

import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from exported_rows import FLOATS, changed, every_column, rollouts
from exports import load_debug_rollout_data, records
from forked_runs import run

import rlpost
from rlpost.errors import DataError, UnavailableError, UsageError
from rlpost.formats import export as work
from rlpost.formats.targets import TARGETS


def test_jsonl_has_all_columns_and_is_read_as_any_json(source, tmp_path):
    found = rlpost.export(source, tmp_path / "o.jsonl", "jsonl")
    rows = rollouts().to_pylist()
    assert records(tmp_path / "o.jsonl") == rows
    assert found.others == rollouts().column_names
    assert found.tokens == sum(map(len, rollouts()["response_token_ids"].to_pylist()))
    back = rlpost.convert(tmp_path / "o.jsonl", tmp_path / "back.parquet")
    assert back["format"] == "jsonl"
    known = rollouts().drop_columns(["parts", "advantages", "returns", "sample_mask"])
    table = pq.read_table(tmp_path / "back.parquet")
    assert table.select(known.column_names).to_pylist() == known.to_pylist()


def test_jsonl_of_files_of_several_types_has_the_values_of_all(tmp_path):
    columns = {
        "whole": (pa.array([2**40, 1]), pa.array([1, None], pa.int32())),
        "mixed": (pa.array([1, 2]), pa.array(["a", "b"]).dictionary_encode()),
        "list": (pa.nulls(2), pa.array([[1.0], []], FLOATS)),
        "day": (pa.array([1, None], pa.date32()), pa.array([None, 2], pa.date32())),
    }
    for i in range(2):
        table = pa.table({name: parts[i] for name, parts in columns.items()})
        pq.write_table(table.append_column(f"only {i}", pa.nulls(2)), tmp_path / f"{i}.parquet")
    result = rlpost.export(tmp_path / "*.parquet", tmp_path / "o" / "o.jsonl", "jsonl")
    assert result.lost == {"only 0": "in some files only", "only 1": "in some files only"}
    written = records(tmp_path / "o" / "o.jsonl")
    for name, parts in columns.items():
        values = [x for part in parts for x in part.to_pylist()]
        assert [row[name] for row in written] == [str(x) if x and name == "day" else x
                                                  for x in values]  # fmt: skip


def test_what_a_target_cannot_hold_is_null_or_lost_and_counted(tmp_path):
    table = rollouts().append_column("nested", pa.array([[{"x": float("inf")}]] * 7))
    table = table.append_column("raw", pa.array([b"\xff"] * 7))
    result = rlpost.export(table, tmp_path / "o.jsonl", "jsonl")
    assert result.warnings == ["nested: 7 numbers that JSON has not (NaN, infinite) became null"]
    assert records(tmp_path / "o.jsonl")[6]["nested"] == [{"x": None}]
    assert result.lost == {"raw": "no place for binary"}
    pq.write_table(table, tmp_path / "in.parquet")
    screen = run("export", tmp_path / "in.parquet", tmp_path / "p.jsonl", "--to", "jsonl").err
    assert "! 1 column lost (no place for binary): raw" in screen


@pytest.mark.parametrize(
    ("out", "to", "text"),
    [
        ("o.parquet", "jsonl", "--to jsonl writes a .jsonl file, not .parquet: name another"),
        ("o.jsonl", "slime", "--to slime writes a directory, not .jsonl: name another"),
        ("", "jsonl", "is a directory; --to jsonl writes one file: name it"),
        ("new/", "jsonl", "new/: is a directory; --to jsonl writes one file: name it"),
    ],
)
def test_a_name_of_another_kind_of_file_is_an_error(out, to, text, source, tmp_path):
    with pytest.raises(UsageError, match=text):
        rlpost.export(source, f"{tmp_path}/{out}", to)


def test_weights_outside_the_loss_are_a_warning(tmp_path):
    weights = pa.array([[1.0] * len(one) for one in rollouts()["advantages"].to_pylist()], FLOATS)
    table = rollouts().append_column("is_weight", weights)
    table = table.append_column("sample_weight", pa.array([0.5] * 7))
    found = rlpost.export(table, tmp_path / "o", "slime")
    (warning,) = found.warnings
    assert warning.startswith(
        "the weights (`sample_weight` and `is_weight`) are not in the loss of slime; multiply the "
    )
    assert rlpost.export(table, tmp_path / "j.jsonl", "jsonl").warnings == []


@pytest.mark.parametrize("target", ["jsonl", "slime"])
def test_files_do_not_depend_on_chunks(target, source, tmp_path, monkeypatch):
    rlpost.export(source, tmp_path / "a", target)
    monkeypatch.setattr(work, "CHUNK_TOKENS", 4)
    rlpost.export(source, tmp_path / "b", target)
    if target == "slime":
        for step in (5, 6):
            a, b = (
                load_debug_rollout_data(str(tmp_path / name / "{rollout_id}.pt"), step)
                for name in "ab"
            )
            assert str([vars(one) for one in a]) == str([vars(one) for one in b])
    else:
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_step_can_be_in_the_paths_of_files(tmp_path):
    """And a number that is too long for an integer, which is a text."""
    table, run = rollouts().drop_columns(["step"]), "1" * 20
    for step in (5, 6):
        folder = tmp_path / "in" / f"step={step}" / f"run={run}"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "a.parquet")
    found = rlpost.export(tmp_path / "in", tmp_path / "o", "slime")
    assert [path.rpartition("/")[2] for path in found.outputs[:2]] == ["5.pt", "6.pt"]
    rlpost.export(tmp_path / "in", tmp_path / "o.jsonl", "jsonl")
    rlpost.convert(tmp_path / "o.jsonl", tmp_path / "back.parquet")
    back = pq.read_table(tmp_path / "back.parquet")
    assert (back["step"].type, back["step"].to_pylist()) == (pa.int64(), [5] * 7 + [6] * 7)
    assert {*back["run"].to_pylist()} == {run}


@pytest.mark.parametrize(
    ("without", "options", "error", "text"),
    [
        ("prompt_token_ids", {}, DataError, r"no column for prompt_token_ids, .* --map prompt_t"),
        ("step", {"columns_map": {"infer_log_probs": "x"}}, DataError, r"no column 'x'"),
        (
            "step",
            {"to": "jsonl", "columns_map": {"advantages": "x"}},
            UsageError,
            r"--to jsonl has no field for advantages; leave it out",
        ),
        ("step", {"to": "slim"}, UsageError, r"did you mean slime\?"),
    ],
)
def test_errors_name_the_role(without, options, error, text, tmp_path):
    table = rollouts().drop_columns([without])
    with pytest.raises(error, match=text):
        rlpost.export(table, tmp_path / "o", **{"to": "slime", **options})


def contents(folder, target):
    """What a target itself reads of its files, without what is stored for `rlpost convert`."""
    if target != "slime":
        files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
        return [path.read_bytes() for path in files]
    samples = load_debug_rollout_data(str(folder / "{rollout_id}.pt"), int(min(
        path.stem for path in folder.glob("*.pt"))))  # fmt: skip
    fields = [{key: value for key, value in vars(x).items() if key != "metadata"} for x in samples]
    return [str(fields), *sorted(path.name for path in folder.iterdir())]


@pytest.mark.parametrize("target", ["slime", "prime-rl"])
def test_a_target_holds_what_it_declares_and_nothing_else(target, tmp_path):
    def export(table, name):
        folder = tmp_path / name
        own = folder if target == "slime" else folder / "a"
        found = rlpost.export(table, own, target)
        return found, contents(folder / "a" if target == "prime-rl" else folder, target)

    table = every_column()
    found, before = export(table, "before")
    assert {*found.fields} | {*found.others} | {*found.lost} == {*table.column_names}
    assert len(found.fields) + len(found.others) + len(found.lost) == table.num_columns
    for i, name in enumerate(table.column_names):
        kind = table.schema.field(i).type
        other = pa.array(changed(table[name].to_pylist()), kind)
        _, after = export(table.set_column(i, name, other), name)
        assert (after != before) == (name in found.fields), name


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
    assert "tip: rlpost export IN... OUT --to jsonl, " in run("export", "a", "b.jsonl").err
    with pytest.raises(UnavailableError, match=r"--to verl, .* needs verl, which"):
        rlpost.export(rollouts(), tmp_path / "o", "verl")
    help_text = " ".join(run("export", "--help").out.split())
    for library in {target.library for target in TARGETS.values()} - {""}:
        assert f"--to {library} needs the package {library}" in help_text
        assert f"the package {library}" in run("list", "targets", library).out
