"""The supply chain: the lock files agree, and the wheel has a bill of materials."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HASHED = (".ci/requirements-hashed.lock", ".ci/requirements-hashed-cpu.lock")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    """Package -> version, without its local part (`+cpu`)."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==([^\s;+\\]+)", text, re.MULTILINE)
    return {normal(package): version for package, version in found}


def direct(requirements: list[str]) -> dict[str, str]:
    """Package -> lowest allowed version."""
    found = (re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", one) for one in requirements)
    return {normal(one[1]): one[2] for one in found if one}


@pytest.mark.parametrize("lock", HASHED)
def test_locks_with_hashes_pin_the_versions_of_the_tests(lock):
    tested, hashed = pins("requirements.lock"), pins(lock)
    assert {name: hashed[name] for name in hashed.keys() & tested.keys()} == {
        name: tested[name] for name in hashed.keys() & tested.keys()
    }
    assert direct(PROJECT["dependencies"]).keys() <= hashed.keys()


@pytest.mark.parametrize("lock", HASHED)
def test_every_pin_of_a_lock_with_hashes_has_a_hash(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(lock)) > 20
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_wheel_has_a_bill_of_materials(tmp_path):
    build = "from hatchling.build import build_wheel; import sys; build_wheel(sys.argv[1])"
    argv = [sys.executable, "-c", build, str(tmp_path)]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if "/sboms/" in one]
        bill = json.loads(archive.read(name))
    assert re.fullmatch(r"rlpost-[\w.]+\.dist-info/sboms/rlpost\.cdx\.json", name)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    parts = {part["name"]: part for part in bill["components"]}
    hashed = pins(".ci/requirements-hashed.lock")
    assert {name: part["version"] for name, part in parts.items()} == hashed
    assert all(part["externalReferences"][0]["hashes"] for part in parts.values())
    (needs,) = bill["dependencies"]
    dependencies = {one.removeprefix("pkg:pypi/").split("@")[0] for one in needs["dependsOn"]}
    assert dependencies == direct(PROJECT["dependencies"]).keys()


def test_the_bill_includes_every_pin_of_a_lock():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lock = (
        "# a comment\na-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "c==2 ; python_version < '3.12' \\\n    --hash=sha256:cc\n"
    )
    components = module.components(lock)
    assert [(one["name"], one["version"]) for one in components] == [("a-b", "1.0"), ("c", "2")]
    hashes = [[h["content"] for h in one["externalReferences"][0]["hashes"]] for one in components]
    assert hashes == [["aa", "bb"], ["cc"]]
