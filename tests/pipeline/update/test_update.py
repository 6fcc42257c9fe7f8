"""`--update`: what is written again and what is not, and that the numbers are those of one run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from strategies import ESTIMATORS, fitting, recipes, rollouts, to_table
from test_invariance import big, same_bits

import rlpost
from rlpost import api
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError
from rlpost.io.locks import BusyError, FileLock
from rlpost.pipeline.update.marker import MARKER

UPDATE = rlpost.Options(update=True, chunk_tokens=1 << 20, workers=1)
PLAIN = rlpost.Options(chunk_tokens=1 << 20, workers=1)
NEW = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight")


# The law: an update equals a run over all files, or it is an error


def law_recipes():
    """Recipes of all estimators, with parts that couple responses in ways of their own."""
    more = st.fixed_dictionaries(
        {},
        optional={
            "is_weight": st.just("token"),
            "is_normalise": st.sampled_from([True]),
            "rollout_id": st.just("traj_id"),
            "rollout_reward": st.just("mean"),
            "emit": st.just((*NEW[:3], "group_mean", "group_pass_rate")),
        },
    )
    details = st.fixed_dictionaries(
        {},
        optional={
            "single": st.sampled_from(["raw", "zero_always", "normalise"]),
            "states": st.just("batch"),
            "correction": st.just("first"),
            "gdpo_batch": st.just("tokens"),
        },
    )
    names = (*ESTIMATORS, "rae", "optimal_token_baseline", "opd")
    return st.tuples(recipes(names), more, details).map(_joined)


def _joined(parts):
    options, more, details = parts
    if "is_weight" not in more:
        more.pop("is_normalise", None)
    return fitting({**options, **more, "numerics": {**options.get("numerics", {}), **details}})


@st.composite
def histories(draw):
    """Rows, and for two moments the file of each row (-1: none yet)."""
    rows = draw(rollouts(max_groups=3, max_group_size=3, max_tokens=5))
    by = draw(st.sampled_from(["batch", "batch", "group", "row"]))
    keys = {"batch": lambda r: r.batch, "group": lambda r: (r.batch, r.group), "row": id}[by]
    units = list(dict.fromkeys(map(keys, rows)))
    files = dict(zip(units, draw(st.lists(st.integers(0, 3), min_size=len(units))), strict=False))
    if by == "batch":
        files = {unit: unit for unit in units}
    after = [files.get(keys(row), 0) for row in rows]
    names = sorted({*after})
    late = {*names[len(names) // 2 :]} if draw(st.booleans()) else {draw(st.sampled_from(names))}
    cut = draw(st.booleans())  # a file that is there already, and grows
    before = [
        -1 if one in late or (cut and index == len(rows) - 1) else one
        for index, one in enumerate(after)
    ]
    return rows, before, after


def save(table, files, folder):
    """Write the rows of each file; files that are the same as before stay untouched."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in sorted({*files} - {-1}):
        path = folder / f"part-{number}.parquet"
        own = table.take([row for row, file in enumerate(files) if file == number])
        if not path.exists() or not pq.read_table(path).equals(own):
            pq.write_table(own, path)
            os.utime(path, ns=(number, len(own)))


def law(case, options, *, steps=True):
    """Run both updates, and compare with one run over all files; count what happened."""
    rows, before, after = case
    table = to_table(rows, without=() if steps else ("step",))
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        inputs, out, whole = top / "in", top / "out", top / "whole"
        recipe = rlpost.Recipe(**options)
        own = replace(UPDATE, state=top / "state.json")
        save(table, after, top / "all")
        try:
            wanted = replace(PLAIN, state=top / "other.json")
            rlpost.advantages(top / "all", whole, recipe, wanted)
            save(table, before, inputs)
            rlpost.advantages(inputs, out, recipe, own)
        except (DataError, UsageError):  # options that do not go together, or nothing is left
            assume(False)  # noqa: FBT003
        save(table, after, inputs)
        what = "equal"
        try:
            rlpost.advantages(inputs, out, recipe, own)
        except DataError:
            assume(False)  # noqa: FBT003
        except UsageError:
            what = "refused"
            try:
                rlpost.advantages(inputs, out, recipe, replace(own, overwrite=True))
            except UsageError as error:
                if "start over" in str(error):
                    return "start over"
                raise
        for path in sorted(whole.glob("*.parquet")):
            got, want = pq.read_table(out / path.name), pq.read_table(path)
            assert got.schema.names == want.schema.names
            new = [one for one in want.schema.names if one not in table.schema.names]
            same_bits(got.select(new), want.select(new))
        nothing = rlpost.advantages(inputs, out, recipe, own)
        assert nothing["update"]["chosen"] == 0
        assert rlpost.verify(out)["ok"]
        states = [json.loads((top / one).read_text()) for one in ("state.json", "other.json")]
        states[0].pop("step", None)
        assert states[0] == states[1]
        return what


LAW = int(os.environ.get("LAW", "0"))  # examples, by hand


@settings(max_examples=LAW or 8, deadline=None, phases=[Phase.generate] if LAW else [*Phase])
@given(histories(), law_recipes(), st.sampled_from([True, True, False]))
def test_an_update_equals_one_run_over_all_files_or_is_an_error(case, options, steps):
    what = law(case, options, steps=steps)
    if LAW:
        print(what, options)  # noqa: T201


# What is written, and what is left alone


@pytest.fixture
def trained(tmp_path):
    """Three files of a step each, and their outputs."""
    top = tmp_path / "in"
    rows = big(60)
    save(to_table(rows), [row.batch for row in rows], top)
    assert counts(update(tmp_path)) == {"new": 3}
    return tmp_path


def update(top, recipe=None, source="in", **options):
    return rlpost.advantages(top / source, top / "out", recipe, replace(UPDATE, **options))


def counts(summary):
    facts = summary["update"]
    assert facts["chosen"] == sum(facts["reasons"].values())
    return {reason: count for reason, count in facts["reasons"].items() if count}


def stamps(top):
    return {path.name: path.stat().st_ino for path in sorted((top / "out").glob("*.parquet"))}


def part(top, number):
    return top / "in" / f"part-{number}.parquet"


def test_nothing_to_do_writes_nothing_and_imports_no_torch(trained):
    before = stamps(trained)
    script = (
        "import sys; from rlpost.cli.main import _run\n"
        f"sys.argv = ['rlpost', 'advantages', '{trained}/in', '{trained}/out', '--update']\n"
        "print(_run(), 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("0 False\n", "0 of 3 files to write\n")
    assert stamps(trained) == before
    assert sorted(path.name for path in (trained / "out").iterdir()) == sorted(before)


def test_a_second_update_at_the_same_time_is_an_error(trained):
    with (
        FileLock([trained / "out" / MARKER]),
        pytest.raises(BusyError, match="another rlpost process"),
    ):
        update(trained)
    assert counts(update(trained)) == {}


def test_objects_of_a_store_are_inputs(trained, s3):
    for number in (0, 1):
        s3.put(f"in/part-{number}.parquet", part(trained, number).read_bytes())
    for expected in ({"new": 2}, {}):
        found = rlpost.advantages("s3://lab/in/", trained / "remote", options=UPDATE)
        assert counts(found) == expected
    s3.put("in/part-1.parquet", part(trained, 1).read_bytes() + b"")
    s3.put("in/part-2.parquet", part(trained, 2).read_bytes())
    found = rlpost.advantages("s3://lab/in/", trained / "remote", options=UPDATE)
    assert counts(found)["new"] == 1
    for path in (trained / "remote").iterdir():
        got, want = pq.read_table(path), pq.read_table(trained / "out" / path.name)
        assert got.equals(want)


def test_new_and_changed_files_are_written_alone(trained):
    before = stamps(trained)
    os.utime(part(trained, 1), ns=(1, 1))
    table = pq.read_table(part(trained, 2))
    steps = pa.array([7] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, part(trained, 7))
    found = update(trained)
    assert counts(found) == {"new": 1, "changed": 1}
    assert found["inputs"] == [str(part(trained, 1)), str(part(trained, 7))]
    after = stamps(trained)
    assert {name for name in before if after[name] != before[name]} == {"part-1.parquet"}
    assert rlpost.verify(trained / "out")["ok"]


def test_another_recipe_another_estimator_file_and_other_semantics_are_written_again(
    trained, monkeypatch
):
    assert counts(update(trained, rlpost.Recipe(estimator="rloo"))) == {"recipe": 3}
    own = trained / "own.py"
    for factor in (1, 2):
        own.write_text(f"def own(rewards):\n    return {factor} * rewards\n")
        recipe = rlpost.Recipe(estimator=f"{own}:own")
        assert counts(update(trained, recipe)) == {"recipe": 3}
        assert counts(update(trained, recipe)) == {}
    monkeypatch.setattr("rlpost.pipeline.update.files.SEMANTICS", 99)
    assert counts(update(trained, recipe)) == {"semantics": 3}


def test_the_defaults_of_a_recipe_written_out_are_the_same_recipe(trained):
    found = update(trained, rlpost.Recipe(estimator="grpo", gamma=1.0))
    assert counts(found) == {}
    assert "0 of 3 files to write" in found._repr_html_()


def test_an_output_without_a_fingerprint_is_written_again_and_a_foreign_file_never(trained):
    plain = replace(PLAIN, overwrite=True)
    rlpost.advantages(trained / "in", trained / "out", options=plain)
    assert b"rlpost.source" not in pq.read_metadata(trained / "out/part-1.parquet").metadata
    assert counts(update(trained)) == {"unknown": 3}
    for foreign in (pq.read_table(part(trained, 1)), None):
        target = trained / "out/part-1.parquet"
        target.unlink()
        if foreign is None:
            target.write_text("not Parquet")
        else:
            pq.write_table(foreign, target)
        before = target.read_bytes()
        with pytest.raises(UsageError, match=r"part-1.parquet: exists already, and .* not write"):
            update(trained, overwrite=True)
        assert target.read_bytes() == before


def test_what_an_input_says_of_its_own_input_is_no_part_of_the_output(trained):
    """An enriched file as the input of a run, and of an update."""
    recipe = rlpost.Recipe(estimator="rloo", replace=True)
    rlpost.advantages(trained / "out", trained / "again", recipe, PLAIN)
    for path in (trained / "again").iterdir():
        assert b"rlpost.source" not in pq.read_metadata(path).metadata
        assert b"rlpost.source" not in (pq.read_schema(path).metadata or {})
    own = trained / "third"
    rlpost.advantages(trained / "out", own, recipe, UPDATE)
    entry = json.loads(pq.read_metadata(own / "part-1.parquet").metadata[b"rlpost.source"])
    assert entry["file"] == "../out/part-1.parquet"


def test_half_written_files_are_left_alone_until_they_are_whole(trained):
    whole = part(trained, 2).read_bytes()
    for size in (0, 1, 9, len(whole) // 2, len(whole) - 1):
        part(trained, 9).write_bytes(whole[:size])
        found = update(trained)
        assert counts(found) == {}
        assert found["update"]["incomplete"] == [str(part(trained, 9))]
    part(trained, 9).write_bytes(whole)
    with pytest.raises(UsageError, match=r"part-9.parquet and .*part-2.parquet: share"):
        update(trained)  # it has the same groups
    assert counts(update(trained, overwrite=True)) == {"new": 1, "coupled": 1}


def test_the_output_of_an_input_that_vanished_is_kept_or_deleted(trained):
    part(trained, 0).unlink()
    kept = trained / "out/part-0.parquet"
    found = update(trained)
    assert counts(found) == {}
    assert found["update"]["missing_inputs"] == [str(kept)]
    pq.write_table(pq.read_table(kept), trained / "out/mine.parquet")  # no output of an update
    found = update(trained, delete=True)
    assert (found["update"]["missing_inputs"], found["update"]["deleted"]) == ([], [str(kept)])
    assert not kept.exists()
    assert (trained / "out/mine.parquet").exists()
    with pytest.raises(UsageError, match="--delete: needs --update"):
        rlpost.advantages(trained / "in", trained / "x", options=rlpost.Options(delete=True))


def test_outputs_that_were_computed_with_a_deleted_one_are_named(tmp_path):
    (tmp_path / "in").mkdir()
    table = pa.table({"prompt_id": [*"aabb"], "reward": [1.0, 0.0, 1.0, 0.0]})
    for index in (0, 1):  # each has a response of each prompt
        pq.write_table(table.take([index, 2 + index]), part(tmp_path, index))
    update(tmp_path)
    part(tmp_path, 1).unlink()
    found = update(tmp_path, delete=True)["update"]
    other = tmp_path / "out/part-0.parquet"
    assert found["computed_with_deleted"] == [str(other)]
    other.unlink()
    update(tmp_path)
    assert rlpost.verify(tmp_path / "out").ok


def test_outputs_of_another_input_and_an_empty_input_are_not_deleted(trained):
    (trained / "other").mkdir()
    with pytest.raises(UsageError, match="--delete: IN has no files"):
        update(trained, source="other", delete=True)
    part(trained, 1).rename(trained / "other/b.parquet")
    found = update(trained, source="other", delete=True)
    assert found["update"]["deleted"] == [str(trained / "out/part-1.parquet")]
    assert {*stamps(trained)} == {"b.parquet", "part-0.parquet", "part-2.parquet"}
    assert counts(update(trained, source="in/part-*.parquet")) == {}


def test_a_new_file_that_shares_a_group_is_an_error_that_names_both(trained):
    table = pq.read_table(part(trained, 1))
    pq.write_table(table.slice(0, 3), part(trained, 3))
    before = stamps(trained)
    group, step = table["prompt_id"][0], table["step"][0]
    with pytest.raises(UsageError) as told:
        update(trained)
    for text in (
        f"{part(trained, 3)} and {part(trained, 1)}: share the prompt group ",
        f" of step {step}, and --norm-mean group",
        "--overwrite",
    ):
        assert text in str(told.value)
    assert str(group) in str([row.group for row in big(60)])
    assert stamps(trained) == before
    assert counts(update(trained, rlpost.Recipe(estimator="raw"))) == {"new": 1, "recipe": 3}


def test_without_steps_a_recipe_of_batches_names_the_column_to_give(tmp_path):
    rows = big(40)
    table = to_table(rows, without=("step",))
    halves = [index // 20 for index in range(40)]
    save(table, [0 if half == 0 else -1 for half in halves], tmp_path / "in")
    recipe = rlpost.Recipe(estimator="raw", norm_mean="batch", norm_std="batch")
    update(tmp_path, recipe)
    save(table, halves, tmp_path / "in")
    with pytest.raises(UsageError, match=r"without steps all files are one batch.*--map batch=COL"):
        update(tmp_path, recipe)
    assert counts(update(tmp_path, recipe, overwrite=True)) == {"new": 1, "coupled": 1}


def test_a_column_that_not_all_files_have_is_an_error(trained):
    table = pq.read_table(part(trained, 2)).drop_columns(["ref_log_probs"])
    steps = pa.array([9] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, part(trained, 9))
    with pytest.raises(UsageError, match=r"computed with `ref_log_probs` as ref_log_probs, and"):
        update(trained)
    assert counts(update(trained, overwrite=True)) == {"new": 1, "coupled": 3}


def test_carried_statistics_need_a_state_file_and_steps_in_order(trained):
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running", norm_std="running")
    top = trained / "second"
    rows = big(60)
    save(to_table(rows), [-1 if row.batch == 1 else row.batch for row in rows], top / "in")
    with pytest.raises(UsageError, match=r"--update: running reward statistics .*needs --state"):
        update(top, recipe)
    state = {"state": top / "state.json"}
    assert counts(update(top, recipe, **state)) == {"new": 2}
    assert json.loads((top / "state.json").read_text())["step"] == "2"
    save(to_table(rows), [row.batch for row in rows], top / "in")
    for over in (False, True):
        with pytest.raises(UsageError, match=r"part-1.*has step 1, and .*part-2.*: start over"):
            update(top, recipe, **state, overwrite=over)
    part(top, 1).unlink()
    os.utime(part(top, 0), ns=(5, 5))
    with pytest.raises(UsageError, match=r"part-0.parquet: changed, .*start over"):
        update(top, recipe, **state)
    shutil.rmtree(top / "out")
    with pytest.raises(UsageError, match=r"has step 0, and the state file has step 2"):
        update(top, recipe, **state)
    (top / "state.json").unlink()
    assert counts(update(top, recipe, **state)) == {"new": 2}
    (top / "state.json").unlink()
    save(to_table(rows), [3 if row.batch == 1 else row.batch for row in rows], top / "in")
    with pytest.raises(UsageError, match=r"state.json: does not exist, and .* 2 files"):
        update(top, recipe, **state)


def test_carried_statistics_wait_for_an_incomplete_file_before(tmp_path):
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running")
    rows, state = big(60), tmp_path / "state.json"
    save(to_table(rows), [row.batch for row in rows], tmp_path / "in")
    whole = part(tmp_path, 1).read_bytes()
    for size, expected, waiting in ((9, {"new": 1}, 1), (99, {}, 1), (len(whole), {"new": 2}, 0)):
        part(tmp_path, 1).write_bytes(whole[:size])
        found = update(tmp_path, recipe, state=state)
        assert counts(found) == expected
        assert found["update"]["waiting"] == [str(part(tmp_path, 2))] * waiting
    rlpost.advantages(tmp_path / "in", tmp_path / "whole", recipe, PLAIN)
    for path in (tmp_path / "whole").iterdir():
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "out" / path.name))


def test_hive_partitions_are_steps(tmp_path):
    rows = big(40)
    table = to_table(rows, without=("step",))
    for step in (1, 2):
        folder = tmp_path / f"in/step={step}"
        folder.mkdir(parents=True)
        pq.write_table(table.slice(20 * step - 20, 20), folder / "a.parquet")
        recipe = rlpost.Recipe(estimator="reinforce_pp")
        assert counts(update(tmp_path, recipe)) == {"new": 1}
        entry = pq.read_metadata(tmp_path / f"out/step={step}/a.parquet").metadata
        assert json.loads(entry[b"rlpost.source"])["file"] == f"../../in/step={step}/a.parquet"
    rlpost.advantages(tmp_path / "in", tmp_path / "whole", recipe, PLAIN)
    for step in (1, 2):
        name = f"step={step}/a.parquet"
        got, want = (pq.ParquetFile(tmp_path / top / name).read() for top in ("out", "whole"))
        assert got.equals(want)


def test_dumps_are_converted_only_where_they_are_new(tmp_path):
    top = tmp_path / "in"
    top.mkdir()

    def dump(step):
        rows = [
            {"input": f"q{i // 2}", "output": "a", "score": i % 3, "step": step} for i in range(6)
        ]
        return "".join(json.dumps(row) + "\n" for row in rows)

    (top / "1.jsonl").write_text(dump(1))
    (top / "config.json").write_text("{}")
    (top / "2.jsonl").write_text(dump(2)[:-40])
    lines = []
    reporter = SilentReporter(lines.append)
    options = {
        "recipe": rlpost.Recipe(estimator="dr_grpo"),
        "options": replace(UPDATE, reporter=reporter),
    }
    found = api.advantages([top], tmp_path / "out", **options)
    assert counts(found) == {"new": 1}
    assert found["inputs"] == [str(top / "1.jsonl")]
    assert found["update"]["incomplete"] == [str(top / "2.jsonl")]
    assert found["update"]["skipped"] == [str(top / "config.json")]
    (top / "2.jsonl").write_text(dump(2)[:-1])  # a last line without its break is whole
    assert counts(api.advantages([top], tmp_path / "out", **options)) == {"new": 1}
    assert [line.partition(":")[0] for line in lines] == [str(top / f"{n}.jsonl") for n in (1, 2)]
    assert counts(api.advantages([top], tmp_path / "out", **options)) == {}
    (top / "2.jsonl").write_text(dump(2).replace('"score": 2', '"score": "x"'))
    with pytest.raises(DataError, match=r"in/2\.jsonl"):
        api.advantages([top], tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("options", "out", "text"),
    [
        ({"resume": True}, "out", "--update with --resume: is not supported"),
        ({"engine": "ray"}, "out", "--update with --engine ray: is not supported"),
        ({}, "out.parquet", "--update needs a directory as OUT"),
        ({}, "s3://lab/out/", "--update needs a local directory as OUT"),
        ({}, "in", "OUT and IN are the same directory"),
    ],
)
def test_what_an_update_does_not_support_is_an_error(trained, options, out, text):
    target = out if "://" in out else trained / out
    with pytest.raises(UsageError, match=text):
        rlpost.advantages(trained / "in", target, options=replace(UPDATE, **options))
    with pytest.raises(UsageError, match="Table came"):
        rlpost.advantages(pa.table({}), trained / "x", options=UPDATE)


def test_parquet_may_have_any_name(trained):
    """As a single file or by a glob, as for other runs."""
    part(trained, 1).rename(trained / "in/part-1.pq")
    for source in ("in/part-1.pq", "in/*.pq"):
        shutil.rmtree(trained / "out")
        assert counts(update(trained, source=source)) == {"new": 1}
        assert counts(update(trained, source=source)) == {}
        assert (trained / "out/part-1.pq").exists()


def test_out_may_be_inside_in(trained):
    out = trained / "in/enriched"
    for expected in ({"new": 3}, {}):
        found = rlpost.advantages(trained / "in", out, options=UPDATE)
        assert counts(found) == expected


def test_a_run_that_was_killed_is_repeated_if_a_file_is_missing(trained):
    """The marker names a file that is neither published nor complete beside its target."""
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running", norm_std="running")
    top, state = trained / "second", trained / "second/state.json"
    rows = big(60)
    save(to_table(rows), [row.batch for row in rows], top / "in")
    update(top, recipe, state=state)
    after, files = state.read_text(), {path.name: path for path in (top / "out").iterdir()}
    facts = {
        name: ["gone", path.stat().st_size, path.stat().st_mtime_ns] for name, path in files.items()
    }
    files["part-1.parquet"].unlink()
    saved = {"path": str(state), "before": None, "after": after}
    (top / "out" / MARKER).write_text(json.dumps({"files": facts, "state": saved}))
    with pytest.raises(UsageError, match=r"--state .*: .*had --state .*second/state.json"):
        update(top, recipe, state=trained / "other.json")
    assert counts(update(top, recipe, state=state)) == {"stopped": 3}
    assert state.read_text() == after
    assert counts(update(top, recipe, state=state)) == {}
