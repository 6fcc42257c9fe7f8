"""Exports are read back by readers written from the sources of the targets.

`tests/peers/test_exports.py` reads them with the targets' own code.
"""

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from exported_rows import FLOATS, MASK, changed, datum_of, every_column, rollouts
from forked_runs import run
from format_writers import lines, made, prime_rl_traces

import rlpost
from rlpost.errors import DataError, UnavailableError, UsageError
from rlpost.formats import export as work
from rlpost.formats.targets import TARGETS


@pytest.fixture
def source(tmp_path):
    pq.write_table(rollouts(), tmp_path / "in.parquet", row_group_size=3)
    return tmp_path / "in.parquet"


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_jsonl_has_all_columns_and_comes_back(source, tmp_path):
    found = rlpost.export(source, tmp_path / "o.jsonl", "jsonl")
    rows = rollouts().to_pylist()
    assert records(tmp_path / "o.jsonl") == rows
    assert found.others == rollouts().column_names
    assert found.note == ""


def every_type():
    """A column of each type that JSON has no type for, and one of null alone in a list."""
    day, cents = date(2026, 1, 2), Decimal("1.10")
    at = datetime.combine(day, time(3, 4, 5, 6))
    kinds = {
        "i8": (pa.int8(), 3), "u64": (pa.uint64(), 2**64 - 1), "f16": (pa.float16(), 0.5),
        "f32": (pa.float32(), np.float32(0.1).item()), "flags": (pa.list_(pa.bool_()), [True]),
        "whole": (pa.list_(pa.float64()), [1.0]), "none": (pa.list_(pa.float32()), []),
        "fixed": (pa.list_(pa.float32(), 2), [1, 2]), "large": (pa.large_list(pa.int16()), [1]),
        "deep": (pa.list_(pa.list_(pa.float32())), [[1.0], []]), "empty": (pa.int32(), None),
        "struct": (pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}), {"a": 1, "b": []}),
        "words": (pa.dictionary(pa.int32(), pa.string()), "x"), "text": (pa.large_string(), "7"),
        "day": (pa.date32(), day), "at": (pa.timestamp("us"), at),
        "zone": (pa.timestamp("ms", "UTC"), datetime(2026, 1, 2, tzinfo=UTC)),
        "cents": (pa.decimal128(5, 2), cents),
    }  # fmt: skip
    table = {name: pa.array([x, None], kind) for name, (kind, x) in kinds.items()}
    return pa.table({**table, "uid": ["q", "q"]})


@pytest.mark.parametrize("table", [rollouts(), every_type()], ids=["rollouts", "types"])
def test_convert_of_jsonl_returns_the_columns_in_their_types(table, tmp_path):
    path = tmp_path / "in" / "o.jsonl"
    rlpost.export(table, path, "jsonl")
    url = f"memory://{tmp_path}/o.jsonl"
    rlpost.export(table, url, "jsonl")
    for name, source in {"file": path, "folder": path.parent, "url": url}.items():
        found = rlpost.convert(source, tmp_path / f"{name}.parquet")
        assert (found.format, found.skipped_files, found.note) == ("jsonl", [], "")
        back = pq.read_table(tmp_path / f"{name}.parquet")
        assert back.select(table.column_names).equals(table)
        assert back.num_columns == table.num_columns


def test_fields_that_jsonl_got_since_are_an_error_until_the_types_are_removed(tmp_path):
    path, back = tmp_path / "o.jsonl", tmp_path / "back.parquet"
    rlpost.export(every_type(), path, "jsonl")
    own = records(path)
    lines(path, [{**own[0], "i8": 400}])
    with pytest.raises(
        DataError, match=r"`i8` has a value that is not int8 .*remove o.jsonl.schem"
    ):
        rlpost.convert(path, back)
    lines(path, [own[0], {**own[1], "new": 1}])
    with pytest.raises(DataError, match=r"line 2: has other fields than the export \(new\)"):
        rlpost.convert(path, back)
    (tmp_path / "o.jsonl.schema").write_text("{}")
    with pytest.raises(DataError, match=r"o.jsonl.schema: damaged"):
        rlpost.convert(path, back)
    (tmp_path / "o.jsonl.schema").unlink()
    rlpost.convert(path, back, "jsonl")
    assert "new" in pq.read_schema(back).names


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([2**40, 1]), pa.array([1, None], pa.int32()), pa.int64()),
        (pa.array([1, 2]), pa.array([1.5, 2]), pa.float64()),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "c"]), pa.string()),
        (pa.nulls(2), pa.array([[1.0], []], FLOATS), FLOATS),
    ],
)
def test_jsonl_of_files_of_several_types_has_the_values_of_all(first, second, kind, tmp_path):
    for order in ((first, second), (second, first)):
        for i, values in enumerate(order):
            pq.write_table(pa.table({"x": values, "uid": ["q"] * 2}), tmp_path / f"{i}.parquet")
        rlpost.export(tmp_path / "*.parquet", tmp_path / "o" / "o.jsonl", "jsonl", overwrite=True)
        rlpost.convert(tmp_path / "o" / "o.jsonl", tmp_path / "o" / "back.parquet", overwrite=True)
        back = pq.read_table(tmp_path / "o" / "back.parquet")["x"]
        assert back.type == kind
        assert back.to_pylist() == [x for values in order for x in values.to_pylist()]
    pq.write_table(pa.table({"x": ["a"], "uid": ["q"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": [1], "uid": ["q"]}), tmp_path / "0.parquet")
    with pytest.raises(UsageError, match=r"2 columns: x \(int64 and string in different files\)"):
        rlpost.export(tmp_path / "*.parquet", tmp_path / "o.jsonl", "jsonl")


def test_jsonl_has_no_nan_and_no_bytes(tmp_path):
    table = rollouts().append_column("nested", pa.array([[{"x": float("inf")}]] * 7))
    with pytest.raises(DataError, match=r"row 0: `nested` has a number that JSON has not"):
        rlpost.export(table, tmp_path / "o.jsonl", "jsonl")
    found = rlpost.export(table, tmp_path / "o.jsonl", "jsonl", lossy=True)
    assert found.warnings == ["nested: 7 numbers that JSON has not (NaN, infinite) became null"]
    assert records(tmp_path / "o.jsonl")[6]["nested"] == [{"x": None}]
    raw = rollouts().append_column("raw", pa.array([b"\xff"] * 7))
    with pytest.raises(
        UsageError, match=r"loses 1 of 17 columns: raw \(jsonl has no place for bin"
    ):
        rlpost.export(raw, tmp_path / "raw.jsonl", "jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.jsonl", "o.jsonl.schema"]


def test_minus_is_standard_output(source, tmp_path):
    rlpost.export(source, tmp_path / "o.jsonl", "jsonl")
    ran = run("export", str(source), "-", "--to", "jsonl")
    assert ran.code == 0
    assert ran.out == (tmp_path / "o.jsonl").read_text(encoding="utf-8")
    assert "→ stdout" in ran.err
    for words, text in {
        ("-", "--to", "slime"): "-: --to slime writes several files; name a directory",
        ("-", "--to", "jsonl", "--format", "json"): "--format json: stdout has the rows already",
        ("-", "--to", "jsonl", "--overwrite"): "--overwrite: has no effect, because OUT is -",
    }.items():
        ran = run("export", str(source), *words)
        assert (ran.code, ran.out) == (2, "")
        assert text in ran.err


def test_a_datum_is_aligned_with_its_targets(source, tmp_path):
    rlpost.export(source, tmp_path / "o.jsonl", "tinker", lossy=True)
    for record, row in zip(records(tmp_path / "o.jsonl"), rollouts().to_pylist(), strict=True):
        (chunk,) = record["model_input"]["chunks"]
        inputs = record["loss_fn_inputs"]
        found = {"tokens": chunk["tokens"], **{key: one["data"] for key, one in inputs.items()}}
        assert found == datum_of(row)
        assert {one["dtype"] for key, one in inputs.items() if key != "target_tokens"} == {
            "float32"
        }
        assert all(one["shape"] == [len(chunk["tokens"])] for one in inputs.values())


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("advantages", [float("nan")], r"row 3: `advantages` is nan at token 0; a token that"),
        ("prompt_token_ids", [], r"row 3: the prompt has no tokens"),
        ("infer_log_probs", [0.0, 0.0], r"row 3: `infer_log_probs` has 2 values but `response_tok"),
    ],
)
def test_a_row_that_no_datum_holds_is_an_error(column, values, text, tmp_path):
    rows = rollouts().to_pylist()
    for name in ("response_token_ids", "response_mask", "infer_log_probs", "advantages"):
        rows[3][name] = [1]
    rows[3][column] = values
    table = pa.Table.from_pylist(rows, rollouts().schema)
    with pytest.raises(DataError, match=text):
        rlpost.export(table, tmp_path / "o.jsonl", "tinker", lossy=True)
    assert not [*tmp_path.iterdir()]


@dataclass
class Sample:
    """slime's Sample, as slime/utils/types.py builds it: unknown keys become attributes."""

    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    remove_sample: bool = False
    rollout_log_probs: list[float] | None = None
    status: str = "pending"
    train_metadata: dict | None = None

    @staticmethod
    def from_dict(data):
        one = Sample()
        assert data["status"] in {"pending", "completed", "truncated", "aborted", "failed"}
        for key, value in data.items():
            setattr(one, key, value)
        return one


def load_debug_rollout_data(template, rollout_id):
    samples = torch.load(template.format(rollout_id=rollout_id), weights_only=False)["samples"]
    return [Sample.from_dict(sample) for sample in samples]


def rollout_data(samples, *, metadata=True):
    """What slime's trainer has when it calls the hook, without what the hook does not read."""
    lengths = [sample.response_length for sample in samples]
    return {
        "kl": [torch.zeros(n) for n in lengths],
        "response_lengths": lengths,
        "total_lengths": [len(sample.tokens) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        **({"metadata": [sample.train_metadata for sample in samples]} if metadata else {}),
    }


@pytest.fixture
def hook(tmp_path, monkeypatch):
    def advantages(*args):
        monkeypatch.syspath_prepend(tmp_path / "o")
        monkeypatch.delitem(sys.modules, "rlpost_advantages", raising=False)
        import rlpost_advantages  # noqa: PLC0415

        return rlpost_advantages.advantages(*args)

    return advantages


def test_files_of_other_steps_in_the_directory_are_a_warning(source, tmp_path):
    assert rlpost.export(source, tmp_path / "o", "slime").warnings == []
    pq.write_table(rollouts().slice(0, 1), tmp_path / "one.parquet")
    found = rlpost.export(tmp_path / "one.parquet", tmp_path / "o", "slime", overwrite=True)
    assert found.warnings == [
        f"{tmp_path / 'o'} has files of other steps, which were there before: 6.pt"
    ]


def test_slime_loads_the_samples_and_gets_our_advantages(source, tmp_path, hook):
    found = rlpost.export(source, tmp_path / "o", "slime")
    assert found.lost == {}
    rows = rollouts().to_pylist()
    for step in (5, 6):
        own = [row for row in rows if row["step"] == step]
        samples = load_debug_rollout_data(str(tmp_path / "o" / "{rollout_id}.pt"), step)
        for sample, row in zip(samples, own, strict=True):
            assert sample.tokens == row["prompt_token_ids"] + row["response_token_ids"]
            assert sample.response_length == len(sample.loss_mask) == len(row["response_mask"])
            assert sample.rollout_log_probs == row["infer_log_probs"]
            assert sample.remove_sample == (not row["sample_mask"])
            assert (sample.status == "truncated") == (row["finish_reason"] == "length")
            assert (sample.reward, sample.loss_mask) == (row["reward"], row["response_mask"])
        groups = [sample.group_index for sample in samples]
        for i, j in np.ndindex(len(own), len(own)):
            assert (groups[i] == groups[j]) == (own[i]["prompt_id"] == own[j]["prompt_id"])
        order = np.random.default_rng(step).permutation(len(own))  # a rank has some, in any order
        for metadata in (True, False):
            data = rollout_data([samples[i] for i in order], metadata=metadata)
            hook(SimpleNamespace(), data)
            for name in ("advantages", "returns"):
                assert [one.tolist() for one in data[name]] == [own[i][name] for i in order]


def test_the_hook_cuts_out_a_rank_s_tokens(source, tmp_path, hook, monkeypatch):
    rlpost.export(source, tmp_path / "o", "slime")
    module = ModuleType("slime.backends.megatron_utils.cp_utils")
    module.slice_log_prob_with_cp = lambda x, *_: x[:2]
    for name in ("slime", "slime.backends", "slime.backends.megatron_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    samples = load_debug_rollout_data(str(tmp_path / "o" / "{rollout_id}.pt"), 5)
    long = [sample for sample in samples if sample.response_length > 2]
    data = rollout_data(long)
    data["kl"] = [torch.zeros(2) for _ in long]
    hook(SimpleNamespace(qkv_format="thd"), data)
    expected = [sample.train_metadata["advantages"][:2].tolist() for sample in long]
    assert [one.tolist() for one in data["advantages"]] == expected
    data["response_lengths"][0] += 1
    with pytest.raises(ValueError, match="response tokens"):
        hook(SimpleNamespace(qkv_format="thd"), data)


def test_convert_reads_the_samples_back(source, tmp_path):
    rlpost.export(source, tmp_path / "o", "slime")
    assert rlpost.convert(tmp_path / "o", tmp_path / "back.parquet").skipped_files == []
    back = pq.read_table(tmp_path / "back.parquet")
    rows = rollouts().sort_by("step")
    assert back.select(rows.column_names).sort_by("step").equals(rows)
    assert back.num_columns == rows.num_columns


def test_a_file_of_one_step_and_a_table_of_polars(tmp_path):
    frame = pl.from_arrow(rollouts()).filter(pl.col("step") == 5)
    found = rlpost.export(frame, tmp_path / "one.pt", "slime")
    assert found.use.startswith(f"--load-debug-rollout-data '{tmp_path / 'one.pt'}' ")
    assert found.use.endswith(f"with {tmp_path} on PYTHONPATH")
    found = rlpost.export(frame.drop("advantages"), tmp_path / "p", "slime")  # slime's own
    assert found.use == f"--load-debug-rollout-data '{tmp_path / 'p' / '{rollout_id}.pt'}'"
    assert found.outputs == [str(tmp_path / "p" / "5.pt")]
    rlpost.convert(tmp_path / "one.pt", tmp_path / "back.parquet", "slime-rollout")
    assert pq.read_table(tmp_path / "back.parquet").num_rows == len(frame)
    with pytest.raises(UsageError, match=r"2 steps, and --to slime writes a file for each"):
        rlpost.export(rollouts(), tmp_path / "two.pt", "slime")


def fold(trace, update):
    """Annotations onto nodes, as prime_rl/monitors/file/traces/update.py projects them."""
    nodes = trace["nodes"]
    inner = {node["parent"] for node in nodes}
    leaves = [i for i in range(len(nodes)) if i not in inner]
    for branch in update["branches"]:
        path, at = [], leaves[branch["index"]]
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at]["parent"]
        for name in ("advantages", "trainer_logprobs", "entropies"):
            stream, begin = branch.get(name), 0
            for node in path if stream else ():
                part = stream[begin : begin + len(node["token_ids"])]
                begin += len(node["token_ids"])
                values = [x for x, sampled in zip(part, node["mask"], strict=True) if sampled]
                if values and None not in values:
                    node[name] = values


def test_prime_rl_folds_the_annotations_onto_its_traces(tmp_path):
    path = prime_rl_traces(tmp_path, made())
    rlpost.convert(path, tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "e.parquet", rlpost.Recipe(gamma=0.9))
    rlpost.export(
        tmp_path / "e.parquet", tmp_path / "annotations" / "rlpost", "prime-rl", lossy=True
    )
    stream = (tmp_path / "annotations" / "rlpost" / "00000.jsonl").read_bytes()
    updates = {}
    for row in records(tmp_path / "annotations" / "rlpost.index.jsonl"):
        update = json.loads(stream[row["offset"] :].partition(b"\n")[0])
        assert update["trace_id"] == row["trace_id"]
        updates[row["trace_id"]] = update
    episodes = records(path)
    for trace in (trace for episode in episodes for trace in episode["traces"]):
        if trace["id"] in updates:
            for node in trace["nodes"]:
                node.pop("advantages", None)
            fold(trace, updates.pop(trace["id"]))
    assert updates == {}
    rlpost.convert(lines(tmp_path / "folded.jsonl", episodes), tmp_path / "f.parquet", "prime-rl")
    ours, theirs = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("e", "f"))
    for own, other in zip(ours, theirs, strict=True):
        numbers = zip(own["advantages"], own["response_mask"], strict=True)
        assert other["dumped_advantages"] == [x if keep else 0 for x, keep in numbers]
    assert any(any(own["advantages"]) for own in ours)


@pytest.mark.parametrize(
    ("out", "to", "text"),
    [
        ("o.parquet", "jsonl", r"--to jsonl writes a .jsonl file, not .parquet: name another"),
        (
            "o.jsonl",
            "slime",
            r"--to slime writes a directory or a .pt file for one step, not",
        ),
        ("o.jsonl", "prime-rl", r"--to prime-rl writes a directory, not .jsonl"),
        ("", "tinker", r"is a directory; --to tinker writes one file: name it"),
        ("new/", "tinker", r"new/: is a directory; --to tinker writes one file: name it"),
    ],
)
def test_a_name_of_another_kind_of_file_is_an_error(out, to, text, source, tmp_path):
    with pytest.raises(UsageError, match=text):
        rlpost.export(source, f"{tmp_path}/{out}", to, lossy=True)


def test_weights_outside_the_loss_and_missing_advantages_are_warnings(tmp_path):
    weights = pa.array([[1.0] * len(one) for one in rollouts()["advantages"].to_pylist()], FLOATS)
    table = rollouts().append_column("is_weight", weights)
    table = table.append_column("sample_weight", pa.array([0.5] * 7))
    found = rlpost.export(table, tmp_path / "o.jsonl", "tinker", lossy=True)
    (warning,) = found.warnings
    assert warning.startswith(
        "the weights (`sample_weight` and `is_weight`) are not in the loss of tinker; multiply the "
    )
    none = rollouts().drop_columns(["advantages"])
    assert rlpost.export(none, tmp_path / "o", "slime").warnings == [
        "no advantages: slime computes its own; `rlpost advantages` writes them"
    ]
    assert rlpost.export(table, tmp_path / "j.jsonl", "jsonl").warnings == []


def test_jsonl_counts_response_tokens(tmp_path):
    tokens = sum(map(len, rollouts()["response_token_ids"].to_pylist()))
    assert rlpost.export(rollouts(), tmp_path / "o.jsonl", "jsonl").tokens == tokens
    texts = rollouts().select(["prompt_id", "reward", "response"])
    assert rlpost.export(texts, tmp_path / "t.jsonl", "jsonl").tokens == 0


def test_types_of_an_earlier_export_do_not_stay_beside_another_target_s_file(source, tmp_path):
    path = tmp_path / "o.jsonl"
    rlpost.export(source, path, "jsonl")
    path.unlink()
    with pytest.raises(UsageError, match=r"o.jsonl.schema: exists already"):
        rlpost.export(source, path, "tinker", lossy=True)
    rlpost.export(source, path, "tinker", lossy=True, overwrite=True)
    assert [one.name for one in tmp_path.glob("o.*")] == ["o.jsonl"]
    url = f"memory://{tmp_path}/o.jsonl"
    rlpost.export(source, url, "jsonl")
    with pytest.raises(UsageError, match=r"has the types of an earlier export"):
        rlpost.export(source, url, "tinker", lossy=True, overwrite=True)


def test_a_wrong_sample_id_is_reported_before_lost_columns(source, tmp_path):
    with pytest.raises(DataError, match=r"row 0: `sample_id` is 's0'; TRACE:BRANCH is needed"):
        rlpost.export(source, tmp_path / "o", "prime-rl")


@pytest.mark.parametrize(
    ("words", "missing"),
    [([], "IN, OUT, --to"), (["a", "--to", "jsonl"], "OUT"), (["a", "b.jsonl"], "--to")],
)
def test_the_error_names_what_is_missing_and_the_targets(words, missing):
    ran = run("export", *words)
    assert ran.code == 2
    assert f": missing: {missing}; needed: rlpost export IN... OUT --to NAME" in ran.err
    assert all(name in ran.err for name in TARGETS)


def test_pages_wrap_at_columns_and_name_a_field_once(source, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("export", str(source), str(tmp_path / "o"), "--to", "slime")
    assert "tokens = prompt_token_ids, response_token_ids;" in " ".join(ran.err.split())
    listed = run("export", "--list").out
    lines_of_both = [*ran.err.splitlines(), *listed.splitlines()]
    assert max(len(line) for line in lines_of_both if str(tmp_path) not in line) <= 80
    assert "\n  needs          prompt_token_ids, response_token_ids, infer_log_probs," in listed


def test_rewards_that_are_no_numbers_and_masks_of_nothing_are_warnings(tmp_path):
    table = rollouts()
    none = pa.array([[0] * len(one) for one in table["response_mask"].to_pylist()], MASK)
    rewards = pa.array([1.0, None, float("nan"), 0, 0, 0, 0])
    table = table.set_column(3, "reward", rewards).set_column(9, "response_mask", none)
    found = rlpost.export(table, tmp_path / "o", "slime")
    assert found.warnings == [
        "`reward` is NaN, infinite or null in 2 responses",
        "no token is trained on: response_mask and sample_mask leave all out",
    ]


def test_what_a_target_loses_is_listed_before_anything_is_written(source, tmp_path):
    words = ["export", str(source), str(tmp_path / "o.jsonl"), "--to", "tinker"]
    ran = run(*words)
    assert ran.code == 2
    assert "loses 10 of 16 columns: step, prompt_id, sample_id, reward, finish_reason" in ran.err
    assert not (tmp_path / "o.jsonl").exists()
    ran = run(*words, "--lossy", "--format", "json")
    assert ran.code == 0
    summary = json.loads(ran.out)
    assert [*summary["lost"]][:2] == ["step", "prompt_id"]
    assert sum(len(summary[key]) for key in ("fields", "others", "lost")) == 16
    ran = run(*words, "--lossy", "--overwrite")
    assert "lost     10 of 16 columns: step, prompt_id" in ran.err
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
        ("step", {"to": "tinkr"}, UsageError, r"did you mean tinker\? \(targets: jsonl, t"),
    ],
)
def test_errors_name_the_role(without, options, error, text, tmp_path):
    table = rollouts().drop_columns([without])
    with pytest.raises(error, match=text):
        rlpost.export(table, tmp_path / "o", **{"to": "tinker", "lossy": True, **options})


@pytest.mark.parametrize("target", ["jsonl", "tinker", "slime"])
def test_files_do_not_depend_on_chunks(target, source, tmp_path, monkeypatch):
    rlpost.export(source, tmp_path / "a", target, lossy=True)
    monkeypatch.setattr(work, "CHUNK_TOKENS", 4)
    rlpost.export(source, tmp_path / "b", target, lossy=True)
    if target == "slime":
        for step in (5, 6):
            a, b = (
                load_debug_rollout_data(str(tmp_path / name / "{rollout_id}.pt"), step)
                for name in "ab"
            )
            assert str([vars(one) for one in a]) == str([vars(one) for one in b])
    else:
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_verl_writes_its_file_itself(source, tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.optional.find_spec", {}.get)
    with pytest.raises(UnavailableError, match=r"needs verl, which is not .*\[peers-verl\]'"):
        rlpost.export(source, tmp_path / "o", "verl")


def test_the_step_can_be_in_the_paths_of_files(tmp_path):
    table = rollouts().drop_columns(["step"])
    for step in (5, 6):
        (tmp_path / "in" / f"step={step}").mkdir(parents=True)
        pq.write_table(table, tmp_path / "in" / f"step={step}" / "a.parquet")
    found = rlpost.export(tmp_path / "in", tmp_path / "o", "slime")
    assert [path.rpartition("/")[2] for path in found.outputs[:2]] == ["5.pt", "6.pt"]
    rlpost.export(tmp_path / "in", tmp_path / "p" / "o.jsonl", "jsonl")
    for folder in "op":
        rlpost.convert(tmp_path / folder, tmp_path / f"{folder}.parquet")
        back = pq.read_table(tmp_path / f"{folder}.parquet")["step"]
        assert (back.type, back.to_pylist()) == (pa.int64(), [5] * 7 + [6] * 7)


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
