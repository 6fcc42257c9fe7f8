"""Fuzz targets: files of rlpost's own as input, logs, names of files, JSON of odd shapes."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow.parquet as pq
from fuzz import mutate, seeds
from runs import run

import rlpost
from rlpost.errors import RlpostError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.pipeline import run as running
from rlpost.pipeline.output.journal import JOURNAL
from rlpost.pipeline.update.marker import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RAW = rlpost.Recipe(estimator="raw")
OPTIONS = rlpost.Options(device="cpu", workers=1, chunk_tokens=64)
UPDATE = rlpost.Options(device="cpu", workers=1, chunk_tokens=64, update=True)
RESUME = rlpost.Options(device="cpu", workers=1, chunk_tokens=64, resume=True)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
VICTIM = b"must stay"


class WrongError(AssertionError):
    """A run changed or removed what is not its own, or printed what it must not."""


def written(path: Path, table: Any = None) -> Path:
    """Write a rollout file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    pq.write_table(seeds.rollout() if table is None else table, out)
    path.write_bytes(out.getvalue())  # pyarrow opens no name that is not UTF-8
    return path


# Each kind has a function that prepares a folder once, the file in it that is mutated, and a run.


def _prepare_inputs(top: Path) -> None:
    written(top / "in/a.parquet")
    written(top / "in/b.parquet")


def _prepare_update(top: Path) -> None:
    _prepare_inputs(top)
    rlpost.advantages(top / "in", top / "out", RAW, UPDATE)
    files = {}
    for name in ("a.parquet", "b.parquet"):
        stat = (top / "out" / name).stat()
        files[name] = [f".{name}.rlpost-1-00000000.tmp", stat.st_size, stat.st_mtime_ns]
    (top / "out" / MARKER).write_text(json.dumps({"files": files, "state": None}))


def _prepare_journal(top: Path) -> None:
    _prepare_inputs(top)
    usual, made = running.fill_file, []

    def stopped(*arguments: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.append(usual(*arguments))
        return made[0]

    with mock.patch.object(running, "fill_file", stopped), suppress(KeyboardInterrupt):
        rlpost.advantages(top / "in", top / "out", RAW, RESUME)


def _prepare_state(top: Path) -> None:
    rlpost.advantages(written(top / "in/a.parquet"), top / "out/a.parquet", RAW, OPTIONS)
    loader = rlpost.load(top / "out/a.parquet", batch_size=2)
    iterator = iter(loader)
    next(iterator)
    (top / "state.json").write_text(json.dumps(loader.state_dict()))


def _prepare_metadata(top: Path) -> None:
    source = written(top / "in/a.parquet", seeds.rollout().drop_columns(["info"]))
    rlpost.advantages(source, top / "out/a.parquet", RAW, OPTIONS)
    texts = pq.read_schema(top / "out/a.parquet").metadata
    stored = {key.decode(): value.decode() for key, value in texts.items() if b"rlpost" in key}
    (top / "metadata.json").write_text(json.dumps(stored))


def _load(top: Path) -> None:
    state = json.loads((top / "state.json").read_bytes())
    loader = rlpost.load(top / "out/a.parquet", batch_size=2)
    loader.load_state_dict(state)
    for _, _batch in zip(range(20), loader, strict=False):
        pass


def _with_metadata(top: Path) -> None:
    """Write the texts into the file's metadata, and run what reads them."""
    stored = json.loads((top / "metadata.json").read_bytes())
    if not isinstance(stored, dict):
        raise ValueError("no mapping")  # noqa: TRY004 - as of text that is no JSON
    table = pq.read_table(top / "out/a.parquet")
    texts = {str(key): _text(value) for key, value in stored.items()}
    encoded = {key.encode(errors="replace"): text for key, text in texts.items()}
    path = top / "out/changed.parquet"
    pq.write_table(table.replace_schema_metadata(encoded), path)
    for words in (["verify", path], ["inspect", path], ["compare", path, path], ["replay", path]):
        _checked(run(*words, *(["--quiet"] if words[0] == "inspect" else [])))


def _text(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="surrogatepass")


KINDS: dict[str, tuple[Callable[[Path], None], str, Callable[[Path], Any], mutate.Mutator]] = {
    "marker": (
        _prepare_update, f"out/{MARKER}",
        lambda top: rlpost.advantages(top / "in", top / "out", RAW, UPDATE), mutate.json_text,
    ),
    "journal": (
        _prepare_journal, f"out/{JOURNAL}",
        lambda top: rlpost.advantages(top / "in", top / "out", RAW, RESUME), mutate.json_text,
    ),
    "state": (_prepare_state, "state.json", _load, mutate.json_text),
    "metadata": (_prepare_metadata, "metadata.json", _with_metadata, mutate.json_text),
}  # fmt: skip
"""Kind of file -> how its folder is made, its path there, what reads it, how it is mutated."""
NAMES = tuple(KINDS)


def _checked(ran: Any) -> None:
    """Check that a command ended as documented."""
    if ran.code not in {0, 1, 2, 3, 4, 5} or "Traceback" in ran.err:
        raise WrongError(f"exit code {ran.code}: {ran.err[-500:]}")
    for text in (ran.out, ran.err):
        if found := CONTROLS.search(text):
            raise WrongError(f"printed {text[max(found.start() - 20, 0) : found.end() + 5]!r}")


@cache
def prepared(top: Path, kind: str) -> Path:
    """Return the folder of a kind, made once; its copies are used."""
    folder = top / f"prepared-{kind}"
    KINDS[kind][0](folder)
    return folder


def own_seeds(top: Path) -> list[bytes]:
    """Return the file of each kind after the byte of the kind."""
    return [
        bytes([place]) + (prepared(top, kind) / KINDS[kind][1]).read_bytes()
        for place, kind in enumerate(NAMES)
    ]


def mutate_own(data: bytes, rng: random.Random, others: Any) -> bytes:
    """Mutate the file, as its kind requires."""
    place = data[0] % len(NAMES) if data else 0
    alike = [one[1:] for one in others if one[:1] == bytes([place])]
    return bytes([place]) + KINDS[NAMES[place]][3](data[1:], rng, alike)


def check_own(data: bytes, top: Path) -> str:
    """Run what reads a file of rlpost's own: an error or a result; nothing else changes."""
    kind = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    parent = top / "run"
    shutil.rmtree(parent, ignore_errors=True)
    # The paths in a plan are those of the prepared folder, so the run has it under that name.
    original = prepared(top, kind)
    shutil.copytree(original, parent / "kept")
    (top / "victim.txt").write_bytes(VICTIM)
    before = sorted(one.name for one in top.iterdir())
    (original / KINDS[kind][1]).write_bytes(data[1:])
    try:
        KINDS[kind][2](original)
    except RlpostError as error:
        outcome = f"{kind} {type(error).__name__}"
        if not str(error):
            raise WrongError("an error without a message") from None
    except (ValueError, RecursionError):
        if kind not in ("state", "metadata"):
            raise
        outcome = f"{kind}: no JSON"  # the file itself is read here
    else:
        outcome = f"{kind} done"
    finally:
        inputs = {one.name: one.read_bytes() for one in (original / "in").iterdir()}
        kept = {one.name: one.read_bytes() for one in (parent / "kept/in").iterdir()}
        victim = (top / "victim.txt").read_bytes() if (top / "victim.txt").exists() else b""
        after = sorted(one.name for one in top.iterdir())
        shutil.rmtree(original)
        shutil.copytree(parent / "kept", original)
        shutil.rmtree(parent)
        (top / "victim.txt").unlink(missing_ok=True)
    if (inputs, victim, after) != (kept, VICTIM, before):
        raise WrongError("an input changed, or a file outside OUT")
    return outcome


# Names of files

NAME_SEEDS = (
    b"a.parquet", b"\xff\xfe.parquet", b"step=3", b"-q.parquet", b"a\nb.parquet", b"[x].parquet",
    b"*.parquet", "é\u202e.parquet".encode(), b"\x1b]0;owned\x07.parquet", b"a'b\"c.parquet", b" ",
    b"x" * 250, b"%41.parquet", b"a.jsonl", b".parquet", b"a.parquet.tmp", b"~", b"file:x.parquet",
)  # fmt: skip


def check_name(data: bytes, top: Path) -> str:
    """Inspect and enrich a file of any name, in a folder and by itself."""
    name = os.fsdecode(data.replace(b"/", b"").replace(b"\0", b"")[:250])
    if name in ("", ".", ".."):
        return "no name"
    folder = top / "names"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(top / "enriched", ignore_errors=True)
    try:
        written(folder / "in" / name)
        written(folder / "in" / "other.parquet")
    except OSError:
        return "no name of the file system"
    codes = []
    for words in (
        ["inspect", folder / "in"],
        ["inspect", folder / "in" / name, "--format", "markdown"],
        ["advantages", folder / "in", top / "enriched", "--estimator", "raw"],
        ["convert", folder / "in" / name, folder / "o.parquet", "--from", "parquet"],
    ):
        ran = run(*words)
        _checked(ran)
        codes.append(str(ran.code))
    shutil.rmtree(folder)
    shutil.rmtree(top / "enriched", ignore_errors=True)
    return " ".join(codes)


# JSON of odd shapes: fields by the thousand, deep values


def check_shape(data: bytes, top: Path) -> str:
    """Convert JSON lines with many fields, long names, deep values: an error or all the rows."""
    rng = random.Random(data)  # noqa: S311
    count, depth = rng.choice([1, 30, 1000, 5000]), rng.choice([1, 10, 400, 1100, 20_000])
    deep = "[" * depth + "]" * depth if rng.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth
    lines = []
    for row in range(rng.randrange(1, 4)):
        fields = [f'"f{rng.randrange(2 * count)}": {rng.choice([1, 0.5, "null"])}'
                  for _ in range(count)]  # fmt: skip
        if rng.random() < 0.3:
            fields.append(f'"deep": {deep}')
        if rng.random() < 0.2:
            fields.append(f'"{"n" * rng.choice([300, 100_000])}": 1')
        if rng.random() < 0.3:
            fields.append(f'"text": "{"t" * rng.choice([10, 1_000_000])}"')
        lines.append(f'{{"reward": {row}, "group": "g", {", ".join(fields)}}}')
    source, target = top / "shape.jsonl", top / "shape.parquet"
    source.write_text("\n".join(lines) + "\n")
    try:
        convert(source, target, "jsonl", ReadOptions())
        if pq.read_metadata(target).num_rows != len(lines):
            raise WrongError("rows are missing")
    except RlpostError as error:
        return type(error).__name__
    finally:
        source.unlink()
        target.unlink(missing_ok=True)
    return "done"
