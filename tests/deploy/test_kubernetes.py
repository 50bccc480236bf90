"""deploy/kustomize, deploy/helm, deploy/kubernetes: the objects follow Kubernetes' schemas and this project's rules."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from lbctl.api.tokens import parse
from lbctl.base import ports
from lbctl.base import quantities as q
from lbctl.cli import run
from lbctl.picker.statistics import Statistics, page
from lbctl.store.kubernetes_objects import rights
from lbctl.store.signing import parse_keys
from tests.docs.pages import blocks
from tests.support import helm
from tests.support.command_lines import accept
from tests.support.kubernetes_objects import VERSIONS, problems
from tests.support.paths import ROOT
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

BASE = ROOT / "deploy" / "kustomize" / "base"
PICKER = ROOT / "deploy" / "kustomize" / "picker"
CHART = ROOT / "deploy" / "helm" / "lbctl"
ENGINE = ROOT / "deploy" / "kubernetes" / "vllm-with-agent.yaml"
STORE_ROLE = "lbctl-serve-store"
TOKENS = {"token": ["operate"], "picker-token": ["picker"], "tokens": ["operate", "picker"]}
"""Documented token file → roles of its tokens."""
Object = dict[str, Any]


def kustomized(*components: str, directory: Path = BASE) -> list[Object]:
    """Return the objects of a kustomization with its images, its generated ConfigMaps, and resources of components."""
    rules = yaml.safe_load((directory / "kustomization.yaml").read_text())
    texts = [(directory / name).read_text() for name in rules["resources"]]
    (image,) = rules["images"]
    full_name = f"{image['newName']}:{image['newTag']}"
    objects = [
        item for text in texts for item in yaml.safe_load_all(text.replace("image: lbctl\n", f"image: {full_name}\n"))
    ]
    for generator in rules.get("configMapGenerator", ()):
        data = {Path(file).name: (directory / file).read_text() for file in generator["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    for component in (BASE.parent / name for name in components):
        for name in yaml.safe_load((component / "kustomization.yaml").read_text())["resources"]:
            objects += yaml.safe_load_all((component / name).read_text())
    return objects


PICKERS = [
    {"name": "lbctl-picker-chat", "namespace": "ml", "pool": "chat"},
    {"name": "lbctl-picker-embedder", "namespace": "ml", "pool": "embedder"},
]
WAYS = {
    "kustomize": kustomized(),
    "kustomize with all": kustomized("node-labels", "inference-pools", "store") + kustomized(directory=PICKER),
    "helm": helm.render(CHART),
    "helm with pod labels": helm.render(CHART, {"rbac": {"pods": True}}),
    "helm with all": helm.render(
        CHART,
        {
            "rbac": {"inferencePools": True, "nodes": True, "namespaces": ["a", "b"]},
            "serve": {"store": {"port": 6379}},
            "picker": {"services": PICKERS},
        },
    ),
}
each_way = pytest.mark.parametrize("objects", WAYS.values(), ids=WAYS)


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def deployment(objects: list[Object], name: str) -> Object:
    (found,) = [item for item in of_kind(objects, "Deployment") if item["metadata"]["name"] == name]
    return found


def templates(objects: list[Object]) -> Iterator[Object]:
    for item in of_kind(objects, "Deployment", "StatefulSet"):
        yield item["spec"]["template"]


def containers(template: Object) -> list[Object]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


def labelled(template: Object, selector: Object) -> bool:
    return selector.items() <= template["metadata"]["labels"].items()


@each_way
def test_every_object_is_valid_by_its_schema(objects: list[Object]) -> None:
    assert len(objects) >= 13
    for item in objects:
        kubernetes_validate.validate(item, "1.37", strict=True)


@each_way
def test_every_pod_has_the_restricted_profile(objects: list[Object]) -> None:
    for template in templates(objects):
        spec = template["spec"]
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= {
            "configMap", "secret", "emptyDir",
        }  # fmt: skip
        for container in containers(template):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@each_way
def test_every_container_has_resources_and_a_fixed_image(objects: list[Object]) -> None:
    for template in templates(objects):
        for container in containers(template):
            name, _, tag = container["image"].rpartition(":")
            assert name
            assert tag not in {"", "latest"}
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
        for container in template["spec"]["containers"]:
            assert {"readinessProbe", "startupProbe"} <= container.keys()


@each_way
def test_mounted_and_referenced_objects_exist(objects: list[Object]) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(objects, "ConfigMap")}
    accounts = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount")}
    for item in of_kind(objects, "Deployment", "StatefulSet"):
        template = item["spec"]["template"]
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", ())}
        assert {volume["configMap"]["name"] for volume in template["spec"]["volumes"] if "configMap" in volume} <= maps
        assert template["spec"]["serviceAccountName"] in accounts
        mounted = {mount["name"] for container in containers(template) for mount in container["volumeMounts"]}
        assert mounted == volumes
    for item in of_kind(objects, "StatefulSet"):
        (service,) = [
            each for each in of_kind(objects, "Service") if each["metadata"]["name"] == item["spec"]["serviceName"]
        ]
        assert service["spec"]["clusterIP"] == "None"
        (container,) = item["spec"]["template"]["spec"]["containers"]
        assert container["args"][-1] == f"--member=$(POD_NAME).{item['spec']['serviceName']}.$(POD_NAMESPACE)"
    for item in of_kind(objects, "Service"):
        (template,) = [each for each in templates(objects) if labelled(each, item["spec"]["selector"])]
        named = {port["name"] for container in containers(template) for port in container.get("ports", ())}
        assert {port["targetPort"] for port in item["spec"]["ports"]} <= named
    for item in of_kind(objects, "PodDisruptionBudget", "NetworkPolicy"):
        selector = item["spec"].get("selector") or item["spec"]["podSelector"]
        assert any(labelled(each, selector["matchLabels"]) for each in templates(objects)), item["metadata"]


@each_way
def test_roles_allow_only_list_and_watch(objects: list[Object]) -> None:
    roles = [item for item in of_kind(objects, "Role", "ClusterRole") if item["metadata"]["name"] != STORE_ROLE]
    rules = [rule for item in roles for rule in item["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}
    resources = {name for rule in rules for name in rule["resources"]}
    assert {"endpointslices"} <= resources <= {"endpointslices", "inferencepools", "pods", "nodes"}
    subjects = [
        subject for item in of_kind(objects, "RoleBinding", "ClusterRoleBinding") for subject in item["subjects"]
    ]
    assert {(subject["name"], subject["namespace"]) for subject in subjects} == {("lbctl-serve", "inference")}
    assert [template["spec"]["automountServiceAccountToken"] for template in templates(objects)].count(True) == 1


def test_role_has_one_rule_for_pods() -> None:
    for keys in (["pods"], ["inferencePools"], ["pods", "inferencePools"]):
        objects = helm.render(CHART, {"rbac": dict.fromkeys(keys, True)})
        (role,) = [item for item in of_kind(objects, "Role") if item["metadata"]["name"] != STORE_ROLE]
        assert [rule["resources"] for rule in role["rules"]].count(["pods"]) == 1, keys


def test_inference_pools_need_their_pods() -> None:
    for way in ("kustomize with all", "helm with all"):
        roles = of_kind(WAYS[way], "Role")
        readable = [{name for rule in item["rules"] for name in rule["resources"]} for item in roles]
        assert any(resources >= {"inferencepools", "pods"} for resources in readable), way


@each_way
def test_store_role_has_exactly_the_required_rights(objects: list[Object]) -> None:
    (role,) = [item for item in of_kind(objects, "Role") if item["metadata"]["name"] == STORE_ROLE]
    granted = {
        (rule["apiGroups"][0], resource, verb, name)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    (fleet,) = [item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "lbctl-fleet"]
    url = urlsplit(yaml.safe_load(fleet["data"]["main.yaml"])["control"]["store"]["url"])
    needed = {
        ("" if path.startswith("/api/") else path.split("/")[2], path.rsplit("/", 1)[-1], verb, name)
        for path, verb, name in rights(url.netloc, url.path.strip("/"))
    }
    assert granted == needed
    assert url.netloc == "inference"
    (serve,) = of_kind(objects, "StatefulSet")
    assert serve["spec"]["replicas"] == 2


@each_way
def test_each_pod_has_a_network_policy_and_a_budget(objects: list[Object]) -> None:
    policies = [item["spec"]["podSelector"]["matchLabels"] for item in of_kind(objects, "NetworkPolicy")]
    for template in templates(objects):
        assert any(labelled(template, selector) for selector in policies)
    budgets = [item["spec"] for item in of_kind(objects, "PodDisruptionBudget")]
    assert {budget["maxUnavailable"] for budget in budgets} == {1}
    for template in templates(objects):
        assert any(labelled(template, budget["selector"]["matchLabels"]) for budget in budgets)
    assert all(item["spec"]["replicas"] >= 2 for item in of_kind(objects, "Deployment"))
    spec = deployment(objects, "lbctl-envoy")["spec"]["template"]["spec"]
    *_, drain_seconds = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert spec["terminationGracePeriodSeconds"] > int(drain_seconds)


@pytest.mark.parametrize("way", WAYS)
def test_network_policy_allows_the_store(way: str) -> None:
    allowed: set[int] = set()
    (template,) = [item["spec"]["template"] for item in of_kind(WAYS[way], "StatefulSet")]
    for policy in of_kind(WAYS[way], "NetworkPolicy"):
        if (
            labelled(template, policy["spec"]["podSelector"]["matchLabels"])
            and "Egress" in policy["spec"]["policyTypes"]
        ):
            allowed |= {port["port"] for rule in policy["spec"]["egress"] if "to" not in rule for port in rule["ports"]}
    assert allowed == {53, 443, 6443} | ({6379} if "all" in way else set())


@each_way
def test_member_that_waits_for_its_store_is_not_killed(objects: list[Object]) -> None:
    (serve,) = of_kind(objects, "StatefulSet")
    probe = serve["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800


@each_way
def test_fleet_and_command_lines_are_valid(objects: list[Object], tmp_path: Path) -> None:
    (fleet,) = [item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "lbctl-fleet"]
    file = tmp_path / "main.yaml"
    file.write_text(fleet["data"]["main.yaml"])
    assert run(["validate", str(file)]) == 0
    for template in templates(objects):
        for container in containers(template):
            if "args" in container:
                accept(container["args"])


@pytest.mark.parametrize("objects", [*WAYS.values(), helm.render(CHART, {"serve": {"replicas": 3}})])
def test_envoy_connects_to_every_member_by_name(objects: list[Object], tmp_path: Path) -> None:
    (serve,) = of_kind(objects, "StatefulSet")
    envoy = deployment(objects, "lbctl-envoy")
    (members,) = [
        item for item in of_kind(objects, "Service") if item["metadata"]["name"] == serve["spec"]["serviceName"]
    ]
    assert members["spec"]["clusterIP"] == "None"
    assert members["spec"]["publishNotReadyAddresses"], "the first fleet is waited for at the member"
    assert {"name": "xds", "port": 18000, "targetPort": "xds"} in members["spec"]["ports"]
    template = envoy["spec"]["template"]
    (container,) = template["spec"]["initContainers"]
    values = {"POD_NAME": "lbctl-envoy-x", "POD_NAMESPACE": "inference"}
    assert {item["name"] for item in container["env"]} == set(values)
    (tmp_path / "tls").mkdir()
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / "tls" / name).touch()
    places = {"/run/envoy": str(tmp_path), "/etc/lbctl/tls": str(tmp_path / "tls")}
    arguments = []
    for item in container["args"]:
        for place, path in places.items():
            item = item.replace(place, path)
        arguments.append(re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], item))
    assert run(arguments) == 0
    cluster = yaml.safe_load((tmp_path / "envoy.yaml").read_text())["static_resources"]["clusters"][0]
    hosts = [
        each["endpoint"]["address"]["socket_address"]["address"]
        for priority in cluster["load_assignment"]["endpoints"]
        for each in priority["lb_endpoints"]
    ]
    names = [f"{serve['metadata']['name']}-{number}" for number in range(serve["spec"]["replicas"])]
    assert hosts == [f"{name}.{members['metadata']['name']}.inference" for name in names]


def test_documented_certificates_are_valid(tmp_path: Path) -> None:
    for page_of_commands in ("deploy-in-kubernetes", "kubernetes-gateways"):
        (block,) = [block for block in blocks(f"docs/how-to/{page_of_commands}.md") if block.language == "sh"]
        subprocess.run(["/bin/sh", "-eu", "-c", block.text], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    members = [f"lbctl-serve-{number}.lbctl-serve-members.inference" for number in range(2)]
    hosts = {
        "lbctl-serve": ("lbctl-serve", "lbctl-serve.inference", *members, "localhost"),
        "lbctl-envoy": ("lbctl-envoy",),
        "lbctl-picker": ("lbctl-picker", "lbctl-picker.ml.svc.cluster.local"),
    }
    for name, host in [(name, host) for name, names in hosts.items() for host in names]:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", host, f"{name}.crt"]
        subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    client = ["openssl", "verify", "-CAfile", "ca.crt", "-purpose", "sslclient", "lbctl-gateway.crt"]
    subprocess.run(client, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert re.fullmatch(r"admin:operate:\w{30,}\n", (tmp_path / "token").read_text())
    roles = {name: [token.principal.role for token in parse((tmp_path / name).read_bytes())] for name in TOKENS}
    assert roles == TOKENS
    assert len(parse_keys((tmp_path / "keys").read_text()).keys) == 1


def test_documented_objects_of_gateways_are_valid() -> None:
    pieces = [yaml.safe_load(block.text) for block in blocks("docs/how-to/kubernetes-gateways.md")
              if block.language == "yaml"]  # fmt: skip
    found = {item["kind"]: item for item in pieces if "apiVersion" in item}
    assert set(found) == {"DestinationRule", "InferencePool"}
    for kind, item in found.items():
        for version in VERSIONS["istio" if kind == "DestinationRule" else "gateway-api"]:
            assert not problems(item, version, "istio" if kind == "DestinationRule" else "gateway-api")
    (service,) = of_kind(kustomized(directory=PICKER), "Service")
    assert found["DestinationRule"]["spec"]["host"].split(".")[0] == service["metadata"]["name"]


def test_chart_has_the_picker_of_the_kustomization() -> None:
    (image,) = yaml.safe_load((PICKER / "kustomization.yaml").read_text())["images"]
    service = {"name": "lbctl-picker", "namespace": "inference", "pool": "llama"}
    values = {"image": f"{image['newName']}:{image['newTag']}", "picker": {"services": [service]}}
    charted = [item for item in helm.render(CHART, values) if item not in helm.render(CHART)]
    assert {item["metadata"].pop("namespace") for item in charted} == {"inference"}
    assert charted == kustomized(directory=PICKER)


def test_each_pool_has_a_picker_at_the_port_of_its_inferencepool() -> None:
    for service in PICKERS:
        (found,) = [
            item for item in of_kind(WAYS["helm with all"], "Service") if item["metadata"]["name"] == service["name"]
        ]
        assert found["metadata"]["namespace"] == service["namespace"]
        (port,) = found["spec"]["ports"]
        assert (port["port"], port["appProtocol"]) == (ports.PICKER, "http2"), "kubernetes.io/h2c is without TLS"
        pods = deployment(WAYS["helm with all"], service["name"])["spec"]["template"]
        assert labelled(pods, found["spec"]["selector"])
        (container,) = pods["spec"]["containers"]
        assert {"name": "LBCTL_PICKER_POOL", "value": service["pool"]} in container["env"]
        assert f"--bind=0.0.0.0:{ports.PICKER}" in container["args"]
        assert "--server=https://lbctl-serve.inference:18080" in container["args"]


def test_kustomization_of_the_picker_can_be_used_twice() -> None:
    """An overlay changes names, the reference to the ServiceAccount, and the label in all selectors of pods."""
    objects = kustomized(directory=PICKER)
    assert {item["metadata"]["name"] for item in objects} == {"lbctl-picker"}
    (pods,) = templates(objects)
    assert pods["spec"]["serviceAccountName"] == "lbctl-picker"
    (service,), (policy,) = of_kind(objects, "Service"), of_kind(objects, "NetworkPolicy")
    (budget,), (picker,) = of_kind(objects, "PodDisruptionBudget"), of_kind(objects, "Deployment")
    with_labels = (policy["spec"]["podSelector"], budget["spec"]["selector"], picker["spec"]["selector"])
    for selector in (service["spec"]["selector"], *(item["matchLabels"] for item in with_labels)):
        assert selector["app.kubernetes.io/instance"] == "lbctl-picker"
        assert labelled(pods, selector)
    assert "podSelector" not in policy["spec"]["egress"][0]["to"][0], (
        "the overlay would add its label, which serve lacks"
    )


@each_way
def test_picker_waits_for_running_requests(objects: list[Object]) -> None:
    for name in (item["metadata"]["name"] for item in of_kind(objects, "Deployment")):
        if name.startswith("lbctl-picker"):
            spec = deployment(objects, name)["spec"]["template"]["spec"]
            *_, script = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            compile(script, "preStop", "exec")
            (seconds,) = re.findall(r"monotonic\(\) \+ (\d+)", script)
            assert spec["terminationGracePeriodSeconds"] > int(seconds)
            gauge = page(Statistics(), {"lbctl_picker_streams": 0, "lbctl_picker_peers": 1})
            (line,) = re.findall(r'b"\\n(.*)\\n"', script)
            assert f"\n{line}\n".encode() in gauge


def test_chart_has_the_files_of_the_base() -> None:
    assert (CHART / "files" / "drain.py").read_text() == (BASE / "drain.py").read_text()
    (generated,) = [item for item in WAYS["helm"] if item["metadata"]["name"] == "lbctl-envoy-drain"]
    assert generated["data"]["drain.py"] == (BASE / "drain.py").read_text()


def test_engine_with_agent_is_valid_and_locked_down() -> None:
    (deployment,) = yaml.safe_load_all(ENGINE.read_text())
    kubernetes_validate.validate(deployment, "1.37", strict=True)
    (agent,) = deployment["spec"]["template"]["spec"]["initContainers"]
    assert agent["restartPolicy"] == "Always"
    assert agent["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    accept([word.replace("$(POD_IP)", "10.0.0.5") for word in agent["args"]])


def test_engine_with_agent_ends_after_the_drain(tmp_path: Path) -> None:
    """The hooks run at the same time, as in a pod, with a command in place of `lbctl`."""
    spec = yaml.safe_load(ENGINE.read_text())["spec"]["template"]["spec"]
    (agent,), (engine,) = spec["initContainers"], spec["containers"]
    for container in (agent, engine):
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/run/lbctl"]
    drain, wait = (container["lifecycle"]["preStop"]["exec"]["command"] for container in (agent, engine))
    (line,) = re.findall(r"^lbctl (agent drain .*?);", drain[-1])
    accept(line.split())
    assert spec["terminationGracePeriodSeconds"] > q.parse_duration(line.split()[3]) / 1000
    program, done = tmp_path / "lbctl", tmp_path / "done"
    program.write_text(f"#!/bin/sh\nuntil [ -e {done} ]; do sleep 0.1; done\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    commands = [[word.replace("/run/lbctl", str(tmp_path)) for word in command] for command in (drain, wait)]
    draining, waiting = (subprocess.Popen(command, env=environment) for command in commands)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
        done.touch()
        assert (draining.wait(30), waiting.wait(30)) == (0, 0)
    finally:
        done.touch()
        (tmp_path / "drained").touch()
        draining.wait(30)
        waiting.wait(30)


@pytest.mark.e2e
def test_terminating_pod_waits_for_running_requests() -> None:
    with (
        replicas("a") as members,
        controlling(fleet_of(members, **driven("edge"))) as control,
        control.envoy("edge", ["edge"]) as envoy,
    ):
        eventually(lambda: envoy.client().get().ok)
        members[0].behave(delay=3.0)
        answers: list[bool] = []
        request = threading.Thread(target=lambda: answers.append(envoy.client().get().ok))
        request.start()
        eventually(lambda: members[0].in_flight == 1)
        command = [sys.executable, str(BASE / "drain.py"), f"127.0.0.1:{envoy.admin}", "20", "0"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (process.returncode, process.stderr) == (0, "")
        assert members[0].in_flight == 0
        request.join(30)
        assert answers == [True]
