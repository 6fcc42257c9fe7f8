"""Runs on object stores, and their errors."""

from __future__ import annotations

from runs import run

USER = "lab:correct-horse"
"""User name and password of a web server."""


def local_run(source, tmp_path, *options):
    """Return the bytes that a run from disk to disk writes."""
    out = tmp_path / "expected" / "out.parquet"
    assert run("advantages", source, out, "-q", "--overwrite", *options).code == 0
    return out.read_bytes()


def error_of(code, *words):
    """Return the sentence of the error of a run that fails."""
    ran = run("advantages", *words, "-q")
    assert ran.code == code, ran.err
    first, *below = ran.err.splitlines()
    assert all(line.startswith("  tip: ") for line in below)
    return first.removeprefix("error: ").strip()
