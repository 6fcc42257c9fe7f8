"""Updates of a folder, and what they wrote."""

import os
from dataclasses import replace

import pyarrow.parquet as pq

import rlpost

UPDATE = rlpost.Options(update=True, chunk_tokens=1 << 20, workers=1)
PLAIN = rlpost.Options(chunk_tokens=1 << 20, workers=1)


def save(table, files, folder):
    """Write the rows of each file; files that are the same as before stay untouched."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in sorted({*files} - {-1}):
        path = folder / f"part-{number}.parquet"
        own = table.take([row for row, file in enumerate(files) if file == number])
        if not path.exists() or not pq.read_table(path).equals(own):
            pq.write_table(own, path)
            os.utime(path, ns=(number, len(own)))


def update(top, recipe=None, source="in", **options):
    return rlpost.advantages(top / source, top / "out", recipe, replace(UPDATE, **options))


def counts(summary):
    facts = summary["update"]
    assert facts["chosen"] == sum(facts["reasons"].values())
    return {reason: count for reason, count in facts["reasons"].items() if count}


def stamps(top):
    return {path.name: path.stat().st_ino for path in sorted((top / "out").glob("*.parquet"))}


def part(top, number):
    return top / "in" / f"part-{number}.parquet"
