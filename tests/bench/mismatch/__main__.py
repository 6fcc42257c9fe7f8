"""Which planted causes `inspect --about mismatch` names.

    python -m tests.bench.mismatch plant FOLDER [--seeds 0,1,2]
    python -m tests.bench.mismatch judge FOLDER

`plant` needs transformers. `judge` prints a table by case: the gap, and the causes that are named;
and how often the first cause is the planted one, both causes of a pair are named, and none of clean
runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def plant(folder: Path, seeds: list[int]) -> None:
    """Write a dump of each case and seed, and `truth.jsonl`."""
    import pyarrow.parquet as pq  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from tests.bench.mismatch.plant import CLEAN, PAIRS, SINGLE, Models  # noqa: PLC0415

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "truth.jsonl").open("a", encoding="utf-8") as truth:
        for seed in seeds:
            models = Models(seed)
            cases: dict[str, tuple[tuple[str, ...], Any]] = {}
            cases |= {name: ((cause,), setup) for name, (cause, setup) in SINGLE.items()}
            cases |= dict(PAIRS)
            cases |= {name: ((), setup) for name, setup in CLEAN.items()}
            for number, (name, (causes, setup)) in enumerate(cases.items()):
                planted, path = models.plant(setup), f"{seed}-{number:02}.parquet"
                pq.write_table(planted.table, folder / path)
                entry = {"file": path, "case": name, "causes": causes, "seed": seed}
                entry |= {"gap": planted.gap, "kept": planted.kept}
                truth.write(json.dumps(entry) + "\n")
                truth.flush()


def judge(folder: Path) -> None:
    """Print the table."""
    lines = (folder / "truth.jsonl").read_text(encoding="utf-8").splitlines()
    right: dict[str, list[bool]] = {"single": [], "pair": [], "clean": []}
    for entry in sorted(map(json.loads, lines), key=lambda one: (one["file"][2:], one["file"])):
        causes, named = entry["causes"], named_causes(folder / entry["file"])
        names = [one["name"] for one in named]
        kind = ("clean", "single", "pair")[len(causes)]
        ok = {
            "clean": not names,
            "single": names[:1] == causes,
            "pair": {*causes} <= {*names},
        }[kind]
        right[kind].append(ok)
        shares = ", ".join(f"{one['name']} {one['share']:.2f}" for one in named)
        kept = f" (kept {entry['kept']:.3f})" if entry["kept"] < 1 else ""
        estimates = [str(one["estimate"]) for one in named if one["name"] == "truncated-sampling"]
        print(
            f"{'ok ' if ok else 'NO '} {entry['file']:13} {entry['case']:36} gap {entry['gap']:.5f}"
            f"{kept}: {shares or '-'} {' '.join(estimates)}"
        )
    for kind, parts in right.items():
        print(f"{kind}: {sum(parts)} of {len(parts)}")


def named_causes(path: Path) -> list[dict[str, Any]]:
    """Return what the program prints as causes, the largest share first."""
    command = [
        sys.executable,
        "-m",
        "rlpost",
        "inspect",
        str(path),
        "--about",
        "mismatch",
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise SystemExit(ran.stderr)
    causes: list[dict[str, Any]] = json.loads(ran.stdout)["mismatch"]["causes"]
    return causes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["plant", "judge"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3")
    options = parser.parse_args()
    if options.what == "plant":
        plant(options.folder, [int(one) for one in options.seeds.split(",")])
    else:
        judge(options.folder)
