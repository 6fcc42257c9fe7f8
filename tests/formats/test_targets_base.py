"""What a target holds: the columns of its fields, what is lost, and what it needs."""

import json

import pyarrow as pa
import pytest
from exported_rows import changed, every_column, rollouts
from exports import load_debug_rollout_data
from forked_runs import run

import rlpost
from rlpost.errors import DataError, UsageError


def test_what_a_target_loses_is_listed_before_anything_is_written(source, tmp_path):
    words = ["export", str(source), str(tmp_path / "o.jsonl"), "--to", "tinker"]
    ran = run(*words)
    assert ran.code == 2
    assert "cannot hold 10 of 16 columns: step, prompt_id, sample_id, " in ran.err
    assert not (tmp_path / "o.jsonl").exists()
    ran = run(*words, "--lossy", "--format", "json")
    assert ran.code == 0
    summary = json.loads(ran.out)
    assert [*summary["lost"]][:2] == ["step", "prompt_id"]
    assert sum(len(summary[key]) for key in ("fields", "others", "lost")) == 16
    ran = run(*words, "--lossy", "--overwrite")
    assert "10 of 16 columns lost: step, prompt_id" in ran.err
    assert "exists already" in run(*words, "--lossy").err


@pytest.mark.parametrize(
    ("without", "options", "error", "text"),
    [
        ("advantages", {}, DataError, r"no column for advantages \(--to tinker: the loss mult"),
        ("prompt_token_ids", {}, DataError, r"no column for prompt_token_ids .* --map prompt_t"),
        ("step", {"columns_map": {"values": "x"}}, UsageError, r"--to tinker has no place for v"),
        ("step", {"columns_map": {"infer_log_probs": "x"}}, DataError, r"no column 'x'"),
        (
            "step",
            {"to": "jsonl", "columns_map": {"advantages": "x"}},
            UsageError,
            r"--to jsonl has no field for advantages, and writes other columns under their own",
        ),
        ("step", {"to": "tinkr"}, UsageError, r"did you mean tinker\?"),
    ],
)
def test_errors_name_the_role(without, options, error, text, tmp_path):
    table = rollouts().drop_columns([without])
    with pytest.raises(error, match=text):
        rlpost.export(table, tmp_path / "o", **{"to": "tinker", "lossy": True, **options})


def contents(folder, target):
    """What a target itself reads of its files, without what is stored for `rlpost convert`."""
    if target != "slime":
        files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
        return [path.read_bytes() for path in files]
    samples = load_debug_rollout_data(str(folder / "{rollout_id}.pt"), int(min(
        path.stem for path in folder.glob("*.pt"))))  # fmt: skip
    fields = [{key: one for key, one in vars(x).items() if key != "metadata"} for x in samples]
    return [str(fields), *sorted(path.name for path in folder.iterdir())]


@pytest.mark.parametrize("target", ["tinker", "slime", "prime-rl"])
def test_a_target_holds_what_it_declares_and_nothing_else(target, tmp_path):
    def export(table, name):
        folder = tmp_path / name
        own = {"tinker": folder / "a.jsonl", "slime": folder, "prime-rl": folder / "a"}[target]
        found = rlpost.export(table, own, target, lossy=True)
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
