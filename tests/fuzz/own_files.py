"""Fuzz targets: metadata of enriched files, names of files, JSON of odd shapes."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from fuzz import seeds
from runs import run

import rlpost
from rlpost.errors import RlpostError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

RAW = rlpost.Recipe(estimator="raw")
OPTIONS = rlpost.Options(device="cpu", workers=1, chunk_tokens=64)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class WrongError(AssertionError):
    """A run changed or removed what is not its own, or printed what it must not."""


def written(path: Path, table: Any = None) -> Path:
    """Write a rollout file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    pq.write_table(seeds.rollout() if table is None else table, out)
    path.write_bytes(out.getvalue())  # pyarrow opens no name that is not UTF-8
    return path


# Metadata of an enriched file


@cache
def enriched(top: Path) -> Path:
    """Return an enriched file, made once."""
    source = written(top / "metadata/a.parquet", seeds.rollout().drop_columns(["info"]))
    rlpost.advantages(source, top / "metadata/enriched.parquet", RAW, OPTIONS)
    return top / "metadata/enriched.parquet"


def metadata_seeds(top: Path) -> list[bytes]:
    """Return the metadata of an enriched file as JSON."""
    texts = pq.read_schema(enriched(top)).metadata
    stored = {key.decode(): value.decode() for key, value in texts.items() if b"rlpost" in key}
    return [json.dumps(stored).encode()]


def check_metadata(data: bytes, top: Path) -> str:
    """Write texts into a file's metadata, and run what reads them: the file does not change."""
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(stored, dict):
        return "no mapping"
    table = pq.read_table(enriched(top))
    texts = {str(key): _text(value) for key, value in stored.items()}
    encoded = {key.encode(errors="replace"): text for key, text in texts.items()}
    path = top / "metadata/changed.parquet"
    pq.write_table(table.replace_schema_metadata(encoded), path)
    before, files = path.read_bytes(), sorted(path.parent.iterdir())
    codes = []
    for words in (["verify", path], ["inspect", path], ["compare", path, path], ["replay", path]):
        ran = run(*words, *(["--quiet"] if words[0] == "inspect" else []))
        _checked(ran)
        codes.append(str(ran.code))
    if (path.read_bytes(), sorted(path.parent.iterdir())) != (before, files):
        raise WrongError("an input changed, or files are left")
    return " ".join(codes)


def _text(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="surrogatepass")


def _checked(ran: Any) -> None:
    """Check that a command ended as documented."""
    if ran.code not in {0, 1, 2, 3, 4, 5} or "Traceback" in ran.err:
        raise WrongError(f"exit code {ran.code}: {ran.err[-500:]}")
    for text in (ran.out, ran.err):
        if found := CONTROLS.search(text):
            raise WrongError(f"printed {text[max(found.start() - 20, 0) : found.end() + 5]!r}")


# Logs of `loss --log`

LOG_TEXTS = (
    b'{"step": 0, "actor/pg_loss": 0.1, "actor/ppo_kl": 0.01}\n{"step": 1, "actor/pg_loss": 0.2}\n',
    b'{"step": 0, "data": {"loss": 0.5}}\n{"step": "x", "loss": 1e400}\n{"step": 1, "loss": NaN}\n',
    b"step,actor/pg_loss,actor/pg_clipfrac\n0,0.1,0.2\n1,0.3,nan\n",
    b'"step","a"\n0,"' + b"x" * 200_000 + b'"\n',
    b'{"a":' * 50_000,
)


def check_log(data: bytes, top: Path) -> str:
    """Compare a log with the loss of a file: an error or a result."""
    log = top / "log.jsonl"
    log.write_bytes(data)
    ran = run("loss", enriched(top), "--map", "log_probs=old_log_probs", "--log", log, "-v")
    _checked(ran)
    return f"exit {ran.code}"


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
