"""README's two commands are what CI runs; test_manual.py has the rest of README."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.+?)```", README, flags=re.DOTALL)
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def run(argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def test_the_first_command_installs_what_the_main_job_needs_and_no_more():
    install = COMMANDS[0].strip().split(" && ")[1]
    assert install.endswith("--constraint requirements.lock --editable .")


def test_the_main_job_needs_no_library_of_an_extra(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {Requirement(text).name for text in project["dependencies"]}
    extra = {
        Requirement(text).name.removesuffix("-python").replace("-", "_")
        for texts in project["optional-dependencies"].values()
        for text in texts
    }
    argv = shlex.split(COMMANDS[0].strip().split(" && ")[-1])
    assert argv[:3] == [".venv/bin/rlpost", "advantages", "sample_data/arithmetic.parquet"]
    argv[:3] = ["rlpost", argv[1], str(ROOT / argv[2])]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(extra - needed)!r}))
sys.argv = {argv!r}
from rlpost.cli.main import leave
leave()
"""
    done = run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "512 responses" in done.stderr
    assert (tmp_path / argv[3]).stat().st_size > Path(argv[2]).stat().st_size
    assert {"pytest", "ray", "obstore"} <= extra - needed


def test_ci_runs_both_commands_as_they_are_written():
    lines = [line.strip() for line in CI.splitlines()]
    assert COMMANDS[0].strip() in lines
    assert [COMMANDS[1].strip(), "} || exit"] == lines[-2:]  # `set -e` passes over A of A && B
