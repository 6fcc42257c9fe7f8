"""Broken and hostile input: it is refused in rlpost's own words, or the answer is right.

The bulk is made by mutation; `python -m tests.fuzz` does the same for as long as one likes. Single
tests are of what such runs found, and of what no mutation is likely to hit.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import resource
import signal
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from fuzz import seeds, targets
from runs import rollout, run, save

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Mutated files


SLICES = {"parquet": 900, "dumps": 900}


@pytest.fixture
def hurried():
    """An input that takes more than 10 s of work is an error."""

    def too_slow(*_):
        raise TimeoutError("an input takes more than 10 s")

    before = signal.signal(signal.SIGPROF, too_slow)
    yield lambda: signal.setitimer(signal.ITIMER_PROF, 10)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SLICES)
def test_mutants_are_refused_or_give_right_answers(hurried, name):
    target, rng = targets.TARGETS[name], random.Random(7)  # noqa: S311 - test data
    pool = target.start()
    mutants = (target.mutate(rng.choice(pool), rng, pool) for _ in range(SLICES[name] - len(pool)))
    outcomes = set()
    for data in (*pool, *mutants):
        hurried()
        outcomes.add(target.check(data))
    targets.clean_up()
    assert len(outcomes) > 1  # neither are all refused, nor none: both sides are tried
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 < 3 << 30  # pytest's own too


@pytest.mark.parametrize("name", SLICES)
def test_what_was_found_once_is_not_found_again(name):
    for data in seeds.packed(name):
        targets.TARGETS[name].check(data)
    targets.clean_up()


def test_a_result_beyond_float32_is_an_error_and_not_infinite(tmp_path):
    table = rollout().set_column(1, "reward", pa.array([1e39, -1e39] * 6))
    path = save(table, tmp_path / "in.parquet")
    ran = run("advantages", path, tmp_path / "out.parquet", "--estimator", "raw")
    assert (ran.code, "beyond the range of float32" in ran.err) == (3, True)
    assert "in.parquet, row 0: the computed `advantages` is beyond" in ran.err
    assert not (tmp_path / "out.parquet").exists()
    rewards = [1.0] * 7 + [1e39] + [1.0] * 4
    path = save(table.set_column(1, "reward", pa.array(rewards)), path, rows=3)
    ran = run("advantages", path, tmp_path / "out.parquet", "--estimator", "raw")
    assert "in.parquet, row 7: the computed `advantages` is beyond" in ran.err
    clipped = ["--estimator", "raw", "--reward-clip", "5", "-q"]
    assert run("advantages", path, tmp_path / "out.parquet", *clipped).code == 0


# Dumps


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def saved(value) -> dict[str, bytes]:
    """The members of a torch.save file."""
    out = io.BytesIO()
    torch.save(value, out)
    with zipfile.ZipFile(out) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Command:
    """What pickle runs when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


CUT = saved({"tokens": torch.arange(8), "rewards": torch.ones(8)})
CUT |= {name: data[:8] for name, data in CUT.items() if name.endswith("data/0")}
BOMB = saved({"x": torch.zeros(10**6)})
DUMPS = {
    "damaged: the size of a tensor is wrong": zipped(CUT),
    "its members are compressed": zipped(BOMB, zipfile.ZIP_DEFLATED),
    "rlpost never executes code from a dump": zipped(saved({"samples": Command()})),
    "never executes code from a dump": pickle.dumps(Command(), 2),
    "nested too deeply": b'{"reward": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "line 1": b'{"reward": 1, "\\ud800": 2, "prompt_id": "a"}\n',
}
"""What the refusal of a dump says: a tensor beside another, a bomb, code, odd JSON."""


@pytest.mark.parametrize("text", DUMPS)
def test_a_dump_is_refused_before_it_does_harm(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    json_lines = DUMPS[text].endswith(b"\n")
    path = Path("in.jsonl" if json_lines else "1.pt")
    path.write_bytes(DUMPS[text])
    ran = run("convert", path, "o.parquet", "--from", "jsonl" if json_lines else "slime-rollout")
    assert (ran.code, text in ran.err) == (3, True), ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


# Recipes


@pytest.mark.parametrize("text", ["gamma = " + "9" * 5000, "columns = " + "[" * 20_000])
def test_a_recipe_beyond_reason_is_a_usage_error(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    ran = run("advantages", "in.parquet", tmp_path / "out.parquet", "--config", path)
    assert ran.code == 2
    assert "recipe.toml: not valid TOML" in ran.err


# Terminals


ODD = "\x1b]0;owned\x07\x9b2J\u202e[/b][link=x]:smile:=1+1\r"


@pytest.fixture
def odd(tmp_path):
    """A file whose every name and text is trouble for a terminal, or for markup."""
    table = rollout().append_column("response", pa.array([ODD] * 12))
    table = table.append_column("domain", pa.array([ODD, "[/x]"] * 6))
    table = table.append_column("finish_reason", pa.array([ODD] * 12))
    table = table.set_column(0, "prompt_id", pa.array([f"{ODD}{i // 4}" for i in range(12)]))
    names = {"ref_log_probs": ODD, "response_mask": f"{ODD}mask"}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    return save(table, tmp_path / f"a{ODD.replace('/', '')}.parquet")


MAPPED = ["--map", f"mask={ODD}mask", "--map", f"ref_log_probs={ODD}"]


SCREENS = [
    *(f"inspect IN {words} --format {how}" for how in ("table", "json", "markdown")
      for words in ("", "--worst", "--row 3")),
    "advantages IN OUT",
    "advantages IN --plan",
    "advantages IN OUT --kl-coef 1 --map old_log_probs=ODD",
    "compare IN --estimator grpo --estimator rloo",
    "inspect ODD.parquet",
    "convert IN OUT --from ODD",
    "inspect IN --ODD",
]  # fmt: skip


@pytest.mark.parametrize("screen", SCREENS)
def test_no_screen_sends_a_control_character(odd, tmp_path, screen):
    places = {"IN": str(odd), "OUT": str(tmp_path / f"out{ODD.replace('/', '')}.parquet")}
    words = [places.get(word, word).replace("ODD", ODD) for word in screen.split()]
    ran = run(*words, *(MAPPED if "convert" not in words else []))
    assert ran.code in ({0} if "--format" in words else {0, 2, 3, 4}), ran.err
    assert ran.out + ran.err
    assert CONTROLS.findall(ran.out + ran.err) == []
    if "json" in words:
        assert ODD in json.dumps(json.loads(ran.out), ensure_ascii=False).replace(
            "\\u001b", "\x1b"
        ).replace("\\u0007", "\x07").replace("\\r", "\r")


# Paths


def test_names_of_columns_and_partitions_lead_nowhere(tmp_path):
    outside = {one.name for one in tmp_path.iterdir()}
    top = tmp_path / "in" / "step=..%2F..%2Fup" / "a=%00"
    save(rollout().append_column("../../up", pa.array(range(12))), top / "x.parquet")
    assert run("advantages", tmp_path / "in", tmp_path / "out", "-q").code == 0
    written = [path for path in tmp_path.rglob("*.parquet") if "out" in path.parts]
    assert [path.relative_to(tmp_path / "out") for path in written] == [
        top.relative_to(tmp_path / "in") / "x.parquet"
    ]
    assert {one.name for one in tmp_path.iterdir()} == outside | {"in", "out"}


def test_a_loop_of_links_is_no_endless_search(tmp_path):
    save(rollout(), tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    assert run("inspect", tmp_path / "in").code == 0
    (tmp_path / "self.parquet").symlink_to(tmp_path / "self.parquet")
    assert run("inspect", tmp_path / "self.parquet").code == 4


def test_a_recipe_in_a_files_metadata_is_run_only_if_the_user_names_it(tmp_path):
    mark = tmp_path / "executed"
    code = tmp_path / "own.py"
    code.write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef f(rewards): return rewards - 1\n"
    )
    source, path = save(rollout(), tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    assert run("advantages", source, path, "--estimator", f"{code}:f", "-q").code == 0
    mark.unlink()
    text = code.read_text()
    code.write_text(f"{text}#\n")  # a module that this process has not read
    codes = {}
    for words in (
        ("inspect", path), ("verify", path),
        ("loss", path, "--map", "log_probs=ref_log_probs"),
        ("advantages", path, tmp_path / "o.parquet", "--replace"),
    ):  # fmt: skip
        ran = run(*words)
        codes[words[0]] = ran.code
        assert not mark.exists(), words
        if words[0] == "verify":
            assert f"--estimator {code}:f" in ran.err
    assert codes == {"inspect": 0, "verify": 2, "loss": 0, "advantages": 0}
    assert run("verify", path, "--estimator", f"{code}:f").code == 0
    assert mark.exists()
