"""Protections of clients and replicas are imported or close the routes. None is dropped silently."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.importer.run import Imported
from tests.support.importer import imported

HAPROXY = (
    "global\n{globals}\ndefaults\n mode http\nfrontend f\n bind :443 ssl crt s.pem {bind}\n default_backend b\n"
    "backend b\n server s {server}\n"
)
MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
NGINX = "server {{ listen 443 ssl; {0} location / {{ proxy_pass http://10.0.0.1:80; }} }}"


def haproxy(tmp_path: Path, globals_: str = "", bind: str = "", server: str = "10.0.0.1:80") -> Imported:
    file = tmp_path / "haproxy.cfg"
    file.write_text(HAPROXY.format(globals=globals_, bind=bind, server=server))
    return imported("haproxy", file)[0]


def nginx(tmp_path: Path, body: str) -> Imported:
    file = tmp_path / "nginx.conf"
    file.write_text(NGINX.format(body))
    return imported("nginx", file)[0]


def envoy(
    tmp_path: Path, clients: dict[str, Any] | None = None, replicas: dict[str, Any] | None = None, **typed: Any
) -> Imported:
    """Import an Envoy with these checks of the certificates of clients and replicas."""
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
    pair = {"certificate_chain": {"filename": "/tls/s.crt"}, "private_key": {"filename": "/tls/s.key"}}
    downstream = {"tls_certificates": [pair], "validation_context": clients or {}}
    manager = {
        "@type": f"type.googleapis.com/{MANAGER}",
        "stat_prefix": "x",
        "route_config": {
            "virtual_hosts": [
                {"name": "v", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "c"}}]}
            ]
        },
    }
    listener = {
        "name": "l",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": 443}},
        "filter_chains": [
            {
                "filters": [{"name": "hcm", "typed_config": manager}],
                "transport_socket": {
                    "name": "tls",
                    "typed_config": {"@type": f"{kind}DownstreamTlsContext", "common_tls_context": downstream, **typed},
                },
            }
        ],
    }
    address = {"socket_address": {"address": "10.0.0.1", "port_value": 443}}
    cluster = {
        "name": "c",
        "load_assignment": {
            "cluster_name": "c",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "transport_socket": {
            "name": "tls",
            "typed_config": {
                "@type": f"{kind}UpstreamTlsContext",
                "common_tls_context": {"validation_context": replicas or {}},
            },
        },
    }
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    return imported("envoy", file)[0]


def test_revocation_lists_of_clients_are_imported(tmp_path: Path) -> None:
    results = [
        nginx(tmp_path, "ssl_client_certificate /tls/ca.crt; ssl_verify_client on; ssl_crl /tls/clients.crl;"),
        haproxy(tmp_path, "ca-base /tls", "ca-file ca.crt verify required crl-file clients.crl"),
        envoy(
            tmp_path,
            {"trusted_ca": {"filename": "/tls/ca.crt"}, "crl": {"filename": "/tls/clients.crl"}},
            require_client_certificate=True,
        ),
    ]
    for result in results:
        (listener,) = result.draft.fleet["listeners"].values()
        kept = {key: value for key, value in listener["tls"].items() if key.startswith("client_")}
        assert kept == {
            "client_ca": "/tls/ca.crt", "client_certificate": "required", "client_crl": "/tls/clients.crl"
        }  # fmt: skip


@pytest.mark.parametrize(("second", "closed"), [("optional", True), ("on", True), ("off", False)])
def test_second_server_does_not_loosen_client_checks(second: str, closed: bool, tmp_path: Path) -> None:
    servers = [
        f"server_name {name}.example; ssl_client_certificate /tls/{name}.crt; ssl_verify_client {verify};"
        for name, verify in (("a", "on"), ("b", second))
    ]
    file = tmp_path / "nginx.conf"
    file.write_text("\n".join(map(NGINX.format, servers)))
    fleet = imported("nginx", file)[0].draft.fleet
    (listener,) = fleet["listeners"].values()
    assert (listener["tls"]["client_ca"], listener["tls"]["client_certificate"]) == ("/tls/a.crt", "required")
    first, other = fleet["routes"].values()
    assert ("pool" in first, "respond" in other) == (True, closed)


@pytest.mark.parametrize(
    ("prefix", "protection", "is_reported"),
    [
        ("/admin", "allow 10.0.0.0/8; deny all;", True),
        ("/admin/", "allow 10.0.0.0/8; deny all;", False),
        ("/admin", "auth_basic off;", False),
        ("/admin", "", False),
    ],
)
def test_protection_of_similar_paths_is_reported(
    prefix: str, protection: str, is_reported: bool, tmp_path: Path
) -> None:
    file = tmp_path / "nginx.conf"
    pools = (
        "map $http_x_big $up { default a; 1 b; } upstream a { server 10.0.0.1:80; } upstream b { server 10.0.0.2:80; }"
    )
    file.write_text(f"{pools} server {{ listen 80; location {prefix} {{ {protection} proxy_pass http://$up; }} }}")
    messages = [item.message for item in imported("nginx", file)[1] if "this also protected paths" in item.message]
    assert len(messages) == is_reported


@pytest.mark.parametrize("ca", ["/tls/a.crt", "/tls/b.crt"])
def test_second_chain_of_envoy_does_not_loosen_client_checks(ca: str, tmp_path: Path) -> None:
    envoy(tmp_path, {"trusted_ca": {"filename": "/tls/a.crt"}}, require_client_certificate=True)
    file = tmp_path / "envoy.yaml"
    document = yaml.safe_load(file.read_text())
    chains = document["static_resources"]["listeners"][0]["filter_chains"]
    chains.append(copy.deepcopy(chains[0]))
    typed = chains[1]["transport_socket"]["typed_config"]
    del typed["require_client_certificate"]
    typed["common_tls_context"]["validation_context"] = {"trusted_ca": {"filename": ca}}
    file.write_text(yaml.safe_dump(document))
    fleet = imported("envoy", file)[0].draft.fleet
    (listener,), (route,) = fleet["listeners"].values(), fleet["routes"].values()
    assert (listener["tls"]["client_ca"], listener["tls"]["client_certificate"]) == ("/tls/a.crt", "required")
    assert ("respond" in route) == (ca == "/tls/b.crt")


@pytest.mark.parametrize(
    ("server", "ca"),
    [
        ("10.0.0.1:443 ssl verify required ca-file @system-ca sni str(a.example)", "system"),
        ("10.0.0.1:443 ssl ca-file /tls/ca.crt", "/tls/ca.crt"),
        ("10.0.0.1:443 ssl ca-file own.crt", "/base/own.crt"),
        ("10.0.0.1:443 ssl verify none ca-file /tls/ca.crt", None),
    ],
)
def test_ca_of_haproxy_servers_is_imported(server: str, ca: str | None, tmp_path: Path) -> None:
    result = haproxy(tmp_path, "ca-base /base", server=server)
    assert result.draft.fleet["pools"]["b"]["tls"].get("ca") == ca


@pytest.mark.parametrize(
    ("checks", "tls"),
    [
        ({"system_root_certs": {}}, {"ca": "system"}),
        ({"trusted_ca": {"filename": "/tls/ca.crt"}}, {"ca": "/tls/ca.crt"}),
        (
            {"trusted_ca": {"filename": "/ca"}, "match_typed_subject_alt_names": [
                {"san_type": "DNS", "matcher": {"exact": "r.example"}}]},
            {"ca": "/ca", "server_name": "r.example"},
        ),
    ],
)  # fmt: skip
def test_ca_of_envoy_clusters_is_imported(checks: dict[str, Any], tls: dict[str, str], tmp_path: Path) -> None:
    assert envoy(tmp_path, replicas=checks).draft.fleet["pools"]["c"]["tls"] == tls


def test_unsupported_check_of_replicas_is_a_finding(tmp_path: Path) -> None:
    envoy(tmp_path, replicas={"trusted_ca": {"filename": "/ca"}, "crl": {"filename": "/tls/r.crl"}})
    result, diagnostics = imported("envoy", tmp_path / "envoy.yaml")
    assert "crl {filename /tls/r.crl}" in result.text
    assert [item.code for item in diagnostics if "crl: this check" in item.message] == ["LB985"]


@pytest.mark.parametrize(
    "clients",
    [
        {"trusted_ca": {"filename": "/ca"}, "verify_certificate_hash": ["ab"]},
        {"trusted_ca": {"inline_string": "PEM"}},
        {"trusted_ca": {"filename": "/ca"}, "crl": {"inline_string": "PEM"}},
        {"trusted_ca": {"filename": "/ca"}, "match_typed_subject_alt_names": [
            {"san_type": "URI", "matcher": {"prefix": "spiffe://a/"}}]},
        {},
    ],
)  # fmt: skip
def test_unsupported_check_of_clients_closes_the_routes(clients: dict[str, Any], tmp_path: Path) -> None:
    result = envoy(tmp_path, clients, require_client_certificate=True)
    (route,) = result.draft.fleet["routes"].values()
    assert route["respond"]["status"] == 501


def test_unsupported_value_is_a_comment_and_a_finding(tmp_path: Path) -> None:
    haproxy(tmp_path, server="10.0.0.1:443 ssl verify required ca-file @env")
    result, diagnostics = imported("haproxy", tmp_path / "haproxy.cfg")
    assert "ca" not in result.draft.fleet["pools"]["b"]["tls"]
    assert "haproxy.cfg:9 server s 10.0.0.1:443" in result.text
    findings = [item for item in diagnostics if item.code == "LB985" and "pools.b.tls.ca was left out" in item.message]
    assert [item.position.line for item in findings if item.position] == [9]


def test_listener_that_loses_a_check_rejects_requests(tmp_path: Path) -> None:
    result = haproxy(tmp_path, bind="ca-file @env verify required")
    (route,) = result.draft.fleet["routes"].values()
    assert route["respond"]["status"] == 501


def test_listener_with_external_certificates_keeps_tls(tmp_path: Path) -> None:
    results = [nginx(tmp_path, ""), haproxy(tmp_path, bind="crt-list /etc/list"), haproxy(tmp_path, bind="crt /certs/")]
    for result in results:
        (listener,) = result.draft.fleet["listeners"].values()
        assert listener["tls"]["certificates"]


def test_closed_routes_are_reported_in_one_finding(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server {\nlisten 80;\nlocation / { proxy_pass http://10.0.0.1:80; }\nlocation /docs/ { root /var/www; }\n"
        "location /old { return 302 /new$uri; }\nlocation /none { return 501; }\n}"
    )
    findings = [item for item in imported("nginx", file)[1] if item.code == "LB988"]
    assert [item.message for item in findings] == ["2 routes return 501: docs (nginx.conf:4), old (nginx.conf:5)"]
    assert [item.position.line for item in findings if item.position] == [4]


@pytest.mark.parametrize(
    ("first", "second", "closed"),
    [
        ("location ^~ /admin/ { deny all; proxy_pass http://10.0.0.2; }", r"location ~ \.json$", True),
        ("location ^~ /admin/ { return 403; }", r"location ~ \.json$", True),
        ("location /admin/ { deny all; proxy_pass http://10.0.0.2; }", r"location ~ \.json$", False),
        ("location ^~ /admin/ { proxy_pass http://10.0.0.2; }", r"location ~ \.json$", False),
        ("location ~ ^/admin/.* { return 403; }", r"location ~ ^/admin/open/.*", True),
        ("location ~ ^/admin/.* { return 403; }", r"location ~ ^/other/.*", False),
        (
            "location ^~ /admin/ { auth_basic r; auth_basic_user_file f; proxy_pass http://10.0.0.2; }",
            "location ~* x",
            True,
        ),
    ],
)
def test_later_expression_does_not_open_a_protected_location(
    first: str, second: str, closed: bool, tmp_path: Path
) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(f"server {{ listen 80; {first}\n{second} {{ proxy_pass http://10.0.0.1; }} }}")
    result = imported("nginx", file)[0]
    (name,) = (
        path[1] for path, origin in result.draft.origins.items() if path[0] == "routes" and origin.position.line == 2
    )
    assert ("respond" in result.draft.fleet["routes"][name]) == closed
