"""Makes lbctl the subject of an SBOM of its environment.

`python -m tests.deploy.sbom < CYCLONEDX > FILE` reads and writes CycloneDX JSON. `cyclonedx-py environment` takes the
subject from pyproject.toml, which has no version, and lists the installed lbctl as one package of many.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def about_lbctl(bom: dict[str, Any]) -> dict[str, Any]:
    """Return an SBOM whose subject is its component `lbctl`, without the path from which it was installed.

    References to the component stay valid.
    """
    (subject,) = [item for item in bom["components"] if item["name"] == "lbctl"]
    others = [item for item in bom["components"] if item is not subject]
    subject = {key: value for key, value in subject.items() if key != "externalReferences"}
    subject |= {"type": "application", "purl": f"pkg:pypi/lbctl@{subject['version']}"}
    return bom | {"metadata": bom.get("metadata", {}) | {"component": subject}, "components": others}


if __name__ == "__main__":
    json.dump(about_lbctl(json.load(sys.stdin)), sys.stdout, indent=2)
    print()
