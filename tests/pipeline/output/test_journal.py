"""`--resume`: a stopped run goes on where it was, to the same bytes, or says why it can't."""

from __future__ import annotations

import json
import os
from random import Random

import pyarrow.parquet as pq
import pytest
from forked_runs import ForkedRuns
from runs import rollout, run, save, strict_json

import rlpost
from rlpost.io.locks import LOCK_NAME
from rlpost.io.own_files import seal, unseal
from rlpost.pipeline import run as running
from rlpost.pipeline.output import journal as resume
from rlpost.pipeline.output.journal import JOURNAL, JournalEntries

FILES = 6
CI = "CI" in os.environ


@pytest.fixture(scope="module")
def forked_runs():
    one = ForkedRuns()
    yield one
    one.close()


def table():
    steps = [1 + i // 16 % 3 for i in range(FILES * 32)]
    return rollout(FILES * 32, 8).append_column("step", [steps])


@pytest.fixture
def inputs(tmp_path):
    """Files whose groups span them."""
    whole = table()
    for index in range(FILES):
        save(whole.slice(index * 32, 32), tmp_path / "in" / f"{index}.parquet", rows=10)
    return tmp_path / "in"


@pytest.fixture
def stopped(monkeypatch):
    """Stops runs when they have completed some files."""

    def stop(after, *words):
        usual, made = running.fill_file, []

        def filled(*arguments):
            if len(made) == after:
                raise KeyboardInterrupt
            made.append(usual(*arguments))
            return made[-1]

        with monkeypatch.context() as patched:
            patched.setattr(running, "fill_file", filled)
            return run(*words)

    return stop


def command(inputs, out, *words):
    return ("advantages", inputs, out, "-q", "--chunk-tokens", "40", *words)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def counting(monkeypatch):
    """Notes which files are written."""
    usual, written = running.fill_file, []

    def filled(engine, index, *rest):
        written.append(index)
        return usual(engine, index, *rest)

    monkeypatch.setattr(running, "fill_file", filled)
    return written


@pytest.fixture
def whole(inputs, tmp_path):
    """What a run that nothing stops writes, and its summary."""
    out, told = tmp_path / "whole", tmp_path / "whole.json"
    assert run(*command(inputs, out, "--summary-json", told)).code == 0
    return contents(out), strict_json(told.read_text())


def test_without_a_stop_nothing_of_it_is_seen(inputs, whole, tmp_path):
    assert run(*command(inputs, tmp_path / "out", "--resume")).code == 0
    assert contents(tmp_path / "out") == whole[0]


@pytest.mark.parametrize("after", [1, 3, FILES - 1])
def test_a_stopped_run_goes_on_and_gives_the_same(
    inputs, whole, stopped, monkeypatch, tmp_path, after
):
    out, told = tmp_path / "out", tmp_path / "told.json"
    assert stopped(after, *command(inputs, out, "--resume")).code == 130
    names = [name for name in contents(out) if name != JOURNAL]
    assert len(names) == after
    assert all(name.startswith(".") for name in names), "nothing is published yet"
    written = counting(monkeypatch)
    assert run(*command(inputs, out, "--resume", "--summary-json", told)).code == 0
    assert written == list(range(after, FILES))
    assert contents(out) == whole[0]
    summary = strict_json(told.read_text())
    for manner in ("bytes", "seconds", "outputs"):
        del summary[manner], whole[1][manner]
    assert summary == whole[1]


def test_a_run_may_be_stopped_again_and_again(inputs, whole, stopped, tmp_path):
    out = tmp_path / "out"
    for _ in range(FILES - 1):
        assert stopped(1, *command(inputs, out, "--resume")).code == 130
    assert run(*command(inputs, out, "--resume")).code == 0
    assert contents(out) == whole[0]


def test_a_run_that_was_stopped_before_its_first_file_leaves_nothing(inputs, stopped, tmp_path):
    assert stopped(0, *command(inputs, tmp_path / "out", "--resume")).code == 130
    assert not (tmp_path / "out").exists()


def test_kills_at_random_moments_and_resumes_come_to_the_same(forked_runs, inputs, whole, tmp_path):
    """At every call that touches a file it is killed, and goes on to the next."""
    chance, out = Random(3), tmp_path / "out"  # noqa: S311
    done = 0
    for _ in range(30 if CI else 20):
        ended = forked_runs.run(
            *command(inputs, out, "--resume", "--overwrite"),
            call=chance.randrange(5, 90), fault="kill",
        )  # fmt: skip
        assert ended.code in (0, -9), ended.err
        done += ended.code == 0
        for name, data in contents(out).items() if out.exists() else ():
            assert name.startswith(".") or data == whole[0][name]
        if ended.code == 0:
            assert contents(out) == whole[0]
            for path in out.iterdir():
                path.unlink()
    assert forked_runs.run(*command(inputs, out, "--resume", "--overwrite")).code == 0
    assert contents(out) == whole[0]


def test_a_run_that_was_killed_while_it_published_goes_on(inputs, whole, monkeypatch, tmp_path):
    """Some files have their names already: they are no reason to refuse."""
    out = tmp_path / "out"
    usual, published = os.replace, []

    def replace(*arguments, **options):
        if len(published) == 2:
            raise KeyboardInterrupt
        published.append(arguments)
        return usual(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        assert run(*command(inputs, out, "--resume")).code == 130
    assert {name for name in contents(out) if not name.startswith(".")} == {
        "0.parquet", "1.parquet",
    }  # fmt: skip
    written = counting(monkeypatch)
    assert run(*command(inputs, out, "--resume")).code == 0
    assert written == []
    assert contents(out) == whole[0]


def test_a_line_that_was_cut_short_counts_for_nothing(inputs, whole, stopped, tmp_path):
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    journal = out / JOURNAL
    data = journal.read_bytes()
    journal.write_bytes(data[:-7])
    assert len(JournalEntries.read(journal).finished) == 2
    assert stopped(2, *command(inputs, out, "--resume")).code == 130
    assert len(JournalEntries.read(journal).finished) == 4
    assert run(*command(inputs, out, "--resume")).code == 0
    assert contents(out) == whole[0]


@pytest.mark.parametrize("line", [0, 2])
@pytest.mark.parametrize("damage", ["byte", "deep", "not UTF-8", "another type"])
def test_lines_from_a_damaged_one_on_count_for_nothing(
    inputs, whole, stopped, tmp_path, line, damage
):
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    lines = (out / JOURNAL).read_bytes().splitlines(keepends=True)
    lines[line] = {
        "byte": lines[line][:90] + bytes([lines[line][90] ^ 1]) + lines[line][91:],
        "deep": b"[" * 100_000 + b"\n",
        "not UTF-8": b"\xff\n",
        "another type": seal({"journal": [], "file": [], "totals": 3}).encode() + b"\n",
    }[damage]
    (out / JOURNAL).write_bytes(b"".join(lines))
    assert len(JournalEntries.read(out / JOURNAL).finished) == max(line - 1, 0)
    assert run(*command(inputs, out, "--resume")).code == 0
    assert contents(out) == whole[0]


@pytest.mark.parametrize(
    "staged", ["victim.parquet", "../victim.parquet", "1.parquet", "a/b", ".."]
)
def test_a_journal_names_only_temporary_files_of_its_outputs(
    inputs, whole, stopped, tmp_path, staged
):
    """A file of the same size and footer as a complete one."""
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    first = JournalEntries.read(out / JOURNAL).finished[0].staged
    victims = [out / "victim.parquet", tmp_path / "victim.parquet"]
    for path in victims:
        path.write_bytes((out / first).read_bytes())
    identity, one, *others = (out / JOURNAL).read_bytes().splitlines()
    entry = unseal(one) | {"staged": staged}
    lines = [identity, seal(entry).encode(), *others, b""]
    (out / JOURNAL).write_bytes(b"\n".join(lines))
    assert run(*command(inputs, out, "--resume")).code == 0
    assert all(path.exists() for path in victims)
    victims[0].unlink()
    assert contents(out) == whole[0]


def test_a_pipe_in_the_place_of_a_journal_is_an_error(inputs, tmp_path):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / JOURNAL)
    ran = run(*command(inputs, tmp_path / "out", "--resume"))
    assert (ran.code, "not a regular file" in ran.err) == (4, True)


@pytest.mark.parametrize("harm", ["gone", "cut", "another footer"])
def test_a_complete_file_that_is_not_as_it_was_is_written_again(
    inputs, whole, stopped, monkeypatch, tmp_path, harm
):
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    path = out / JournalEntries.read(out / JOURNAL).finished[1].staged
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, path.stat().st_size - 1)
    else:
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
    written = counting(monkeypatch)
    assert run(*command(inputs, out, "--resume")).code == 0
    assert written == [1, 3, 4, 5]
    assert contents(out) == whole[0]


def changed_recipe(_):
    return ("--reward-clip", "0.5"), "reward_clip was None and is 0.5"


def changed_columns(_):
    return ("--emit", "returns"), "emit was None and is ['returns']"


def changed_pieces(_):
    return ("--chunk-tokens", "50"), "use --chunk-tokens 40"


def changed_input(inputs):
    save(table().slice(0, 32), inputs / "2.parquet", rows=7)
    return (), "2.parquet was changed"


def touched_input(inputs):
    os.utime(inputs / "5.parquet", ns=(1, 1))
    return (), "5.parquet was changed"


def new_input(inputs):
    save(table().slice(0, 32), inputs / "9.parquet")
    return (), "9.parquet is among the inputs and was not"


def lost_input(inputs):
    (inputs / "4.parquet").unlink()
    return (), "4.parquet was among the inputs and is not"


@pytest.mark.parametrize(
    "change",
    [
        changed_recipe,
        changed_columns,
        changed_pieces,
        changed_input,
        touched_input,
        new_input,
        lost_input,
    ],
)
def test_a_run_that_differs_is_refused_and_told_why(inputs, stopped, tmp_path, change):
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    before = contents(out)
    words, why = change(inputs)
    ran = run(*command(inputs, out, "--resume"), *words)
    assert ran.code == 2
    assert why in ran.err
    assert contents(out) == before


@pytest.mark.parametrize(
    ("name", "value", "field"), [("__version__", "99.0", "rlpost"), ("SEMANTICS", 99, "semantics")]
)
def test_another_version_is_refused(inputs, stopped, monkeypatch, tmp_path, name, value, field):
    stopped(3, *command(inputs, tmp_path / "out", "--resume"))
    before = getattr(resume, name)
    monkeypatch.setattr(resume, name, value)
    ran = run(*command(inputs, tmp_path / "out", "--resume"))
    assert ran.code == 2
    assert f"{field} was {before} and is {value}" in ran.err


def test_an_estimator_of_ones_own_that_changed_is_refused(inputs, stopped, tmp_path):
    own, out = tmp_path / "own.py", tmp_path / "out"
    own.write_text('def half(rewards):\n    """r/2 of the paper"""\n    return rewards / 2\n')
    words = command(inputs, out, "--resume", "--estimator", f"{own}:half")
    assert stopped(3, *words).code == 130
    own.write_text(own.read_text().replace("/ 2", "/ 4"))
    ran = run(*words)
    assert ran.code == 2
    assert "the estimator's file was changed" in ran.err


def test_the_state_is_written_once_and_what_it_was_counts(inputs, stopped, tmp_path):
    out, state, wanted = tmp_path / "out", tmp_path / "state.json", tmp_path / "wanted.json"
    words = ("--norm-mean", "running", "--norm-std", "running", "--estimator", "reinforce")
    assert run(*command(inputs, tmp_path / "a", *words, "--state", wanted)).code == 0
    assert stopped(3, *command(inputs, out, *words, "--state", state, "--resume")).code == 130
    assert not state.exists()
    assert run(*command(inputs, out, *words, "--state", state, "--resume")).code == 0
    assert state.read_bytes() == wanted.read_bytes()
    assert contents(out) == contents(tmp_path / "a")


def test_a_run_without_resume_does_not_throw_away_what_is_complete(
    inputs, whole, stopped, tmp_path
):
    out = tmp_path / "out"
    stopped(3, *command(inputs, out, "--resume"))
    before = contents(out)
    ran = run(*command(inputs, out))
    assert ran.code == 2
    assert "3 complete files" in ran.err
    assert contents(out) == before
    assert run(*command(inputs, out, "--overwrite")).code == 0
    assert contents(out) == whole[0]


def test_without_resume_a_stop_leaves_nothing(inputs, stopped, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert stopped(3, *command(inputs, out)).code == 130
    assert contents(out) == {}


def test_one_file_is_done_as_ever(inputs, tmp_path):
    for name in ("o.parquet", "o"):
        assert run(*command(inputs / "1.parquet", tmp_path / name, "--resume")).code == 0
        assert pq.read_metadata(tmp_path / name).num_rows == 32


def test_dumps_are_refused(tmp_path):
    dump = tmp_path / "a.jsonl"
    rows = [{"prompt": "p", "reward": 1.0, "response_mask": [1, 1], "prompt_id": "a"}] * 4
    dump.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("advantages", dump, tmp_path / "out.parquet", "-q", "--resume")
    assert ran.code == 2
    assert not (tmp_path / "out.parquet").exists()


def test_a_second_run_with_resume_is_refused_while_the_first_is_at_work(inputs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with rlpost.io.locks.FileLock([out / JOURNAL]):
        assert run(*command(inputs, out, "--resume")).code == 4
    assert LOCK_NAME not in contents(out)


def test_in_python_too(inputs, stopped, whole, tmp_path):
    options = rlpost.Options(chunk_tokens=40, resume=True)
    stopped(2, *command(inputs, tmp_path / "out", "--resume"))
    rlpost.advantages(inputs, tmp_path / "out", options=options)
    assert contents(tmp_path / "out") == whole[0]


def test_what_waits_is_read_again_with_verify(inputs, whole, stopped, monkeypatch, tmp_path):
    out = tmp_path / "out"
    assert stopped(3, *command(inputs, out, "--resume", "--verify")).code == 130
    waiting = sorted(path for path in out.iterdir() if path.name.startswith(".1.parquet"))
    (broken,) = waiting
    data = bytearray(broken.read_bytes())
    data[len(data) // 3] ^= 0xFF  # size and footer are what they were
    broken.write_bytes(data)
    written = counting(monkeypatch)
    assert run(*command(inputs, out, "--resume", "--verify")).code == 0
    assert written == [1, *range(3, FILES)]
    assert contents(out) == whole[0]


def test_what_was_completed_without_verify_is_made_again_with_it(
    inputs, whole, stopped, monkeypatch, tmp_path
):
    out = tmp_path / "out"
    assert stopped(2, *command(inputs, out, "--resume")).code == 130
    written = counting(monkeypatch)
    assert run(*command(inputs, out, "--resume", "--verify")).code == 0
    assert written == [*range(FILES)]
    assert contents(out) == whole[0]
