"""README's commands and snippets do what they say, as they are written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import polars as pl
from typer.main import get_command

from rlpost import Recipe
from rlpost.cli import COMMANDS as CLI

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.+?)```", README, flags=re.DOTALL)
SNIPPETS = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
TOML = re.findall(r"```toml\n(.+?)```", README, flags=re.DOTALL)


def run(argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)


def test_first_command_ends_in_the_main_job_on_sample_data(tmp_path):
    job = COMMANDS[0].strip().split(" && ")[-1]
    argv = shlex.split(job)
    assert argv[:3] == [".venv/bin/rlpost", "advantages", "sample_data/arithmetic.parquet"]
    argv[0] = str(Path(sys.executable).with_name("rlpost"))
    argv[2] = str(ROOT / argv[2])
    done = run(argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / argv[3]).stat().st_size > Path(argv[2]).stat().st_size
    assert "512 responses" in done.stderr


def test_second_command_is_what_ci_runs():
    assert COMMANDS[1].strip() in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_install_command_is_what_ci_runs():
    install = COMMANDS[0].strip().split(" && ")[1].removeprefix(".venv/bin/pip ")
    assert install in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_python_snippet_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.parquet").symlink_to(ROOT / "sample_data" / "arithmetic.parquet")
    names = {"arrow_table_or_polars_frame": pl.read_parquet("in.parquet")}
    exec(SNIPPETS[0], names)  # noqa: S102
    assert names["table"].num_rows == names["summary"]["responses"] == 512
    assert {"advantages", "returns"} <= set(names["table"].column_names)


def test_recipe_example_is_valid(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(TOML[0], encoding="utf-8")
    recipe = Recipe.from_toml(path)
    assert (recipe.estimator, recipe.kl_estimator) == ("gae", "k3")
    assert recipe.columns == {"mask": "loss_mask"}


def test_every_option_that_readme_names_exists():
    commands = [get_command(import_module(f"rlpost.commands.{name}").app) for name in CLI]
    subcommands = [own for one in commands for own in getattr(one, "commands", {}).values()]
    known = {
        flag
        for command in [*commands, *subcommands]
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    named = set(re.findall(r"`(--[a-z-]+)", README))
    assert named <= known | {"--help"}, named - known
