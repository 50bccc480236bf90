"""Kubeconfigs: contexts, credentials, and positions of errors."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

import pytest

from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.cluster import CallerIdentity, ClusterError, in_cluster

CONFIG = """\
apiVersion: v1
kind: Config
current-context: prod
contexts:
- name: prod
  context: {cluster: east, user: robot}
- name: test
  context: {cluster: west, user: robot, namespace: x}
clusters:
- name: east
  cluster: {server: "https://10.0.0.1:6443/", certificate-authority-data: Q0E=, tls-server-name: api}
- name: west
  cluster: {server: "https://west.example.com", insecure-skip-tls-verify: true, certificate-authority: ca.crt}
users:
- name: robot
  user: USER
"""


def config(tmp_path: Path, user: str = "{token: t0ken}", *changes: tuple[str, str]) -> Path:
    text = CONFIG.replace("USER", user)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = tmp_path / "config"
    file.write_text(text)
    file.chmod(0o600)
    return file


def access(file: Path) -> CallerIdentity:
    return asyncio.run(kubeconfig.read(file).credentials.access())


def problem(file: Path, context: str | None = None) -> str:
    with pytest.raises(ClusterError) as caught:
        kubeconfig.read(file, context)
    return str(caught.value).replace(str(file), "config")


def test_current_and_named_context_are_read(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    file = config(tmp_path)
    east, west = kubeconfig.read(file), kubeconfig.read(file, "test")
    assert (east.server, east.ca, east.verify, east.server_name) == ("https://10.0.0.1:6443", "CA", True, "api")
    assert (west.server, west.ca, west.verify, west.server_name) == ("https://west.example.com", "PEM", False, None)
    assert kubeconfig.read(file) == east


def test_every_kind_of_credentials_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    pair = "{client-certificate-data: Q0VSVA==, client-key-data: S0VZ}"
    assert access(config(tmp_path)).authorization == "Bearer t0ken"
    assert access(config(tmp_path, "{tokenFile: token}")).authorization == "Bearer from-file"
    assert access(config(tmp_path, pair)).certificate == ("CERT", "KEY")
    basic = access(config(tmp_path, "{username: u, password: p}")).authorization
    assert basic == "Basic " + base64.b64encode(b"u:p").decode()


def test_repr_contains_no_secrets(tmp_path: Path) -> None:
    file = config(tmp_path, "{token: t0ken, client-certificate-data: Q0VSVA==, client-key-data: S0VZ}")
    cluster = kubeconfig.read(file)
    assert not any(secret in repr((cluster, access(file))) for secret in ("t0ken", "KEY", "CERT"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("current-context: prod", "current-context: prd"),
         "config:3:18: unknown context 'prd' (did you mean 'prod'?)"),
        (("current-context: prod\n", ""), "config:1:1: no context is selected, and the file has no current-context"),
        (("cluster: east, user", "cluster: eats, user"),
         "config:6:22: unknown cluster 'eats' (did you mean 'east'?)"),
        (("user: robot}\n- name: test", "user: robbie}\n- name: test"),
         "config:6:34: unknown user 'robbie' (known: robot)"),
        (("https://10.0.0.1:6443/", "10.0.0.1:6443"), "config:11:21: '10.0.0.1:6443' is not the URL of an API server"),
        (("Q0E=,", "Q0E,"), "config:11:75: certificate-authority-data is not base64-encoded PEM"),
        (("tls-server-name: api", 'proxy-url: "http://p"'), "config:11:92: proxy-url is not supported"),
        (("{token: t0ken}", "{token: [t0ken]}"), "config:16:17: token is not a string"),
        (("{token: t0ken}", '{token: ""}'), "config:16:17: this contains no token"),
        (("{token: t0ken}", "{auth-provider: {name: gcp}}"),
         "config:16:25: auth-provider has been removed from Kubernetes; use exec"),
        (("{token: t0ken}", "{client-key-data: S0VZ}"),
         "config:16:9: a client certificate needs its key, and the key needs its certificate"),
        (("{token: t0ken}", "{client-certificate: none.crt, client-key-data: S0VZ}"),
         "config:16:30: 'none.crt' cannot be read: No such file or directory"),
        (("users:", "users: ["), "config:1"),
    ],
)  # fmt: skip
def test_error_has_its_position(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    message = problem(config(tmp_path, "{token: t0ken}", change))
    assert message.startswith(expected)
    assert "t0ken" not in message


def test_missing_file_and_wrong_type_are_errors(tmp_path: Path) -> None:
    assert problem(tmp_path / "config") == "config: the kubeconfig cannot be read: No such file or directory"
    (tmp_path / "config").write_text("- a\n")
    assert problem(tmp_path / "config").startswith("config:1:1: ")


PLUGIN = (
    "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [a b], env: [{name: X, value: y}]}}"
)
ANSWER = """#!/bin/sh
echo run >> runs
printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s"%s}}' "$1-$X" "$2"
"""


def plugin(tmp_path: Path, script: str = ANSWER, user: str = PLUGIN) -> Path:
    file = tmp_path / "plugin"
    file.write_text(script.replace("runs", str(tmp_path / "runs")).replace("$1-$X", "${1%% *}-$X"))
    file.chmod(0o700)
    return config(tmp_path, user)


def test_token_of_a_program_is_cached_until_it_is_rejected(tmp_path: Path) -> None:
    cluster = kubeconfig.read(plugin(tmp_path))

    async def twice() -> list[str]:
        tokens = [(await cluster.credentials.access()).authorization for _ in range(2)]
        cluster.credentials.expire()
        return [*tokens, (await cluster.credentials.access()).authorization]

    assert asyncio.run(twice()) == ["Bearer a-y"] * 3
    assert (tmp_path / "runs").read_text() == "run\n" * 2


def test_expiring_token_is_not_cached(tmp_path: Path) -> None:
    script = ANSWER.replace('"$2"', '\',"expirationTimestamp":"2020-01-01T00:00:00Z"\'')
    cluster = kubeconfig.read(plugin(tmp_path, script))

    async def twice() -> None:
        for _ in range(2):
            await cluster.credentials.access()

    asyncio.run(twice())
    assert (tmp_path / "runs").read_text() == "run\n" * 2


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("#!/bin/sh\necho s3cret; exit 3\n", "exited with code 3; run it manually to see why"),
        ("#!/bin/sh\necho s3cret\n", "did not return an ExecCredential"),
        ('#!/bin/sh\necho \'{"apiVersion":"client.authentication.k8s.io/v1","status":{}}\'\n',
         "did not return a token or a client certificate"),
        ("no program", "cannot be started: Exec format error"),
    ],
)  # fmt: skip
def test_failed_program_is_reported_without_its_output(tmp_path: Path, script: str, expected: str) -> None:
    file = plugin(tmp_path, script)
    with pytest.raises(ClusterError) as caught:
        access(file)
    assert str(caught.value) == f"{file}:16:16: the program {tmp_path}/plugin {expected}"


def test_kubeconfig_writable_by_others_runs_no_program(tmp_path: Path) -> None:
    file = plugin(tmp_path)
    file.chmod(0o666)
    assert problem(file) == "config:16:16: a kubeconfig that runs a program must not be writable by others"


def test_pod_uses_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    (tmp_path / "token").write_text("first")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    cluster = in_cluster(tmp_path, environment)
    assert (cluster.server, cluster.ca) == ("https://[fd00::1]:443", "PEM")
    assert asyncio.run(cluster.credentials.access()).authorization == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert asyncio.run(cluster.credentials.access()).authorization == "Bearer second"


def test_outside_a_pod_a_kubeconfig_is_required() -> None:
    assert "KUBERNETES_SERVICE_HOST" not in os.environ
    with pytest.raises(ClusterError, match="set a kubeconfig"):
        in_cluster()
