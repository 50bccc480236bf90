"""Golden cases of Kubernetes objects: a fleet in; the objects and the messages of `lbctl render` out, for each kind.

A case is a folder in `kubernetes`. Its inputs are `in.yaml`, whose entries have the kind `gateway-api`, and the files
that it names. The other kinds get the same fleet with their own kind in the entries (`of_kind`). The outputs are
`KIND.yaml` with the objects, and `KIND.diagnostics.txt` with the messages, if there are any. A kind that rejects the
fleet has only messages. A fleet with several entries has a folder for each of them. `make golden` writes the outputs;
read the diff.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from lbctl.cli import run
from tests.golden.cases import DIRECTORY
from tests.support.gateway_kinds import KINDS, of_kind
from tests.support.kubernetes_objects import VERSIONS, problems

CASES = DIRECTORY / "kubernetes"
NAMES = sorted(path.parent.name for path in CASES.glob("*/in.yaml"))
EXIT_INVALID = 1


def enter(case: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a copy of the case whose fleet has the kind."""
    shutil.copytree(CASES / case, folder, dirs_exist_ok=True)
    (folder / "in.yaml").write_text(of_kind((CASES / case / "in.yaml").read_text(), kind))
    monkeypatch.chdir(folder)


def rendered(kind: str, entry: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, the objects and the messages."""
    capsys.readouterr()
    code = run(["render", "-t", kind, "--proxy", entry, *arguments, "in.yaml"])
    return code, *capsys.readouterr()


def places(case: str) -> dict[str, Path]:
    """Map each entry to the folder with its outputs."""
    listed = list(yaml.safe_load((CASES / case / "in.yaml").read_text())["proxies"])
    return {entry: CASES / case / (entry if len(listed) > 1 else "") for entry in listed}


def accepted(case: str, kind: str) -> list[str]:
    """Return the entries for which the case has objects of the kind."""
    return [entry for entry, place in places(case).items() if (place / f"{kind}.yaml").exists()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", NAMES)
def test_fleet_renders_to_the_expected_objects(
    case: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    enter(case, kind, tmp_path, monkeypatch)
    for entry, place in places(case).items():
        code, objects, messages = rendered(kind, entry, capsys)
        assert code == 0 or (code == EXIT_INVALID and messages), messages
        outputs = {f"{kind}.yaml": objects, f"{kind}.diagnostics.txt": messages}
        if request.config.getoption("--update-golden"):
            place.mkdir(exist_ok=True)
            for name, text in outputs.items():
                (place / name).unlink(missing_ok=True)
                if text:
                    (place / name).write_text(text)
        expected = {name: (place / name).read_text() if (place / name).exists() else "" for name in outputs}
        assert outputs == expected, f"{case} differs; if the new text is right: make golden"


@pytest.mark.parametrize(("kind", "version"), [(kind, version) for kind in KINDS for version in VERSIONS[kind]])
@pytest.mark.parametrize("case", NAMES)
def test_schemas_accept_the_objects(
    case: str,
    kind: str,
    version: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter(case, kind, tmp_path, monkeypatch)
    for entry in accepted(case, kind):
        code, text, messages = rendered(kind, entry, capsys, "--proxy-version", version.rpartition(".")[0])
        assert code == 0, messages
        objects = list(yaml.load_all(text, yaml.CSafeLoader))
        found = {(item["kind"], item["metadata"]["name"]): problems(item, version, kind) for item in objects}
        assert {name: faults for name, faults in found.items() if faults} == {}
        assert len(found) == len(objects)
        assert {item["kind"] for item in objects}.isdisjoint({"EnvoyFilter", "EnvoyPatchPolicy", "Secret"})


@pytest.mark.parametrize("kind", KINDS)
def test_directory_has_a_kustomization(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter("canary", kind, tmp_path / "fleet", monkeypatch)
    for name in ("one", "two"):
        assert run(["render", "-t", kind, "-d", str(tmp_path / name), "in.yaml"]) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert yaml.safe_load(files["kustomization.yaml"]) == {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{kind}.yaml"],
    }
    assert files.keys() == {"kustomization.yaml", f"{kind}.yaml"}
    assert files == {path.name: path.read_text() for path in (tmp_path / "two").iterdir()}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "one").iterdir()} == {0o644}
