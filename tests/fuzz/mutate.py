"""Mutators: turn valid inputs into hostile ones, by bytes or by their structure."""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING, Any

from rlpost.io.parquet.footer import FOOTER, FooterError, Struct, Wire, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    Mutator = Callable[[bytes, Random, Sequence[bytes]], bytes]

MOST_BYTES = 1 << 16
EDGES = (
    0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 256, 32767, 65535, 10**6, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -128, -(2**31), -(2**62), -(2**63),
)  # fmt: skip
NAMES = (
    b"", b"\x1b[2J\x1b]0;owned\x07", b"\xc2\x9b31m", b"a\nb", b"\x00", b"../../up", b"/etc/passwd",
    b"=1+1", b"step=3", b"a.b", b"list", b"element", b"prompt_id", b"reward", b"response_mask",
    b"advantages", b"\xff\xfe", "é\u202e".encode(), b"x" * 300, b"NaN", b"ARROW:schema",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 2**53 + 1,
    2**63, 2**64, -(2**70), 10**400, "", "x", "\x1b[31mred", "\x9b", "\ud800", "\x00", "../../up",
    "=cmd()", "12", "1e5", "NaN", "x" * 5000, [], {}, [[]], [{}], [0] * 200, [None], ["a", 1],
    {"": {"": []}}, [float("nan")], [1e39], [2**31], [-1],
)  # fmt: skip


def by_bytes(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Flip, set, cut, copy, insert and truncate bytes, once or several times."""
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        _edit(out, rng, others)
    return bytes(out[:MOST_BYTES])


def _edit(out: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(out) + 1)
    some = rng.randrange(1, 1 + min(64, len(out) + 1))
    how = rng.randrange(9)
    if how == 0 and at < len(out):
        out[at] ^= 1 << rng.randrange(8)
    elif how == 1 and at < len(out):
        out[at] = rng.randrange(256)
    elif how == 2:
        edge = rng.choice(EDGES)
        width, form = rng.choice([(1, "B"), (2, "<H"), (4, "<I"), (8, "<Q")])
        out[at : at + width] = struct.pack(form, edge % (1 << 8 * width))
    elif how == 3:
        del out[at : at + some]
    elif how == 4:
        out[at:at] = out[at : at + some]
    elif how == 5:
        out[at:at] = rng.randbytes(some)
    elif how == 6 and rng.random() < 0.2:
        del out[at:]
    elif how == 7:
        out[at:at] = rng.choice(NAMES)
    elif how == 8 and others:
        other = rng.choice(others)
        begin = rng.randrange(len(other) + 1)
        out[at : at + some] = other[begin : begin + some]


# Parquet


def parquet(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Mutate fields of the footer, bytes of pages, or any bytes."""
    parts = _split(data)
    how = rng.random()
    if parts is None or how < 0.15:
        return by_bytes(data, rng, others)
    body, footer = parts
    if how < 0.75:
        for _ in range(1 << rng.randrange(3)):
            _mutate_tree(footer, rng)
    if how > 0.6:
        changed = bytearray(body)
        for _ in range(1 << rng.randrange(3)):  # lengths stay, so that offsets hit pages still
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        body = bytes(changed)
    try:
        end = encode(footer)
    except Exception:  # noqa: BLE001 - the codec need not write what no footer is
        return by_bytes(data, rng, others)
    return (body + end + struct.pack("<I", len(end)) + b"PAR1")[-MOST_BYTES:]


def _split(data: bytes) -> tuple[bytes, Struct] | None:
    """Return the data and the footer, None if the footer cannot be decoded."""
    if len(data) < 12:
        return None
    begin = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    if begin < 4:
        return None
    try:
        return data[:begin], decode(data[begin:-8], FOOTER)[0]
    except FooterError:
        return None


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return the location of every decoded value: (struct or list of structs, field or index)."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, Struct):
            found += [(one, field) for field in one]
            stack += [held for _, held in one.values() if isinstance(held, (Struct, list))]
        else:
            found += [(one, index) for index in range(len(one))]
            stack += one
    return found


def _mutate_tree(footer: Struct, rng: Random) -> None:
    nodes = _nodes(footer)
    if not nodes:
        return
    holder, key = rng.choice(nodes)
    if rng.random() < 0.1:
        del holder[key]
        return
    if isinstance(holder, Struct):
        kind, value = holder[key]
        if rng.random() < 0.05:
            holder[rng.randrange(1, 20)] = (kind, copy.deepcopy(value))
        elif kind in (Wire.I16, Wire.I32, Wire.I64):
            holder.put(key, kind, _changed(holder.integer(key), rng))
        elif kind == Wire.BINARY:
            holder.put(key, kind, _changed(holder.binary(key), rng))
        else:
            holder[key] = (kind, _changed(value, rng))
    else:
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))


def _changed(value: Any, rng: Random) -> Any:
    if isinstance(value, int):
        near = (value + 1, value - 1, value * 2, value // 2, -value, value ^ 1 << rng.randrange(40))
        return rng.choice((*EDGES, *near))
    if isinstance(value, bytes):
        return rng.choice(NAMES) if rng.random() < 0.5 else by_bytes(value, rng, NAMES)
    if isinstance(value, list):
        how = rng.randrange(3)
        if how == 0:
            value = value * rng.choice([0, 2, 3, 50])
        return copy.deepcopy(value[::-1] if how == 1 else value[: rng.randrange(len(value) + 1)])
    return value


# Text


def json_text(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Change values of JSON or JSON lines; if it is neither, any bytes."""
    if rng.random() < 0.25:
        return by_bytes(data, rng, others)
    lines = data.split(b"\n")
    for _ in range(1 << rng.randrange(3)):
        at = rng.randrange(len(lines))
        try:
            value = json.loads(lines[at])
            lines[at] = _dumped(_changed_json(value, rng), rng)
        except (ValueError, RecursionError):
            lines[at] = by_bytes(lines[at], rng, others)
    return b"\n".join(lines)[:MOST_BYTES]


def _dumped(value: Any, rng: Random) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")
    if rng.random() < 0.02:
        depth = rng.choice([100, 2000, 30000])
        text = text.replace(b"[", b"[" * depth, 1).replace(b"]", b"]" * depth, 1)
    if rng.random() < 0.02:
        text = text.replace(b"1", b"9" * 6000, 1)
    return text


def _changed_json(value: Any, rng: Random) -> Any:
    """Change one value inside a value, or the value itself."""
    places: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        one = stack.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if type(one) is list else ()
        places += [(one, key) for key in keys]
        stack += [one[key] for key in keys if isinstance(one[key], (dict, list))]
    if not places or rng.random() < 0.01:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    how = rng.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.3 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES[17:]))[:300]] = holder[key]
    elif how < 0.4 and isinstance(holder, list):
        holder.append(holder[key])
    elif how < 0.5:
        other, place = rng.choice(places)
        holder[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _keys(one: Any) -> Any:
    return one if isinstance(one, dict) else range(len(one))


# torch.save


def archive(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """Mutate, recompress or drop a member of a zip file; if it is none, any bytes."""
    if rng.random() < 0.2:
        return by_bytes(data, rng, others)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            members = {one.filename: old.read(one) for one in old.infolist()}
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError, RuntimeError):
        return by_bytes(data, rng, others)
    if members:
        name = rng.choice([*members, *(one for one in members if one.endswith(".pkl"))])
        if rng.random() < 0.08:
            del members[name]
        else:
            members[name] = by_bytes(members[name], rng, NAMES)
    how = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as new:
        for name, content in members.items():
            new.writestr(name, content)
    return out.getvalue()[:MOST_BYTES]
