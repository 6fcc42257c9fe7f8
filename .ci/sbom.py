"""Puts a software bill of materials into the wheel: CycloneDX, where PEP 770 has it.

rlpost bundles nothing. The bill says what it needs, in the versions and with the hashes that it is
tested with, as .ci/requirements-hashed.lock has them; so it is the same for the same sources.
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


class Bill(BuildHookInterface):
    """Adds the bill to wheels that are made to be given away."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill, and tell hatchling where it is."""
        if version == "editable":
            return
        core = self.metadata.core
        pins = components((Path(self.root) / LOCK).read_text(encoding="utf-8"))
        found = bill(core.name, self.metadata.version, core.license_expression, pins)
        direct = {re.split(r"[^\w.-]", one)[0].lower() for one in core.dependencies}
        needed = sorted(pin["bom-ref"] for pin in pins if pin["name"] in direct)
        found["dependencies"][0]["dependsOn"] = needed
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / f"{core.name}.cdx.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(path))


def components(lock: str) -> list[dict[str, Any]]:
    """The pins of a lock with hashes, as CycloneDX has components."""
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
                        {"alg": "SHA-256", "content": one}
                        for one in re.findall(r"sha256:(\w+)", rest)
                    ],
                }
            ],
        }
        for name, version, rest in _PIN.findall(lock)
    ]


def bill(name: str, version: str, licence: str, pins: list[dict[str, Any]]) -> dict[str, Any]:
    """A CycloneDX document."""
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
