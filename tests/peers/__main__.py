"""Hold presets against the released frameworks: `python -m tests.peers [NAME...]`.

Each framework (default: all) has an environment in `.peers/`, in which `tests/peers` runs. The
exit code is 1 if a test fails or a framework cannot be installed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.environments import FRAMEWORKS, environment, run


def main(names: list[str]) -> int:
    """Test the frameworks; return the exit code."""
    unknown = {*names} - {*FRAMEWORKS}
    if unknown:
        print(f"no framework {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
        return 2
    failed = []
    for name in names or FRAMEWORKS:
        start = time.monotonic()
        try:
            python = environment(name)
        except subprocess.CalledProcessError:
            failed.append(f"{name}: not installed")
            continue
        words = ("--quiet", "-m", "nightly", "-p", "no:xdist", "-p", "no:cacheprovider")
        ran = run(python, "pytest", *words, "tests/peers", "-k", f"[{name}")
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        if ran.returncode:
            failed.append(f"{name}: pytest exits with {ran.returncode}")
    print(*failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
