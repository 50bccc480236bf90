"""Certificates that the `http` block of a fragment's host names have no effect in the fragment."""

from __future__ import annotations

from pathlib import Path

from lbctl.cli import run
from tests.support.fleets import write_fleet
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, put
from tests.support.processes.hosts import nginx_host
from tests.support.processes.replicas import replicas

_NAME = "first.example.com"


def test_host_authority_admits_no_client_of_a_fragment(tmp_path: Path) -> None:
    servers, clients = Authority(tmp_path / "servers", "servers"), Authority(tmp_path / "clients", "clients")
    public = Authority(tmp_path / "public", "public")
    pair, known, stranger = servers.issue(_NAME), clients.issue("known"), public.issue("stranger")
    with replicas("a", "b") as (a, b), nginx_host(b) as host:
        for_stapling = f"http {{\nssl_trusted_certificate {public.ca};\n"
        host.main.write_text(host.main.read_text().replace("http {\n", for_stapling))
        certificates = [{"certificate": str(pair.certificate), "key": str(pair.key)}]
        tls = {"certificates": certificates, "client_ca": str(clients.ca), "client_certificate": "required"}
        proxy = {"kind": "nginx", "form": "fragment", "config": str(host.fragment)}
        fleet = fleet_of(pool_of([a]), listener={"tls": tls}, proxies={"edge": proxy})
        put(tmp_path, {"fleet/empty": ""})
        command = ["render", "-t", "nginx", "-d", str(host.fragment.parent), "--within", str(host.main)]
        assert run([*command, str(write_fleet(tmp_path / "fleet", fleet))]) == 0
        host.proxy.reload()
        port = int(fleet["listeners"]["gateway"]["bind"].rpartition(":")[2])
        headers = {"host": _NAME}
        answers = [
            Client(port, client_context(servers.ca, each), _NAME).get("/", headers) for each in (known, stranger)
        ]
    assert [answer.status for answer in answers] == [200, 400]
