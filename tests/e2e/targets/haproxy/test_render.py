"""HAProxy accepts the rendered files, and verifies the certificates of clients and replicas."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Certificate, Listener, ListenerTls
from lbctl.ir.pools import (
    Pool,
    PoolTls,
)
from lbctl.targets.haproxy import TARGET
from tests.support.haproxy import (
    VERSIONS,
    checked,
    everything,
    forward,
    make_view,
    replicas,
    running,
    view_of_everything,
)
from tests.support.processes import binaries
from tests.support.processes.certs import Authority
from tests.support.processes.ports import free_port


@pytest.mark.parametrize("version", VERSIONS)
def test_checker_accepts_each_kind_of_pool(tmp_path: Path, version: Any) -> None:
    text = checked(view_of_everything(), tmp_path, version)
    assert "\x00" not in text
    assert text.endswith("\n")


def test_rejected_line_is_reported_at_its_replica(tmp_path: Path) -> None:
    view = view_of_everything()
    bundle = TARGET.render(view)
    server = next(n for n, path in bundle.main.sources.items() if path == ("pools", "limits", "replicas", "r1"))
    lines = bundle.main.text.split("\n")
    lines[server - 1] = lines[server - 1].replace("weight", "wait")
    path = tmp_path / "haproxy.cfg"
    path.write_text("\n".join(lines))
    command = TARGET.check_command(str(binaries.require("haproxy")), str(tmp_path), str(path))
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    complaints = list(TARGET.complaints(process.stderr, bundle))
    assert process.returncode == 1
    assert [(item.line, item.path) for item in complaints] == [(server, ("pools", "limits", "replicas", "r1"))]
    assert "wait" in complaints[0].message


@pytest.mark.parametrize("version", VERSIONS)
def test_sni_chooses_certificate_and_clients_are_verified(tmp_path: Path, version: Any) -> None:
    authority = Authority(tmp_path / "pki")
    first, second, client = (authority.issue(name) for name in ("a.example", "b.example", "client"))
    port = free_port()
    for required in ("optional", "required"):
        tls = ListenerTls(
            (
                Certificate(str(first.certificate), str(first.key)),
                Certificate(str(second.certificate), str(second.key), ("b.example",)),
            ),
            client_ca=str(authority.ca),
            client_certificate=required,
        )
        with replicas("a1") as (a1,):
            listener = Listener("pub", Address("127.0.0.1", port), tls, rules=everything())
            view = make_view((listener,), (forward("p"),), (Pool("p", (a1.replica(),)),))
            with running(view, tmp_path, port, version):
                for name in ("a.example", "b.example"):
                    assert _get(port, authority, name, (client.certificate, client.key)) == 200
                if required == "optional":
                    assert _get(port, authority, "a.example") == 200
                else:
                    with pytest.raises((ssl.SSLError, OSError)):
                        _get(port, authority, "a.example")
            assert {item["headers"]["x-forwarded-proto"] for item in a1.seen} == {"https"}


@pytest.mark.parametrize("version", VERSIONS)
def test_relative_files_are_next_to_the_configuration(tmp_path: Path, version: Any) -> None:
    authority = Authority(tmp_path / "pki")
    server = authority.issue("a.example")
    pair = Certificate(f"pki/{server.certificate.name}", f"pki/{server.key.name}")
    listener = Listener(
        "pub", Address("127.0.0.1", free_port()), ListenerTls((pair,), client_ca=f"pki/{authority.ca.name}")
    )
    checked(make_view((listener,), (), ()), tmp_path, version)


def _get(port: int, authority: Authority, name: str, pair: tuple[Path, Path] | None = None) -> int:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["http/1.1"])
    if pair:
        context.load_cert_chain(*pair)
    raw = socket.create_connection(("127.0.0.1", port), 60)
    connection = http.client.HTTPSConnection(name, context=context)
    connection.sock = context.wrap_socket(raw, server_hostname=name)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def test_replicas_are_verified_by_their_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server, client = authority.issue("replica.example"), authority.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    statuses = []
    for name in ("replica.example", "other.example"):
        port = free_port()
        with replicas("a1", context=context) as (a1,):
            tls = PoolTls(str(authority.ca), name, str(client.certificate), str(client.key))
            pool = Pool("p", (a1.replica(),), tls=tls, passive=None)
            listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
            with running(make_view((listener,), (forward("p"),), (pool,)), tmp_path, port) as proxy:
                statuses.append(proxy.send().status)
    assert statuses == [200, 503]
