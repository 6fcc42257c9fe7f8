"""`--skip-existing`: each file by itself; what is up to date is not written again."""

from __future__ import annotations

import os
import signal
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked_runs import ForkedRuns
from runs import loads, rollout, run, save, strict_json

import rlpost
from rlpost.errors import InputsError, UsageError
from rlpost.pipeline import existing

MANY = pytest.param(int(os.environ.get("RLPOST_KILLS", "300")), marks=pytest.mark.nightly)
OPTIONS = rlpost.Options(skip_existing=True)
AGAIN = rlpost.Options(skip_existing=True, overwrite=True)


def step(number, **columns):
    """Return the rollouts of a step, with other columns."""
    table = rollout().append_column("step", pa.array([number] * 12))
    for name, values in columns.items():
        table = table.drop_columns([name] if name in table.column_names else [])
        table = table.append_column(name, pa.array(values))
    return table


@pytest.fixture
def top(tmp_path):
    """A folder of three steps."""
    for number in range(3):
        save(step(number), tmp_path / "in" / f"{number}.parquet")
    return tmp_path


def write(top, *words, code=0):
    """Run the command; return the part of its summary, and what it printed."""
    ran = run("advantages", top / "in", top / "out", "--skip-existing", "--summary-json", "-",
              *words)  # fmt: skip
    assert ran.code == code, ran.err
    return strict_json(ran.out)["skip_existing"] if ran.out else {}, ran.err


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}


def test_one_damaged_file_among_fifty_is_named_last_and_the_others_are_written(tmp_path):
    for number in range(50):
        save(step(number), tmp_path / "in" / f"{number:02}.parquet")
    bad = tmp_path / "in" / "17.parquet"
    chunk, data = pq.read_metadata(bad).row_group(0).column(1), bytearray(bad.read_bytes())
    data[chunk.dictionary_page_offset or chunk.data_page_offset] ^= 0xFF
    bad.write_bytes(data)
    facts, err = write(tmp_path, code=3)
    assert (facts["written"], facts["failed"]) == (49, [str(bad)])
    assert err.splitlines()[-1].endswith(f"1 of 50 inputs not written: {bad}")
    names = [f"{number:02}.parquet" for number in range(50) if number != 17]
    before = times(tmp_path / "out")
    assert [*contents(tmp_path / "out")] == names
    facts, err = write(tmp_path, code=3)
    assert (facts["written"], len(facts["up_to_date"])) == (0, 49)
    assert err.splitlines()[-1].endswith(str(bad))
    assert times(tmp_path / "out") == before
    save(step(17), bad)
    assert write(tmp_path)[0]["written"] == 1
    assert write(tmp_path)[0]["written"] == 0
    assert run("verify", tmp_path / "out").code == 0
    bad.write_bytes(data)
    with pytest.raises(InputsError) as error:
        rlpost.advantages(tmp_path / "in", tmp_path / "out", None, AGAIN)
    assert error.value.summary["responses"] == 0


@pytest.mark.parametrize("words", [[], ["--estimator", "raw"], ["--whiten-advantages"]])
def test_numbers_and_summary_are_those_of_one_run_over_all_files(top, words):
    save(step(7, domain=["a", "b"] * 6), top / "in" / "0.parquet")
    save(step(3, domain=["c"] * 12), top / "in" / "1.parquet")
    save(step(5, domain=["a"] * 12), top / "in" / "2.parquet")
    paths = {name: top / f"{name}.json" for name in ("one", "each")}
    for name, flags in (("one", []), ("each", ["--skip-existing"])):
        command = ["advantages", top / "in", top / name, *flags, *words, "-q"]
        assert run(*command, "--summary-json", paths[name]).code == 0
    joint, each = (loads(path.read_text()) for path in paths.values())
    assert each.pop("skip_existing") == {
        "written": 3, "up_to_date": [], "failed": []
    }  # fmt: skip
    differing = {name for name in {**joint, **each} if joint.get(name) != each.get(name)}
    assert differing == {"outputs", "bytes", "seconds"}
    assert each["facts"]["kept"]["step"]["label"] == [3, 5, 7]
    for name in ("0.parquet", "1.parquet", "2.parquet"):
        assert pq.read_table(top / "one" / name).equals(pq.read_table(top / "each" / name))


HALF = """
def half(token_rewards, offsets):
    \"\"\"The reward, divided\"\"\"
    return token_rewards / {}
"""


def test_other_recipes_inputs_and_own_code_make_outputs_stale(top, monkeypatch):
    code = top / "own.py"
    code.write_text(HALF.format(2))
    words = ["--estimator", f"{code}:half"]
    assert write(top, *words)[0]["written"] == 3

    def stale(*words, count=3):
        before = contents(top / "out")
        _, err = write(top, *words, code=2)
        assert "--overwrite  # writes stale outputs again" in err
        assert contents(top / "out") == before
        facts, _ = write(top, *words, "--overwrite")
        assert (facts["written"], len(facts["up_to_date"])) == (count, 3 - count)
        assert write(top, *words)[0]["written"] == 0
        return err

    assert "of another recipe" in stale("--estimator", "rloo")
    assert "of another recipe" in stale(*words)
    code.write_text(HALF.format(4))
    assert "of another recipe" in stale(*words)
    save(step(9), top / "in" / "1.parquet")
    assert "1.parquet: exists already, of an earlier version" in stale(*words, count=1)
    os.utime(top / "in" / "2.parquet", ns=(1, 1))
    assert "2.parquet: exists already, of an earlier version" in stale(*words, count=1)
    monkeypatch.setattr(existing, "SEMANTICS", 10**6)
    assert "of other semantics" in stale(*words)
    monkeypatch.undo()
    stale(*words)
    (top / "out" / "0.parquet").unlink()
    assert write(top, *words)[0]["written"] == 1


@pytest.mark.parametrize("entry", [None, b"[]", b"{" * 9999, b'{"file": 3}'])
def test_outputs_without_a_valid_entry_are_stale_and_files_of_others_stay(top, entry):
    assert run("advantages", top / "in", top / "out", "-q").code == 0
    for path in (top / "out").iterdir():
        table = pq.read_table(path)
        metadata = {**table.schema.metadata, **({b"rlpost.source": entry} if entry else {})}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    assert "exists already, " in write(top, code=2)[1]
    assert write(top, "--overwrite")[0]["written"] == 3
    save(step(1), top / "out" / "1.parquet")
    assert "rlpost did not write" in write(top, "--overwrite", code=2)[1]


def test_files_that_are_incomplete_or_without_rows_are_named_and_written_later(top):
    whole, path = (top / "in" / "1.parquet").read_bytes(), top / "in" / "1.parquet"
    empty = top / "in" / "3.parquet"
    pq.write_table(step(3).slice(0, 0), empty)
    for data in (b"", whole[:9], whole[:-1], b"text of a dump"):
        path.write_bytes(data)
        assert write(top, code=3)[0]["failed"] == [str(path), str(empty)]
        assert [*contents(top / "out")] == ["0.parquet", "2.parquet"]
    path.write_bytes(whole)
    empty.unlink()
    assert write(top)[0]["written"] == 1
    with pytest.raises(UsageError, match="skip_existing"):
        rlpost.advantages(rollout(), top / "out", None, OPTIONS)


def test_a_file_that_changes_while_others_are_written_is_named(top, monkeypatch):
    usual = existing.run.write

    def changing(source, *others):
        os.utime(top / "in" / "2.parquet", ns=(1, 1))
        return usual(source, *others)

    monkeypatch.setattr(existing.run, "write", changing)
    facts, _ = write(top, code=3)
    assert (facts["written"], facts["failed"]) == (2, [str(top / "in" / "2.parquet")])


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    ("words", "unit"),
    [([], "prompt group by `step` and `prompt_id`"), (["--whiten-advantages"], "batch by `step`")],
)
def test_groups_and_batches_over_two_files_are_an_error(top, words, unit, written):
    later = top / "in" / "2.parquet"
    later.unlink()
    if written:
        assert write(top, *words)[0]["written"] == 2
    before = times(top / "out")
    save(step(0), later)
    _, err = write(top, *words, code=2)
    assert f"0.parquet and {later}: share a {unit}" in err
    assert "leave --skip-existing out" in err
    assert times(top / "out") == before
    assert write(top, "--estimator", "raw", "--overwrite")[0]["written"] == (3)


def test_groups_of_one_step_may_be_in_several_files(top):
    for number in range(3):
        prompts = [f"{number}-{row // 4}" for row in range(12)]
        save(step(0, prompt_id=prompts), top / "in" / f"{number}.parquet")
    assert write(top)[0]["written"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--estimator", "raw", "--norm-mean", "running"], "couples all"),
        (["--kl-coef", "0.1", "--kl-target", "0.1:9"], "couples all"),
        (["--estimator", "rae"], "couples all"),
        (["--whiten-advantages", "--numerics", "batch=all"], "couples all"),
        (["--state", "state.json"], "excludes --state"),
        (["--engine", "ray"], "excludes --engine ray"),
        (["--plan"], "--plan: excludes --skip-existing"),
        (["--steps", "1:"], "excludes --skip-existing"),
    ],
)
def test_what_needs_all_files_is_an_error(top, words, said):
    _, err = write(top, *words, code=2)
    assert said in err
    assert not (top / "out").exists()


def test_without_steps_all_files_are_one_batch(top):
    for path in (top / "in").iterdir():
        save(pq.read_table(path).drop_columns("step"), path)
    assert "--map batch=COLUMN" in write(top, "--whiten-advantages", code=2)[1]


def test_objects_are_known_by_their_etags(s3, top):
    urls = [s3.put(f"in/{number}.parquet", (top / "in" / f"{number}.parquet").read_bytes())
            for number in range(3)]  # fmt: skip

    def written(options=OPTIONS):
        found = rlpost.advantages("s3://lab/in/", "s3://lab/out/", None, options)
        return found["skip_existing"]["written"]

    assert (written(), written()) == (3, 0)
    s3.put("in/1.parquet", (top / "in" / "0.parquet").read_bytes().replace(b"p1", b"p9"))
    with pytest.raises(UsageError, match=r"1\.parquet: exists already, of an earlier version"):
        written()
    assert len(urls) == 3


@pytest.fixture(scope="module")
def forked_runs():
    one = ForkedRuns()
    yield one
    one.close()


@pytest.mark.parametrize("kills", [8, MANY])
def test_a_killed_run_leaves_old_or_complete_files_and_the_same_command_ends_it(
    forked_runs, top, tmp_path, kills
):
    words = ["advantages", top / "in", "{out}", "--skip-existing", "--overwrite", "-q"]

    def command(out, recipe):
        return [*(str(out) if word == "{out}" else word for word in words), "--estimator", recipe]

    wanted, calls = {}, {}
    for recipe in ("grpo", "rloo"):
        counted = tmp_path / f"count-{recipe}"
        counted.mkdir()
        ended = forked_runs.run(*command(counted, recipe), call=0, fault="kill")
        assert ended.code == 0, ended.err
        wanted[recipe], calls[recipe] = contents(counted), ended.calls
    assert not {*wanted["grpo"].values()} & {*wanted["rloo"].values()}
    chance, out, killed = Random(5), tmp_path / "out", 0  # noqa: S311
    out.mkdir()
    recipe, old = "grpo", {}
    for _ in range(kills):
        ended = forked_runs.run(
            *command(out, recipe), call=chance.randrange(1, calls[recipe] + 1), fault="kill"
        )
        assert ended.code in (0, -signal.SIGKILL), ended.err
        killed += ended.code != 0
        for name, data in contents(out).items():
            assert data in (old.get(name), wanted[recipe][name]), name
        if chance.random() < 0.5 or ended.code == 0:  # the job is ended, and another one begins
            ended = forked_runs.run(*command(out, recipe))
            assert (ended.code, contents(out)) == (0, wanted[recipe]), ended.err
            assert not [path for path in out.iterdir() if path.suffix == ".tmp"]
            assert {path.name for path in out.iterdir()} == {*wanted[recipe]}
            old, recipe = wanted[recipe], "rloo" if recipe == "grpo" else "grpo"
            if chance.random() < 0.5:
                for path in out.iterdir():
                    path.unlink()
                old = {}
    assert killed >= kills / 2


def test_inputs_below_out_are_inputs_unless_out_is_in_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(rollout(), tmp_path / "dumps" / "a.parquet")
    assert run("advantages", "dumps", ".", "--skip-existing").code == 0
    assert "advantages" in pq.read_schema("a.parquet").names
    ran = run("advantages", "dumps", "dumps", "--skip-existing")
    assert ran.code == 2
    assert "dumps/a.parquet" in ran.err
    assert run("advantages", "dumps", "dumps/out", "--skip-existing").code == 0
    again = run("advantages", "dumps", "dumps/out", "--skip-existing")
    assert (again.code, "1 file up to date" in again.err) == (0, True)


def test_an_output_that_another_run_wrote_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    save(rollout(), tmp_path / "in" / "a.parquet")
    out = tmp_path / "out" / "a.parquet"
    check = existing._check_separate

    def meanwhile(*arguments):
        plans = check(*arguments)
        save(rollout(), out)
        return plans

    monkeypatch.setattr(existing, "_check_separate", meanwhile)
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--skip-existing")
    assert ran.code == 4
    assert "another run wrote it meanwhile" in ran.err
    assert pq.read_table(out).equals(rollout())
