"""`rlpost convert` of a prime-rl stream with and without `--where`, in turn.

    python -m tests.bench.where FOLDER [EPISODES] [ROUNDS]

Writes the stream into FOLDER unless it is there: sealed chunks of seekable zstd in frames of 4 MiB,
the last one plain, and the index. A hundredth of the episodes is of each environment.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from itertools import islice
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "support")]

from format_writers import seekable  # noqa: E402
from indexed_stream import episode, index_row, write_index  # noqa: E402

import rlpost  # noqa: E402

TOKENS, CHUNK, FRAME, ENVIRONMENTS = 400, 20_000, 4 << 20, 100


def episodes(count: int):
    """Yield each episode, and its line."""
    chance = random.Random(0)  # noqa: S311
    for i in range(count):
        one = episode(
            i, reward=float(chance.random() < 0.4), step=i // 512, env=f"env{i % ENVIRONMENTS}"
        )
        tokens = [chance.randrange(150_000) for _ in range(TOKENS)]
        logprobs = [round(-chance.expovariate(2), 4) for _ in range(TOKENS)]
        sampled = {"token_ids": tokens, "mask": [True] * TOKENS, "logprobs": logprobs}
        one["traces"][0]["nodes"][1] |= sampled
        yield one, json.dumps(one, separators=(",", ":")).encode() + b"\n"


def write(folder: Path, count: int) -> None:
    """Write a stream and its index."""
    stream, rows, left = folder / "stream", [], episodes(count)
    stream.mkdir(parents=True)
    for chunk in range(-(-count // CHUNK)):
        parts, offset = [], 0
        for one, line in islice(left, CHUNK):
            rows.append(index_row(len(rows) + 1, one, chunk, offset))
            parts.append(line)
            offset += len(line)
        data, sealed = b"".join(parts), (chunk + 1) * CHUNK < count
        path = stream / f"{chunk:05}.jsonl{'.zst' * sealed}"
        path.write_bytes(seekable(data, FRAME) if sealed else data)
    write_index(stream, rows)


def main(folder: Path, count: int, rounds: int) -> None:
    """Print the seconds of each run, their medians and what was skipped."""
    if not folder.exists():
        write(folder, count)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for where in ("env = 'env7'", "env = 'env7' and reward > 0", None):
            begin = time.perf_counter()
            found = rlpost.convert(folder, folder / "o.parquet", where=where, overwrite=True)
            seconds.setdefault(str(where), []).append(time.perf_counter() - begin)
            line = found["where"]["line"] if where else f"{found['responses']:,} rows"
            print(f"{seconds[str(where)][-1]:.2f} s  {line}", flush=True)
    for where, times in seconds.items():
        print(f"{where}: median {statistics.median(times):.2f} s")


if __name__ == "__main__":
    words = sys.argv[1:]
    numbers = [int(x) for x in words[1:]]
    main(Path(words[0]), *numbers, *(100_000, 3)[len(numbers) :])
