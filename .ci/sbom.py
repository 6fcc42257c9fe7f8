"""Hatchling build hook: a CycloneDX software bill of materials in the wheel (PEP 770).

The wheel bundles no other package. The bill lists the dependencies with the versions and hashes of
.ci/requirements-hashed.lock, which the tests use. So the same sources produce the same bill.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LOCK = ".ci/requirements-hashed.lock"
_PIN = re.compile(r"^([\w.-]+)==(\S+)((?:.*\\\n +--hash=\S+| ; [^\\\n]*)+)", re.MULTILINE)


class SbomBuildHook(BuildHookInterface):
    """Add the bill to wheels, except to those of editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill, and add its path to the build data."""
        if version == "editable":
            return
        core = self.metadata.core
        pins = components((Path(self.root) / LOCK).read_text(encoding="utf-8"))
        document = sbom(core.name, self.metadata.version, core.license_expression, pins)
        direct = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in core.dependencies}
        dependencies = sorted(pin["bom-ref"] for pin in pins if pin["name"] in direct)
        document["dependencies"][0]["dependsOn"] = dependencies
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / f"{core.name}.cdx.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(path))


def components(lock: str) -> list[dict[str, Any]]:
    """Return the pins of a lock file with hashes as CycloneDX components."""
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "scope": "required",
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{version}/",
                    "hashes": [
                        {"alg": "SHA-256", "content": digest}
                        for digest in re.findall(r"sha256:(\w+)", rest)
                    ],
                }
            ],
        }
        for name, version, rest in _PIN.findall(lock)
    ]


def sbom(name: str, version: str, licence: str, pins: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a CycloneDX document."""
    own = f"pkg:pypi/{name}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "licenses": [{"expression": licence}],
            }
        },
        "components": pins,
        "dependencies": [{"ref": own, "dependsOn": []}],
    }
