"""Whatever is wrong is said in one line, with its exit code, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import rollout, run, save

FLOATS = pa.list_(pa.float32())


def tree(top: Path) -> dict[str, bytes | None]:
    """Everything below a directory, hidden or not."""
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else None
        for path in sorted(top.rglob("*"))
    }


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with the good file in.parquet."""
    monkeypatch.chdir(tmp_path)
    save(rollout(), tmp_path / "in.parquet")
    return tmp_path


@pytest.fixture
def refused(here):
    """Runs a job that must end with an exit code and these texts, and change no file.

    It reads log-probs.
    """

    def check(code: int, words: str, *texts: str) -> None:
        before = tree(here)
        ran = run("advantages", *shlex.split(words), "--kl-estimator", "k1")
        assert (ran.code, ran.out) == (code, ""), ran.err
        for text in texts:
            assert text in ran.err
        assert ran.err.startswith("error: ")
        assert tree(here) == before

    return check


def with_value(name: str, row: int, value, kind: pa.DataType | None = None) -> pa.Table:
    values = rollout()[name].to_pylist()
    values[row] = value
    return with_column(name, values, kind or rollout().schema.field(name).type)


def at_9(name: str, value, kind: pa.DataType | None = None) -> pa.Table:
    """The good table with the value of row 9 replaced, which is in the third row group."""
    return with_value(name, 9, value, kind)


def with_column(name: str, values, kind: pa.DataType | None = None) -> pa.Table:
    table = rollout()
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    if name not in table.schema.names:
        return table.append_column(name, array)
    return table.set_column(table.schema.get_field_index(name), name, array)


def without(*names: str, **renamed: str) -> pa.Table:
    """The good table without columns, and with some under other names."""
    table = rollout().drop_columns(list(names))
    return table.rename_columns([renamed.get(name, name) for name in table.schema.names])


# What the data lacks

ROW_9 = "bad.parquet, row 9: "
NAMES = rollout().column_names
OLD = rollout()["old_log_probs"].to_pylist()[9]
BAD_TABLES = {
    "no reward": (without("reward"), "", ["no column for reward", "looked for reward"]),
    "near rewards": (without(reward="rewards"), "",
        ["no column for reward", "candidates: rewards\n", " --map reward=rewards"]),
    "near promt_id": (without(prompt_id="promt_id"), "",
        ["no column for group (estimator grpo)", "--map group=promt_id"]),
    "no list of a role": (rollout().select(["prompt_id", "reward", "response_mask"])
        .rename_columns(["prompt_id", "reward", "kept"]), "",
        ["no column for mask", "no list column sets the number of tokens"]),
    "no lists": (rollout().select(["prompt_id", "reward"]), "--whiten-rewards",
        ["no column for mask (--whiten-rewards, and the input has no tokens)"]),
    "no values": (rollout(), "--estimator gae",
        ["no column for values (estimator gae)", "--map values=COLUMN"]),
    "no reference": (without("ref_log_probs"), "--kl-coef 0.1",
        ["no column for ref_log_probs (--kl-coef 0.1; 0 subtracts no KL)"]),
    "no finish reason": (rollout(), "--drop-truncated", ["finish_reason, truncated"]),
    "lengths": (at_9("old_log_probs", [*OLD, 0.5]), "",
        [ROW_9, "`old_log_probs` has 5 values but `response_mask` has 4", "needs the same length"]),
    "mask length": (at_9("response_mask", [1]), "", [ROW_9, "but `response_mask` has 1"]),
    "null list": (at_9("old_log_probs", None), "",
        [ROW_9, "`old_log_probs` is null", "fill or drop the row"]),
    "null element": (at_9("old_log_probs", [None, *OLD[1:]]), "",
        [ROW_9, "`old_log_probs` has null at token 0", "finite numbers are", "--nonfinite mask"]),
    "nan": (at_9("ref_log_probs", [*OLD[:-1], math.nan]), "",
        [ROW_9, "`ref_log_probs` has nan at token 3"]),
    "inf": (at_9("old_log_probs", [-math.inf, *OLD[1:]]), "",
        [ROW_9, "`old_log_probs` has -inf at token 0"]),
    "nan reward": (at_9("reward", math.nan), "", [ROW_9, "`reward` is nan", "--nonfinite mask"]),
    "null reward": (at_9("reward", None), "", [ROW_9, "`reward` is null"]),
    "null group": (at_9("prompt_id", None), "",
        [ROW_9, "`prompt_id` is null", "fill or drop the row"]),
    "mask of 2": (at_9("response_mask", [2, *OLD[1:]], FLOATS), "",
        [ROW_9, "`response_mask` has 2.0 at token 0", "a mask has 1 for policy tokens"]),
    "null in the mask": (at_9("response_mask", [None] * len(OLD)), "",
        [ROW_9, "`response_mask` has null at token 0"]),
    "string reward": (with_column("reward", ["0.5"] * 12), "",
        ["row 0: `reward` is string; a number per row is needed"]),
    "string mask": (with_column("response_mask", [["1"]] * 12), "",
        ["`response_mask` is list<element: string>", "a list of floats, integers or bools"]),
    "nested log-probs": (with_column("old_log_probs", [[[0.5]]] * 12), "",
        ["`old_log_probs` is list<element: list<"]),
    "binary group": (with_column("prompt_id", [b"a"] * 12), "",
        ["`prompt_id` is binary; a text or an integer"]),
    "fractional group": (with_column("prompt_id", [0.5] * 12), "",
        ["row 0: `prompt_id` is 0.5; a text or a whole number below 9,007,199,254,740,992"]),
    "nan group": (with_column("prompt_id", [0.0, math.nan] * 6), "",
        ["row 1: `prompt_id` is null; every row needs a value"]),
    "lists for finish reasons": (with_column("finish_reason", [[1]] * 12), "--drop-truncated",
        ["`finish_reason` is list<element: int64>; a bool or a finish reason"]),
    "no rows": (rollout().slice(0, 0), "", ["there are no rows"]),
    "none left": (with_column("reward", [0.5] * 12, pa.float32()), "--drop-equal-rewards",
        ["no response is left of 12", "equal_rewards keeps 0", "loosen a mask"]),
    "none finite": (with_column("reward", [math.nan] * 12, pa.float32()), "--nonfinite mask",
        ["no response is left of 12", "none has finite numbers"]),
    "several roles": (rollout().select(["prompt_id"]), "--estimator gae --difficulty-weight",
        ["no column for reward", "no column for values", "no column for difficulty",
         "columns here: prompt_id"]),
    "several unknown columns": (rollout(), "--map reward=rewrd --map mask=m --reward-components a",
        ["--map reward=rewrd: no column 'rewrd'\n  did you mean reward?\n",
         "--map mask=m: no column 'm'\n", "--reward-components a: no column 'a'\n",
         "columns here: "]),
    "unknown rollout": (rollout(), "--map rollout=promt_id",
        ["--map rollout=promt_id: no column 'promt_id'\n  did you mean prompt_id?"]),
    "two of one name": (with_column("x", [1.0] * 12).rename_columns([*NAMES, "reward"]), "",
        ["reward"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_data_is_refused_with_its_place(refused, here, case):
    table, words, texts = BAD_TABLES[case]
    save(table, here / "bad.parquet")
    refused(3, f"bad.parquet out.parquet {words}", *texts)


def test_a_row_is_counted_in_its_own_file(refused, here):
    save(with_value("reward", 9, math.nan), here / "d" / "b.parquet", rows=5)
    save(rollout(), here / "d" / "a.parquet", rows=5)
    refused(3, "d out", "d/b.parquet, row 9: `reward` is nan")


@pytest.mark.parametrize(
    ("lacking", "words", "wrong"),
    [
        ("reward", "", "--map reward=response_mask"),
        ("ref_log_probs", "--kl-coef 0.1", "--map ref_log_probs=old_log_probs"),
        ("old_log_probs", "--kl-coef 0.1", "--map old_log_probs=ref_log_probs"),
    ],
)
def test_a_column_that_has_a_role_of_its_own_is_not_suggested(here, lacking, words, wrong):
    save(without(lacking), here / "bad.parquet")
    ran = run("advantages", "bad.parquet", "out.parquet", *words.split())
    assert ran.code == 3
    assert wrong not in ran.err


# Where things are and where they go


SAME = "output and input are the same file"
DEVICE = f"--device cuda: torch {torch.__version__}"
PLACES = [
    *((2, f"in.parquet {target} --overwrite", SAME)
      for target in ("in.parquet", "./in.parquet", "link.parquet", "up/in.parquet", "up")),
    (2, "link.parquet in.parquet --overwrite", SAME),
    (2, "in.parquet loop", "a symbolic link that leads back to itself"),
    (2, "in.parquet precious.parquet", "precious.parquet: exists already\n  tip: rlpost ad"),
    (2, "in.parquet folder/in.parquet out", "2 input files are named in.parquet"),
    (3, "folder/bad.parquet precious.parquet --overwrite", "row 9"),
    (3, "folder/bad.parquet new/directory/out.parquet", "row 9"),
    (3, "folder out", "folder/bad.parquet, row 9"),
    *((2, f"in.parquet {words}", f"{words.split()[2]}: {what}")
      for words, what in {
          "out.parquet --state in.parquet": "is an input",
          "out.parquet --summary-json in.parquet": "is an input",
          "out.parquet --summary-json link.parquet --overwrite": "is an input",
          "out.parquet --summary-json up/in.parquet --overwrite": "is an input",
          "out.parquet --summary-json a.toml --config a.toml --overwrite": "is an input",
          "out.parquet --state out.parquet --norm-mean running": "is OUT, too",
          "out.parquet --summary-json up/out.parquet": "is OUT, too",
          "nothing --summary-json nothing/in.parquet": "is OUT, too",
          "out.parquet --summary-json s.json --state ./s.json": "is the output of --state, too",
      }.items()),
    (2, "folder out --summary-json folder/in.parquet --overwrite", "in.parquet: is an input"),
    (2, "rows.jsonl out.parquet --summary-json rows.jsonl", "rows.jsonl: is an input"),
    *((4, f"in.parquet {words} --summary-json list.json",
       "list.json: exists, and is no summary of rlpost\n  tip: rlpost advantages ")
      for words in ("out.parquet", "nothing --skip-existing")),
    *((2, f"in.parquet out.parquet {words}", f"{flag}: the value is empty")
      for words, flag in {
          "--emit=": "--emit", "--emit ''": "--emit", "--from ''": "--from", "--rows ' '": "--rows",
          "--reward-components ''": "--reward-components", "--correction=": "--correction",
          "--config ''": "--config",
      }.items()),
    (2, "in.parquet ''", "an argument: the value is empty"),
    (2, "in.parquet out.parquet --emit ,", "--emit ,: a list needs a value"),
    *((2, f"in.parquet out.parquet {flag} {'9' * 400}", f"{flag} 999")
      for flag in ("--chunk-tokens", "--workers")),
    (3, "in.parquet out.parquet --state list.json", "list.json: is not a state file"),
    (4, f"{'x' * 300}.parquet out.parquet", "name too long"),
    (4, f"in.parquet {'x' * 300}.parquet", "name too long"),
    (4, "nothing out", "nothing: contains no file of a known format"),
    (4, "in.parquet in.parquet/out.parquet", "in.parquet/out.parquet: cannot be written"),
    (4, "in.parquet /proc/out.parquet", "/proc/out.parquet: cannot be written"),
    (4, "in.parquet out.parquet --state nothing", "nothing: cannot be read"),
    *((4, f"in.parquet out.parquet {option} no/such/place.json", "no/such/place.json: cannot")
      for option in ("--summary-json", "--state")),
    (5, "in.parquet out.parquet --device cuda", DEVICE),
    (5, "in.parquet out.parquet --device cuda:1", "--device cpu needs no GPU"),
    (5, "in.parquet --plan --device cuda", "--device cuda: torch"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "text"), PLACES, ids=lambda value: str(value)[:50])
def test_a_place_that_will_not_do_is_named_and_nothing_changes(refused, here, code, words, text):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    (here / "link.parquet").symlink_to(here / "in.parquet")
    (here / "up").symlink_to(here)
    (here / "loop").symlink_to(here / "back")
    (here / "back").symlink_to(here / "loop")
    (here / "precious.parquet").write_text("precious")
    (here / "list.json").write_text("[]")
    (here / "a.toml").touch()
    (here / "rows.jsonl").write_text(json.dumps({"reward": 1, "prompt_id": 0, "response": "a"}))
    (here / "nothing").mkdir()
    save(rollout(), here / "folder" / "in.parquet")
    save(with_value("old_log_probs", 9, [0.5] * 9), here / "folder" / "bad.parquet")
    refused(code, words, text)


def test_an_existing_output_is_replaced_with_overwrite(here):
    (here / "out.parquet").write_text("precious")
    assert run("advantages", "in.parquet", "out.parquet", "-q", "--overwrite").code == 0
    assert pq.read_metadata(here / "out.parquet").num_rows == 12


@contextmanager
def nobody():
    """Without the rights of root, to whom every file is open."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "words",
    [
        "locked.parquet open/out.parquet",
        "closed/in.parquet open/out.parquet",
        "in.parquet shown/out.parquet",
        "in.parquet closed/out.parquet",
        "in.parquet open/out.parquet --state closed/state.json",
    ],
)
def test_what_is_forbidden_is_named(monkeypatch, words):
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        monkeypatch.chdir(top)
        for path in ("in.parquet", "locked.parquet", "closed/in.parquet"):
            save(rollout(), top / path)
        assert (
            run("advantages", "in.parquet", "warm.parquet", "-q").code == 0
        )  # imports what it needs
        modes = {".": 0o755, "locked.parquet": 0, "closed": 0, "shown": 0o555, "open": 0o777}
        for path, mode in modes.items():
            if "." not in path:
                (top / path).mkdir(exist_ok=True)
            (top / path).chmod(mode)
        with nobody():
            ran = run("advantages", *words.split())
        (top / "closed").chmod(0o755)
        (culprit,) = re.findall(r"\b(?:closed|locked|shown)\S*", words)
        assert ran.code == 4
        assert culprit in ran.err
        assert "ermission denied" in ran.err
        assert not list((top / "open").iterdir())
        shutil.rmtree(top / "shown")


def test_a_pipe_is_neither_read_nor_replaced(refused):
    os.mkfifo("pipe.parquet")
    text = "pipe.parquet: cannot be {}: not a regular file"
    refused(4, "pipe.parquet out.parquet", text.format("read"))
    refused(4, "in.parquet pipe.parquet --overwrite", text.format("written"))
    assert Path("pipe.parquet").is_fifo()
    os.mkfifo("pipe.jsonl")
    refused(4, "in.parquet out.parquet --config pipe.jsonl", "the recipe: not a regular file")
    for args in ("convert pipe.jsonl out.parquet", "loss in.parquet --log pipe.jsonl"):
        ran = run(*args.split())
        assert ran.code == 4
        assert "not a regular file" in ran.err


def test_a_summary_goes_to_a_file_whole_or_not_at_all(here):
    words = ("advantages", "in.parquet", "out.parquet", "-q", "--summary-json", "told.json")
    Path("told.json").touch()
    assert run(*words).code == 0
    assert run(*words, "--overwrite").code == 0
    Path("out.parquet").unlink()
    assert run(*words).code == 0  # replaces a summary
    assert json.loads(Path("told.json").read_text())["responses"] > 0
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []
    ran = run("advantages", "in.parquet", "two.parquet", "-q", "--summary-json", "/dev/full")
    assert (ran.code, ran.out) == (4, "")
    assert "/dev/full: cannot be written: No space left" in ran.err
