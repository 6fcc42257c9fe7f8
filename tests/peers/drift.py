"""Which presets have drifted from the newest releases: `python -m tests.peers.drift [NAME...]`.

Each framework (default: all with a preset) is installed anew, in its newest release, in
`.peers/NAME-newest`, and its cases run there. A preset has drifted if
a case differs, or if the framework has an estimator or a loss that the preset does not cover. The
exit code is 1 if one has drifted, or could not be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.comparison import PEERS
from peers.environments import FRAMEWORKS, environment, run


def verdict(name: str) -> dict | str:
    """What the cases show, or why they did not run."""
    try:
        python = environment(name, newest=True)
    except subprocess.CalledProcessError as error:
        return f"pip exits with {error.returncode}"
    ran = run(python, "peers.comparison", name, capture=True)
    return json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr.strip()


def lines(name: str, found: dict | str) -> tuple[bool, list[str]]:
    """Whether a preset drifted, and what is printed; the first line is the verdict."""
    if isinstance(found, str):
        return True, [f"{name}: not compared", f"  {found}"]
    what = f"{name} {found['version']} (the preset: {found['release'] or 'a commit'})"
    differs = [f"  {one['case']}: {one['difference']}" for one in found["different"]]
    lacks = [f"  not covered: {one}" for one in found["uncovered"]]
    if not differs and not lacks:
        return False, [f"{what}: {found['cases']} cases, no drift"]
    text = f"{what}: drifted, {len(differs)} of {found['cases']} cases differ"
    return True, [text, *differs, *lacks]


def main(names: list[str]) -> int:
    """Compare the presets; return the exit code."""
    drifted = False
    for name in names or [one for one in FRAMEWORKS if one in PEERS]:
        this, texts = lines(name, verdict(name))
        print(*texts, sep="\n", flush=True)
        drifted |= this
    return int(drifted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
