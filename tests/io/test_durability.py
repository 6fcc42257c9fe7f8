"""Durability: each output is written, synced, renamed, and its folder synced, in this order."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from runs import rollout, run, save

from rlpost.io import outputs


class Call(NamedTuple):
    """A call of the system that makes files durable."""

    name: str
    inode: int
    path: Path | None = None
    """The new name of a renamed file, or a created folder."""
    content: bytes = b""
    """What a synced file had in it."""


@pytest.fixture
def calls(monkeypatch):
    """The calls of a command, in order, as they end."""
    recorded: list[Call] = []

    def sync(name, file):
        kind, inode = os.fstat(file).st_mode, os.fstat(file).st_ino
        if stat.S_ISDIR(kind):
            recorded.append(Call("sync folder", inode))
        else:
            recorded.append(Call(name, inode, content=os.pread(file, os.fstat(file).st_size, 0)))

    def rename(name, _, target, **__):
        recorded.append(Call(name, Path(target).stat().st_ino, Path(target)))

    def mkdir(name, path, *_, **__):
        recorded.append(Call(name, Path(path).stat().st_ino, Path(path)))

    def record(name, function, note):
        def call(*words, **options):
            result = function(*words, **options)
            with suppress(FileNotFoundError):  # a folder that is gone already
                note(name, *words, **options)
            return result

        return call

    notes = {"fsync": sync, "fdatasync": sync, "rename": rename, "replace": rename, "mkdir": mkdir}
    for name, note in notes.items():
        monkeypatch.setattr(os, name, record(name, getattr(os, name), note))
    return recorded


def check_durable(calls, path):
    """All bytes of a file were synced before it got its name, and its folder was after that."""
    inode = path.stat().st_ino
    named = max(place for place, call in enumerate(calls) if call.path == path)
    assert calls[named].inode == inode
    synced = [call for call in calls[:named] if (call.name, call.inode) == ("fsync", inode)]
    assert synced, f"{path.name} was not synced"
    assert synced[-1].content == path.read_bytes(), f"{path.name} was written after its sync"
    check_folder_synced(calls[named:], path)


def check_folder_synced(later, path):
    """The folder of a path was synced."""
    assert Call("sync folder", path.parent.stat().st_ino) in later, f"{path.name}: not its folder"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A file, a folder of two, an enriched file, and dumps."""
    top, table = tmp_path_factory.mktemp("inputs"), rollout()
    table = table.append_column("log_probs", table["ref_log_probs"])
    for name in ("prompt_token_ids", "response_token_ids"):
        table = table.append_column(name, table["response_mask"].cast(pa.list_(pa.int64())))
    save(table, top / "in.parquet")
    for name, part in (("a", table.slice(0, 8)), ("b", table.slice(8))):
        save(part, top / "folder" / f"{name}.parquet")
    assert run("advantages", top / "in.parquet", top / "done.parquet", "-q").code == 0
    (top / "dumps").mkdir()
    assert run("export", top / "in.parquet", top / "dumps" / "d.jsonl", "--to", "jsonl").code == 0
    return top


COMMANDS = {
    "advantages IN/in.parquet OUT/o.parquet": "o.parquet",
    "advantages IN/in.parquet OUT/o.parquet --summary-json OUT/s.json": "o.parquet s.json",
    "advantages IN/in.parquet OUT/o.parquet --norm-mean running --norm-std running "
    "--state OUT/s.json": "o.parquet s.json",
    "advantages IN/in.parquet OUT/o.parquet --emit-only": "o.parquet",
    "advantages IN/folder OUT/new/folder": "new/folder/a.parquet new/folder/b.parquet",
    "loss IN/in.parquet OUT/o.parquet": "o.parquet",
    "loss IN/in.parquet --summary-json OUT/s.json": "s.json",
    "convert IN/dumps/d.jsonl OUT/o.parquet --from jsonl": "o.parquet",
    "convert IN/dumps OUT/new --from jsonl": "new/d.parquet",
    "export IN/done.parquet OUT/o.jsonl --to jsonl": "o.jsonl",
    "export IN/done.parquet OUT/new --to slime": "new/0.pt new/rlpost_advantages.py",
    "report IN/done.parquet OUT/o.html": "o.html",
}


@pytest.mark.parametrize(("command", "outputs"), COMMANDS.items(), ids=COMMANDS)
def test_outputs_are_synced_then_renamed_then_their_folders_are_synced(
    inputs, tmp_path, calls, command, outputs
):
    words = command.replace("IN/", f"{inputs}/").replace("OUT/", f"{tmp_path}/").split()
    ran = run(*words)
    assert ran.code == 0, ran.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == [tmp_path / name for name in outputs.split()]
    for path in files:
        check_durable(calls, path)
    for place, call in enumerate(calls):
        if call.name == "mkdir" and call.path.exists():
            check_folder_synced(calls[place:], call.path)


def test_a_large_copy_is_synced_while_the_rest_is_computed(inputs, tmp_path, calls, monkeypatch):
    monkeypatch.setattr(outputs, "SMALL_BYTES", 100)
    assert run("advantages", inputs / "in.parquet", tmp_path / "o.parquet", "-q").code == 0
    check_durable(calls, tmp_path / "o.parquet")
    assert "fdatasync" in [call.name for call in calls]
