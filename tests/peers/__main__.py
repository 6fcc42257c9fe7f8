"""Hold presets against the released frameworks: `python -m tests.peers [--newest] [NAME...]`.

Each framework (default: all) has an environment in `.peers/`, in which `tests/peers` runs. With
`--newest` it has the newest release instead of the preset's: a case that differs then shows that
the preset has drifted, and so does an estimator or a loss that it does not cover. The exit code is
1 if a test fails or a framework cannot be installed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.environments import FRAMEWORKS, environment, run


def main(words: list[str]) -> int:
    """Test the frameworks; return the exit code."""
    newest, names = "--newest" in words, [word for word in words if word != "--newest"]
    unknown = {*names} - {*FRAMEWORKS}
    if unknown:
        print(f"no framework {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
        return 2
    failed = []
    for name in names or FRAMEWORKS:
        start = time.monotonic()
        try:
            python = environment(name, newest=newest)
        except subprocess.CalledProcessError:
            failed.append(f"{name}: not installed")
            continue
        how = ("--quiet", "-m", "nightly", "-p", "no:xdist", "-p", "no:cacheprovider")
        chosen = f"[{name}" + " and not made_for_the_installed_release" * newest
        ran = run(python, "pytest", *how, "tests/peers", "-k", chosen)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        if ran.returncode:
            failed.append(f"{name}: pytest exits with {ran.returncode}")
    print(*failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
