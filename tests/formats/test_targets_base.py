"""What a target holds: the columns of its fields, what is lost, and what it needs."""

import pyarrow as pa
import pytest
from exported_rows import changed, every_column, rollouts
from exports import load_debug_rollout_data

import rlpost
from rlpost.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("without", "options", "error", "text"),
    [
        ("prompt_token_ids", {}, DataError, r"no column for prompt_token_ids .* --map prompt_t"),
        ("step", {"columns_map": {"infer_log_probs": "x"}}, DataError, r"no column 'x'"),
        (
            "step",
            {"to": "jsonl", "columns_map": {"advantages": "x"}},
            UsageError,
            r"--to jsonl has no field for advantages, and writes other columns under their own",
        ),
        ("step", {"to": "slim"}, UsageError, r"did you mean slime\?"),
    ],
)
def test_errors_name_the_role(without, options, error, text, tmp_path):
    table = rollouts().drop_columns([without])
    with pytest.raises(error, match=text):
        rlpost.export(table, tmp_path / "o", **{"to": "slime", "lossy": True, **options})


def contents(folder, target):
    """What a target itself reads of its files, without what is stored for `rlpost convert`."""
    if target != "slime":
        files = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
        return [path.read_bytes() for path in files]
    samples = load_debug_rollout_data(str(folder / "{rollout_id}.pt"), int(min(
        path.stem for path in folder.glob("*.pt"))))  # fmt: skip
    fields = [{key: one for key, one in vars(x).items() if key != "metadata"} for x in samples]
    return [str(fields), *sorted(path.name for path in folder.iterdir())]


@pytest.mark.parametrize("target", ["slime", "prime-rl"])
def test_a_target_holds_what_it_declares_and_nothing_else(target, tmp_path):
    def export(table, name):
        folder = tmp_path / name
        own = folder if target == "slime" else folder / "a"
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
