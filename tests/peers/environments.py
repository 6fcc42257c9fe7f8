"""An environment for each framework of frameworks.toml: a venv in `.peers/`.

It sees the libraries of the environment that runs this, so that only the framework and what it
needs are installed. What rlpost itself depends on stays at the versions of requirements.lock, torch
among it; a framework that excludes one of them is not installed, and pip prints why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

from rlpost.recipe.presets import PRESETS, source_of

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".peers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FRAMEWORKS = tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))
"""What is installed with its dependencies (`needs`), and without (`alone`)."""
DONE = "installed.json"


def distribution(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def constraints(name: str, *, newest: bool) -> list[str]:
    """rlpost's own dependencies as locked, and the release that the preset is made for."""
    own = {distribution(one) for one in PROJECT["dependencies"]}
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line.partition("==")[0] in own]
    release = source_of(name).release.removeprefix("v") if name in PRESETS else ""
    return pinned if newest or not release else [*pinned, f"{name}=={release}"]


def environment(name: str, *, newest: bool = False) -> Path:
    """Make the environment of a framework unless it is there; return its Python.

    With `newest`, it has the newest release instead of the preset's, and is made anew.

    Raises:
        subprocess.CalledProcessError: pip could not install the framework.
    """
    home = HOME / (f"{name}-newest" if newest else name)
    python, done, pins = home / "bin" / "python", home / DONE, constraints(name, newest=newest)
    needed, alone = FRAMEWORKS[name].get("needs", []), FRAMEWORKS[name].get("alone", [])
    asked = {"requirements": [*alone, *needed], "constraints": pins, "python": sys.version}
    if not newest and done.exists() and json.loads(done.read_text()) == asked:
        return python
    print(f"{home.relative_to(ROOT)}: installing {', '.join(asked['requirements'])}", flush=True)
    venv.create(home, with_pip=True, clear=True)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
    (site / "site-packages" / "shared.pth").write_text(shared)
    limits = home / "constraints.txt"
    limits.write_text("".join(f"{pin}\n" for pin in pins))
    words = ["-qq", "--disable-pip-version-check", "--constraint", str(limits)]
    install = [python, "-m", "pip", "install", *words]
    if needed:
        subprocess.run([*install, *needed], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", *alone], check=True)
    done.write_text(json.dumps(asked))
    return python


def run(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module in an environment, with rlpost of this checkout."""
    path = os.pathsep.join(
        [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return subprocess.run(
        [python, "-W", "ignore", "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        check=False,
    )
