"""What is typed as a relative path stays one: no output has the name of a home directory."""

from __future__ import annotations

import json
import zipfile

import pyarrow.parquet as pq
import pytest
from commands_on_files import commands_on
from runs import rollout, run, save

from rlpost.analysis import doctor

USER = "zaphod"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The working directory, in the home directory of USER."""
    folder = tmp_path / "home" / USER / "work"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    return folder


def test_relative_names_stay_relative_in_screens_files_and_metadata(work):
    save(rollout(), work / "plain.parquet")
    lines = [json.dumps({"input": "a", "output": "b", "score": i % 2, "step": 1}) for i in range(4)]
    (work / "dump.jsonl").write_text("\n".join(lines))
    out = work.relative_to(work) / "out"
    (work / "out").mkdir()
    commands = [
        (("advantages", "plain.parquet", "enriched.parquet", "--summary-json", "s.json"), 0),
        *commands_on("enriched.parquet", "dump.jsonl", "plain.parquet", out),
        (("verify", "enriched.parquet", "--map"), 2),
        (("inspect", "gone.parquet"), 4),
        (("advantages", "plain.parquet", "enriched.parquet"), 2),
        (("advantages", "plain.parquet", "dump.jsonl/x.parquet"), 4),
        (("inspect", "dump.jsonl", "--map", "reward=nothing"), 3),
    ]
    for words, code in commands:
        ran = run(*words)
        assert ran.code == code, (words, ran.err)
        assert USER not in ran.out + ran.err, words
    written = [path for path in work.rglob("*") if path.is_file()]
    assert len(written) >= 10
    for path in written:
        assert USER.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":
            assert USER not in str(pq.read_metadata(path).metadata)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as file:
                assert not any(USER.encode() in file.read(name) for name in file.namelist())


@pytest.mark.usefixtures("work")
def test_doctor_prints_no_home_and_no_values_of_options(monkeypatch):
    monkeypatch.setattr(doctor, "TOKENS", 4096)
    monkeypatch.setenv("RLPOST_CONFIG", "https://me:pw@host/recipe.toml")
    monkeypatch.setenv("RLPOST_KEY", "sk-12345")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for how in ("table", "json", "markdown"):
        ran = run("doctor", "--device", "cpu", "--format", how)
        assert not any(secret in ran.out for secret in (USER, "me:pw", "host", "sk-12345"))
        assert "RLPOST_CONFIG" in ran.out
        assert "RLPOST_KEY" in ran.out
    facts = doctor.examine("cpu")
    assert facts["environment"] == {
        "OMP_NUM_THREADS": "3", "RLPOST_CONFIG": None, "RLPOST_KEY": None,
    }  # fmt: skip
