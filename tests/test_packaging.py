"""The wheel: its files, its metadata, and an installation of it in a fresh environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import rlpost
from rlpost.errors import UnavailableError
from rlpost.formats.targets import TARGETS
from rlpost.optional import need

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(text) for text in PROJECT["dependencies"]]
SAMPLE = ROOT / "sample_data" / "arithmetic.parquet"


def ran(*argv, **options):
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel; its dependencies come from the current environment."""
    home = tmp_path_factory.mktemp("fresh")
    ran(sys.executable, "-m", "venv", "--without-pip", home)
    ran(
        *(sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install"),
        *("--quiet", "--no-deps", "--no-index", wheel),
    )
    scripts = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", vars=scripts))
    # Python adds a directory that a .pth file names to its path, but ignores .pth files in it. So
    # the editable rlpost of the current environment is not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    package = ROOT / "rlpost"
    wanted = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("rlpost/")}
    assert found == wanted
    assert {"rlpost/py.typed", "rlpost/recipe/presets/verl.toml"} <= found


def test_the_metadata_of_the_wheel_agree_with_the_project(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (one for one in archive.namelist() if one.endswith("/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert (metadata["Name"], metadata["Version"]) == ("rlpost", rlpost.__version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert {*metadata.get_all("Provides-Extra")} == {*EXTRAS}
    assert archive.testzip() is None


def test_the_script_has_the_name_of_the_package(wheel):
    """So `pipx run rlpost` and `uvx rlpost` find the script."""
    assert [*PROJECT["scripts"]] == [PROJECT["name"]]
    archive = zipfile.ZipFile(wheel)
    (name,) = (one for one in archive.namelist() if one.endswith("/entry_points.txt"))
    assert f"rlpost = {PROJECT['scripts']['rlpost']}" in archive.read(name).decode()


def test_the_installed_program_works(installed, tmp_path):
    program = installed / "bin" / "rlpost"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    imported = ran(
        installed / "bin" / "python", "-c", "import rlpost; print(rlpost.__file__)", cwd=tmp_path
    )
    assert Path(imported.stdout.strip()).is_relative_to(installed)
    assert "advantages" in ran(program, "--help", cwd=tmp_path, env=environment).stdout
    out = tmp_path / "out.parquet"
    words = ("advantages", SAMPLE, out, "--preset", "verl", "--summary-json", "-", "--quiet")
    done = ran(program, *words, cwd=tmp_path, env=environment)
    assert json.loads(done.stdout)["responses"] == 512
    assert "advantages" in pq.read_schema(out).names
    assert done.stderr == ""


@pytest.mark.nightly
def test_the_installed_package_is_typed(installed, tmp_path):
    code = "import rlpost\nreveal_type(rlpost.Recipe(gamma=0.5).gamma)\nrlpost.Recipe(gama=1)\n"
    (tmp_path / "use.py").write_text(code)
    others = "[mypy-torch.*,numpy.*,pyarrow.*,polars.*,pandas.*,rich.*,pydantic_core.*]\n"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{others}follow_imports = skip\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", installed / "bin" / "python",
         "--no-incremental", "--strict", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert re.search(r'Revealed type is "(builtins\.)?float"', done.stdout), done.stdout
    assert "import-untyped" not in done.stdout
    assert 'Unexpected keyword argument "gama"' in done.stdout


def test_every_dependency_has_a_lowest_version():
    every = [*REQUIREMENTS, *(Requirement(text) for extra in EXTRAS.values() for text in extra)]
    assert [str(one) for one in every if not any(x.operator == ">=" for x in one.specifier)] == []


def test_the_locked_versions_satisfy_the_requirements():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = {canonicalize_name(name): Version(x) for name, x in (one.split("==") for one in lines)}
    tested = [Requirement(text) for extra in ("test", "nightly") for text in EXTRAS[extra]]
    named = {canonicalize_name(one.name): one.specifier for one in [*REQUIREMENTS, *tested]}
    assert sorted(named.keys() - locked.keys()) == [], "not locked"
    assert [name for name, asked in named.items() if not asked.contains(locked[name])] == []


def test_every_extra_in_an_error_exists():
    asked = {
        extra
        for path in (ROOT / "rlpost").rglob("*.py")
        for extra in re.findall(r"""need\(\s*f?"[^"]*",\s*"([\w-]+)""", path.read_text("utf-8"))
    }
    asked |= {target.library for target in TARGETS.values() if target.library}
    assert {"ray", "verl"} <= asked <= {*EXTRAS}


def test_the_error_of_a_missing_extra_has_the_command_to_install_it():
    need("the test", "test", "pytest", "hypothesis")
    with pytest.raises(UnavailableError) as raised:
        need("the stores", "cloud", "pytest", "nosuchlibrary")
    (part,) = raised.value.parts
    assert part.text == "the stores needs nosuchlibrary, which is not installed"
    words = shlex.split(part.tip)
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert [Requirement(word) for word in words[4:]] == [*map(Requirement, EXTRAS["cloud"])]
    assert raised.value.exit_code == 5
