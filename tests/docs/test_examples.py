"""Every file in examples/ is a fleet that compiles and that all proxies accept."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from lbctl.cli import run
from tests.support.kubernetes_objects import VERSIONS, problems
from tests.support.paths import ROOT
from tests.support.processes.binaries import KINDS, Kind, require

FOLDER = ROOT / "examples"
FLEETS = sorted(str(path.relative_to(FOLDER)) for path in (*FOLDER.glob("*.yaml"), *FOLDER.glob("migrating/*.yaml")))
TO_COPY = sorted({path.name for path in FOLDER.glob("*.yaml")} - {"fleet.yaml", "quickstart.yaml"})
"""All examples except for the ones with every key and with the fewest keys."""
OBJECTS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("kubernetes/*.yaml"))
"""Fleets for gateways in Kubernetes."""
PARTS = {"targets.json", "keys/tenants.yaml"}
"""Files that a fleet refers to."""
MODELINE = "# yaml-language-server: $schema="


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLEETS)
def test_example_is_rendered_and_accepted(
    name: str, kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    for proxy in proxy_options(name, kind):
        out = tmp_path / "-".join(("out", *proxy))
        code = run(["render", "-t", kind, *proxy, "--check", "-d", str(out), str(FOLDER / name)])
        messages = capsys.readouterr().err
        assert code == 0, messages
        assert ": error " not in messages
        assert list(out.iterdir())


def proxy_options(name: str, kind: Kind) -> list[list[str]]:
    """Return the option for each proxy of this kind in the fleet, or no option if there is none."""
    fleet = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    names = [proxy for proxy, keys in fleet.get("proxies", {}).items() if keys["kind"] == kind]
    return [["--proxy", proxy] for proxy in names] or [[]]


@pytest.mark.parametrize("name", OBJECTS)
def test_example_is_rendered_as_objects(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (kind,) = {entry["kind"] for entry in yaml.safe_load((FOLDER / name).read_text())["proxies"].values()}
    assert run(["render", "-t", kind, str(FOLDER / name)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [fault for item in objects for fault in problems(item, VERSIONS[kind][-1], kind)] == []
    assert {"Gateway", "VirtualService" if kind == "istio" else "HTTPRoute"} <= {item["kind"] for item in objects}


def test_canary_in_kubernetes_has_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", "gateway-api", str(FOLDER / "kubernetes" / "canary.yaml")]) == 0
    output = capsys.readouterr()
    (rule,) = next(yaml.safe_load_all(output.out.partition("---")[2]))["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"name": "llama-v1", "port": 8000, "weight": 95},
        {"name": "llama-v2", "port": 8000, "weight": 5},
    ]
    assert rule["timeouts"] == {"request": "0s"}
    assert [line for line in output.err.splitlines() if "create secret tls edge-public" not in line] == []


def test_header_canary_for_istio_has_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", "istio", str(FOLDER / "kubernetes" / "header-canary.yaml")]) == 0
    output = capsys.readouterr()
    objects = yaml.safe_load_all(output.out)
    (service,) = [item for item in objects if item["kind"] == "VirtualService"]
    pinned, divided = service["spec"]["http"]
    assert pinned["match"] == [{"port": 443, "headers": {"x-model-version": {"exact": "v2"}}}]
    hosts = [f"llama-{version}.ml.svc.cluster.local" for version in ("v1", "v2")]
    assert pinned["route"] == [{"destination": {"host": hosts[1], "port": {"number": 8001}}}]
    assert divided["match"] == [{"port": 443}]
    assert divided["route"] == [
        {"destination": {"host": host, "port": {"number": 8001}}, "weight": weight}
        for host, weight in zip(hosts, (90, 10), strict=True)
    ]
    for rule in (pinned, divided):
        assert rule["timeout"] == "120s"
        assert rule["retries"] == {
            "attempts": 2,
            "perTryTimeout": "60s",
            "retryOn": "connect-failure,refused-stream,unavailable",
            "backoff": "25ms",
        }
    assert [line for line in output.err.splitlines() if "create secret tls ml-edge-public" not in line] == []


@pytest.mark.parametrize("name", [*FLEETS, *OBJECTS])
def test_example_begins_with_a_description(name: str) -> None:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    head = next(line for line in lines if not line.startswith(MODELINE))
    assert re.fullmatch(r"# [A-Z].{20,}[.:]?.*", head), head


@pytest.mark.parametrize("name", TO_COPY)
def test_example_explains_changes_and_observation(name: str) -> None:
    modeline, *lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    head = lines[: lines.index("version: 1")]
    assert (FOLDER / modeline.removeprefix(MODELINE)).resolve() == ROOT / "schemas" / "lbctl.schema.json"
    assert 3 <= len(head) <= 7
    assert all(any(line.startswith(f"# To {verb}: ") for line in head) for verb in ("change", "watch"))


def test_examples_contain_no_other_files() -> None:
    """Files for pipelines are in a separate folder."""
    files = {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()}
    assert {str(path) for path in files if path.parts[0] != "ci"} == {*FLEETS, *OBJECTS, *PARTS}


def test_sample_keys_are_invented() -> None:
    """Each hash belongs to a key in the same file, so that no real key can be among them."""
    text = (FOLDER / "keys" / "tenants.yaml").read_text(encoding="utf-8")
    shown = {hashlib.sha256(key.encode()).hexdigest() for key in re.findall(r'"(example-key-[a-z-]+)"', text)}
    assert set(re.findall(r"^sha256:([0-9a-f]{64}): ", text, re.MULTILINE)) == shown
    assert len(shown) == 2
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 2
