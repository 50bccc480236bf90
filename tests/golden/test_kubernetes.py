"""Golden cases of Kubernetes objects: a fleet in; the objects and the messages of `lbctl render` out.

A case is a folder in `kubernetes`. Its inputs are `in.yaml` and the files that it names. The outputs are the objects,
and `diagnostics.txt` with the messages, if there are any. A fleet with several entries has a folder for each of them.
`make golden` writes the outputs; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lbctl.cli import run
from tests.golden.cases import DIRECTORY
from tests.support.kubernetes_objects import GATEWAY_API, problems

CASES = DIRECTORY / "kubernetes"
NAMES = sorted(path.parent.name for path in CASES.glob("*/in.yaml"))
OBJECTS, MESSAGES = "gateway-api.yaml", "diagnostics.txt"


def entries(case: str) -> list[str]:
    """Return the entries of the case's fleet."""
    fleet = yaml.safe_load((CASES / case / "in.yaml").read_text())
    return list(fleet["proxies"])


def rendered(case: str, entry: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, the objects and the messages."""
    capsys.readouterr()
    code = run(["render", "-t", "gateway-api", "--proxy", entry, *arguments, "in.yaml"])
    return code, *capsys.readouterr()


def places(case: str) -> dict[str, Path]:
    """Map each entry to the folder with its outputs."""
    listed = entries(case)
    return {entry: CASES / case / (entry if len(listed) > 1 else "") for entry in listed}


@pytest.mark.parametrize("case", NAMES)
def test_fleet_renders_to_the_expected_objects(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(CASES / case)
    for entry, place in places(case).items():
        code, objects, messages = rendered(case, entry, capsys)
        assert code == 0, messages
        outputs = {OBJECTS: objects, **({MESSAGES: messages} if messages else {})}
        if request.config.getoption("--update-golden"):
            place.mkdir(exist_ok=True)
            (place / MESSAGES).unlink(missing_ok=True)
            for name, text in outputs.items():
                (place / name).write_text(text)
        expected = {name: (place / name).read_text() for name in (OBJECTS, MESSAGES) if (place / name).exists()}
        assert outputs == expected, f"{case} differs; if the new text is right: make golden"


@pytest.mark.parametrize("version", GATEWAY_API)
@pytest.mark.parametrize("case", NAMES)
def test_schemas_accept_the_objects(
    case: str, version: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES / case)
    for entry in entries(case):
        code, text, messages = rendered(case, entry, capsys, "--proxy-version", version.rpartition(".")[0])
        assert code == 0, messages
        objects = list(yaml.load_all(text, yaml.CSafeLoader))
        found = {(item["kind"], item["metadata"]["name"]): problems(item, version) for item in objects}
        assert {name: faults for name, faults in found.items() if faults} == {}
        assert len(found) == len(objects)


def test_directory_has_a_kustomization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "canary")
    for name in ("one", "two"):
        assert run(["render", "-t", "gateway-api", "-d", str(tmp_path / name), "in.yaml"]) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert yaml.safe_load(files["kustomization.yaml"]) == {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [OBJECTS],
    }
    assert files == {path.name: path.read_text() for path in (tmp_path / "two").iterdir()}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "one").iterdir()} == {0o644}
