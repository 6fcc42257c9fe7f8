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
    """Return the error of a run that fails: one line."""
    ran = run("advantages", *words, "-q")
    assert ran.code == code, ran.err
    assert ran.err.count("\n") == 1
    return ran.err.removeprefix("error: ").strip()
