"""The files that state the version of lbctl, and the notes of a release.

`python -m tests.deploy.release v1.0.0` checks that all of them state 1.0.0 and prints its section of CHANGELOG.md. It
needs no packages.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_VERSION = r"(\d+\.\d+\.\d+)\b"
_SOURCE = rf"lbctl@v{_VERSION}"


@dataclass(frozen=True)
class Place:
    """Text of a file that states the version. `pattern` has one group, for the version."""

    file: str
    pattern: str

    def version(self) -> str | None:
        """Return the version at the first match of the pattern."""
        match = re.search(self.pattern, (ROOT / self.file).read_text(encoding="utf-8"), re.MULTILINE)
        return match[1] if match else None

    def __str__(self) -> str:
        return f"{self.file} ({self.pattern})"


PLACES = (
    Place("lbctl/__init__.py", rf'^__version__ = "{_VERSION}"$'),
    Place("deploy/docker/Dockerfile", rf"\borg\.opencontainers\.image\.version={_VERSION}"),
    Place("deploy/helm/lbctl/Chart.yaml", rf"^version: {_VERSION}$"),
    Place("deploy/helm/lbctl/Chart.yaml", rf'^appVersion: "{_VERSION}"$'),
    Place("deploy/helm/lbctl/values.yaml", rf"^image: \S+/lbctl:{_VERSION}"),
    Place("deploy/kustomize/base/kustomization.yaml", rf'^ +newTag: "{_VERSION}"$'),
    Place("deploy/kustomize/picker/kustomization.yaml", rf'^ +newTag: "{_VERSION}"$'),
    Place("docs/how-to/ci-and-gitops.md", _SOURCE),
    Place("docs/how-to/install-in-production.md", rf"/lbctl-{_VERSION}-py3-none-any\.whl"),
    Place("docs/how-to/upgrade-and-back-up.md", rf"previous version\n[^#]*?/?lbctl-{_VERSION}"),
    Place("examples/ci/action.yml", _SOURCE),
    Place("examples/ci/gitlab-ci.yml", _SOURCE),
    Place("examples/ci/pre-commit-config.yaml", rf"^ +rev: v{_VERSION}$"),
    Place("examples/ci/workflow.yml", _SOURCE),
)


def differences(version: str) -> list[str]:
    """Return a line for each place that does not state this version."""
    return [
        f"{place}: {found or 'nothing'}, not {version}" for place in PLACES if (found := place.version()) != version
    ]


def notes(changelog: str, version: str) -> str | None:
    """Return the text of the dated section of a version, without its heading, or None if there is no such section."""
    heading = rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d\n"
    match = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else None


def main(tag: str) -> int:
    """Print the notes of a tagged version, or what does not agree with the tag. Return the exit code."""
    version = tag.removeprefix("v")
    wrong = differences(version)
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not text:
        wrong.append(f"CHANGELOG.md: no dated section with the changes of {version}")
    wrong += [f"{file.relative_to(ROOT)}: not in CHANGELOG.md yet" for file in sorted((ROOT / "changes").glob("+*"))]
    print("\n".join(wrong), file=sys.stderr) if wrong else print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
