"""`lbctl xds`: requests, acknowledgements, output, and redacted secrets."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import yaml
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2, descriptor, json_format, wrappers_pb2
from google.protobuf.message import Message
from udpa.annotations import sensitive_pb2

from lbctl.cli import run
from lbctl.xds.client.decode import decode
from lbctl.xds.client.reader import ClientNode, Reader
from lbctl.xds.client.show import REDACTED, tree
from tests.support.ads import CDS, EDS, LDS, RDS, SDS, AdsServer, response
from tests.support.paths import ROOT
from tests.support.processes.certs import Authority

ADS = {"ads": {}, "resource_api_version": "V3"}
GOLDEN = ROOT / "tests" / "golden"


def packed(message: Message) -> any_pb2.Any:
    wrapper = any_pb2.Any()
    wrapper.Pack(message)
    return wrapper


def cluster(name: str, timeout: int = 1, service: str = "") -> cluster_pb2.Cluster:
    return cluster_pb2.Cluster(
        name=name,
        type="EDS",
        connect_timeout={"seconds": timeout},
        eds_cluster_config={"eds_config": ADS, "service_name": service},
    )


def endpoints(name: str, weight: int = 1) -> endpoint_pb2.ClusterLoadAssignment:
    address = {"socket_address": {"address": "10.0.0.1", "port_value": 80}}
    member = {"endpoint": {"address": address}, "load_balancing_weight": {"value": weight}}
    return endpoint_pb2.ClusterLoadAssignment(cluster_name=name, endpoints=[{"lb_endpoints": [member]}])


def routes(name: str) -> route_pb2.RouteConfiguration:
    return route_pb2.RouteConfiguration(name=name, virtual_hosts=[{"name": "all", "domains": ["*"]}])


def listener(name: str, table: str, secret: str = "", *filters: tuple[str, Message]) -> listener_pb2.Listener:
    manager = hcm_pb2.HttpConnectionManager(
        stat_prefix=name,
        rds={"route_config_name": table, "config_source": ADS},
        http_filters=[{"name": each, "typed_config": packed(config)} for each, config in filters],
    )
    chain = {"filters": [{"name": "http", "typed_config": packed(manager)}]}
    if secret:
        common = {"tls_certificate_sds_secret_configs": [{"name": secret, "sds_config": ADS}]}
        context = packed(tls_pb2.DownstreamTlsContext(common_tls_context=common))
        chain["transport_socket"] = {"name": "tls", "typed_config": context}
    return listener_pb2.Listener(name=name, filter_chains=[chain])


def secret(name: str, key: str = "the private key") -> secret_pb2.Secret:
    pair = {"certificate_chain": {"inline_string": "the chain"}, "private_key": {"inline_string": key}}
    return secret_pb2.Secret(name=name, tls_certificate=pair)


def content() -> dict[str, dict[str, Message]]:
    return {
        CDS: {"llama": cluster("llama"), "chat": cluster("chat", service="chat-members")},
        EDS: {"llama": endpoints("llama"), "chat-members": endpoints("chat-members")},
        LDS: {"public": listener("public", "table", "server")},
        RDS: {"table": routes("table")},
        SDS: {"server": secret("server")},
    }


def requests(raw: list[bytes]) -> dict[str, discovery_pb2.DiscoveryRequest]:
    decoded = [discovery_pb2.DiscoveryRequest.FromString(item) for item in raw]
    assert len({item.type_url for item in decoded}) == len(decoded)
    return {item.type_url: item for item in decoded}


def answers_to(reader: Reader, *messages: Message) -> dict[str, discovery_pb2.DiscoveryRequest]:
    """Return the requests by which the reader answers the last of these messages."""
    raw: list[bytes] = []
    for each in messages:
        raw = reader.take(each.SerializeToString())[1]
    return requests(raw)


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_requests_are_for_clusters_and_listeners() -> None:
    first_requests = requests(Reader(ClientNode("edge-1", region="r", zone="z")).open())
    assert set(first_requests) == {CDS, LDS}
    for request in first_requests.values():
        assert (request.node.id, request.node.locality.region, request.node.locality.zone) == ("edge-1", "r", "z")
        assert (list(request.resource_names), request.response_nonce, request.version_info) == ([], "", "")


def test_referenced_resources_are_requested() -> None:
    reader = Reader(ClientNode("edge-1"))
    after = answers_to(reader, response(CDS, "7", "n1", cluster("llama"), cluster("chat", service="chat-members")))
    assert (after[CDS].version_info, after[CDS].response_nonce, after[CDS].HasField("error_detail")) == (
        "7",
        "n1",
        False,
    )
    assert list(after[EDS].resource_names) == ["chat-members", "llama"]
    after = answers_to(reader, response(LDS, "8", "n2", listener("public", "table", "server")))
    assert (list(after[RDS].resource_names), list(after[SDS].resource_names)) == (["table"], ["server"])
    after = answers_to(reader, response(EDS, "9", "n3", endpoints("llama")))
    assert list(after[EDS].resource_names) == ["chat-members", "llama"], "the acknowledgement repeats the whole list"
    assert reader.waiting() == {EDS: ("chat-members",), RDS: ("table",), SDS: ("server",)}


def test_a_removed_cluster_removes_its_endpoints() -> None:
    reader = Reader(ClientNode("edge-1"))
    both = response(CDS, "1", "a", cluster("llama"), cluster("chat"))
    answers_to(reader, both, response(EDS, "1", "b", endpoints("llama"), endpoints("chat")))
    changes, raw = reader.take(response(CDS, "2", "c", cluster("chat")).SerializeToString())
    assert [(item.type_url, item.removed) for item in changes] == [(CDS, ("llama",)), (EDS, ("llama",))]
    assert list(requests(raw)[EDS].resource_names) == ["chat"]
    assert list(requests(raw)[EDS].response_nonce) == ["b"]
    after = answers_to(reader, response(CDS, "3", "d"))
    assert list(after[EDS].resource_names) == [], "an empty list takes the subscription back"
    assert reader.resources(EDS) == {}


def test_endpoints_missing_in_a_response_stay() -> None:
    reader = Reader(ClientNode("edge-1"))
    answers_to(reader, response(CDS, "1", "a", cluster("llama"), cluster("chat")))
    answers_to(reader, response(EDS, "1", "b", endpoints("llama"), endpoints("chat")))
    changes, _ = reader.take(response(EDS, "2", "c", endpoints("llama", weight=5)).SerializeToString())
    assert [(item.added, item.changed, item.removed) for item in changes] == [((), ("llama",), ())]
    assert {name: item.version for name, item in reader.resources(EDS).items()} == {"chat": "1", "llama": "2"}


def test_equal_content_is_acknowledged_without_a_change() -> None:
    reader = Reader(ClientNode("edge-1"))
    answers_to(reader, response(CDS, "1", "a", cluster("llama")))
    changes, raw = reader.take(response(CDS, "2", "b", cluster("llama")).SerializeToString())
    assert changes == []
    assert requests(raw)[CDS].response_nonce == "b"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (response(CDS, "2", "b", cluster("llama"), cluster("llama")), "llama appears twice"),
        (response(CDS, "2", "b", cluster("new"), routes("table")), "contains a .*RouteConfiguration"),
        (response(CDS, "2", "b", cluster("")), "no name"),
    ],
)
def test_a_bad_response_is_rejected_as_a_whole(bad: Message, words: str) -> None:
    reader = Reader(ClientNode("edge-1"))
    answers_to(reader, response(CDS, "1", "a", cluster("llama")))
    after = answers_to(reader, bad)
    assert re.search(words, after[CDS].error_detail.message)
    assert (after[CDS].version_info, after[CDS].response_nonce) == ("1", "b")
    assert list(reader.resources(CDS)) == ["llama"]


@pytest.mark.parametrize("junk", [b"\xff" * 12, b"\x0a\x02\xff\xfe", b"hello world", b"\x0b"])
def test_undecodable_bytes_are_rejected(junk: bytes) -> None:
    message = response(CDS, "1", "a")
    message.resources.add(type_url=CDS, value=junk)
    reader = Reader(ClientNode("edge-1"))
    after = answers_to(reader, message)
    assert "Cluster" in after[CDS].error_detail.message
    assert reader.resources(CDS) == {}


def test_a_resource_in_an_envelope_is_read() -> None:
    inner = packed(cluster("llama"))
    message = discovery_pb2.DiscoveryResponse(type_url=CDS, version_info="1", nonce="a")
    message.resources.add().Pack(discovery_pb2.Resource(name="llama", resource=inner))
    reader = Reader(ClientNode("edge-1"))
    assert list(answers_to(reader, message)[EDS].resource_names) == ["llama"]


def test_unrequested_resources_are_ignored() -> None:
    reader = Reader(ClientNode("edge-1"))
    answers_to(reader, response(CDS, "1", "a", cluster("llama")))
    answers_to(reader, response(EDS, "1", "b", endpoints("llama"), endpoints("other")))
    assert list(reader.resources(EDS)) == ["llama"]
    assert reader.take(response("type.googleapis.com/other.Type", "1", "c").SerializeToString()) == ([], [])


def test_a_new_stream_starts_with_versions_and_no_nonce() -> None:
    reader = Reader(ClientNode("edge-1"))
    answers_to(reader, response(CDS, "7", "a", cluster("llama")), response(EDS, "8", "b", endpoints("llama")))
    again = requests(reader.open())
    assert {kind: (item.version_info, item.response_nonce) for kind, item in again.items()} == {
        CDS: ("7", ""),
        EDS: ("8", ""),
        LDS: ("", ""),
    }
    assert list(again[EDS].resource_names) == ["llama"]


def test_one_type_requests_only_its_prerequisites() -> None:
    assert set(requests(Reader(ClientNode("n"), [CDS]).open())) == {CDS}
    reader = Reader(ClientNode("n"), [EDS])
    assert set(requests(reader.open())) == {CDS}
    assert set(answers_to(reader, response(CDS, "1", "a", cluster("llama")))) == {CDS, EDS}
    assert set(requests(Reader(ClientNode("n"), [SDS]).open())) == {CDS, LDS}


# ── output ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_message_is_shown_like_protobuf_json() -> None:
    """Two independent libraries decode the configuration of the whole contract equally, except for credentials."""
    from envoy.config.bootstrap.v3 import bootstrap_pb2

    fleet = bootstrap_pb2.Bootstrap()
    text = (GOLDEN / "whole-contract" / "envoy.yaml").read_text()
    _import_all(text)
    json_format.ParseDict(yaml.load(text, yaml.CSafeLoader), fleet)
    resources: list[Message] = [*fleet.static_resources.clusters, *fleet.static_resources.listeners]
    assert len(resources) > 8
    for item in resources:
        url = f"type.googleapis.com/{item.DESCRIPTOR.full_name}"
        shown = tree(decode(url, item.SerializeToString()))
        assert _plain(shown) == _plain(json_format.MessageToDict(item, preserving_proto_field_name=True))


def _import_all(text: str) -> None:
    """Import the messages that an `@type` names, for protobuf's own parser."""
    wanted = set(re.findall(r"type\.googleapis\.com/([\w.]+)\.[A-Z]", text))
    for file in importlib.metadata.files("xds-protos") or ():
        if file.suffix == ".py" and ".".join(file.parts[:-1]) in wanted and file.stem != "__init__":
            importlib.import_module(".".join((*file.parts[:-1], file.stem)))


def _plain(value: object) -> object:
    """Return the value with integers as text, because protobuf's JSON shows 64-bit numbers as text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def sensitive_fields() -> Iterator[descriptor.FieldDescriptor]:
    """Yield every field of Envoy's v3 messages that Envoy marks as sensitive."""
    seen: set[str] = set()

    def visit(message: descriptor.Descriptor) -> Iterator[descriptor.FieldDescriptor]:
        if message.full_name in seen:
            return
        seen.add(message.full_name)
        yield from (field for field in message.fields if field.GetOptions().Extensions[sensitive_pb2.sensitive])
        for nested in message.nested_types:
            yield from visit(nested)

    for file in importlib.metadata.files("xds-protos") or ():
        if file.parts[0] == "envoy" and file.name.endswith("_pb2.py") and "v3" in file.parts:
            module = importlib.import_module(".".join((*file.parts[:-1], file.stem)))
            for message in module.DESCRIPTOR.message_types_by_name.values():
                yield from visit(message)


def _fill(message: Message, field: descriptor.FieldDescriptor, text: str) -> None:
    """Set every text of the field to `text`, at any depth."""
    here = getattr(message, field.name)
    if field.message_type is None:
        value = text.encode() if field.type == field.TYPE_BYTES else text
        here.append(value) if field.is_repeated else setattr(message, field.name, value)
    elif field.message_type.GetOptions().map_entry:
        _fill_all(here["a"], text) if hasattr(here, "get_or_create") else here.update(a=text)
    else:
        _fill_all(here.add() if field.is_repeated else here, text)


def _fill_all(message: Message, text: str) -> None:
    """Fill every text field. A DataSource gets its text inline; the owner of a key (`client`) is not a secret."""
    if isinstance(message, any_pb2.Any):
        message.Pack(wrappers_pb2.StringValue(value=text))
        return
    for each in message.DESCRIPTOR.fields:
        inline = message.DESCRIPTOR.name != "DataSource" or each.name == "inline_string"
        if inline and each.name != "client" and (each.message_type or each.type in (each.TYPE_STRING, each.TYPE_BYTES)):
            _fill(message, each, text)


@pytest.mark.slow
def test_fields_marked_sensitive_by_envoy_are_redacted() -> None:
    from google.protobuf import message_factory

    fields = list(sensitive_fields())
    assert len(fields) > 20
    for field in fields:
        message = message_factory.GetMessageClass(field.containing_type)()
        _fill(message, field, "hunter2")
        body = message.SerializeToString()
        assert b"hunter2" in body, field.full_name
        shown = json.dumps(tree(decode(f"type.googleapis.com/{field.containing_type.full_name}", body)))
        assert "hunter2" not in shown, field.full_name


def test_unmarked_credentials_are_redacted_too() -> None:
    bearer = {"header": {"key": "Authorization", "value": "Bearer hunter2"}}
    table = route_pb2.RouteConfiguration(name="t", request_headers_to_add=[bearer])
    assert "hunter2" not in str(tree(decode(RDS, table.SerializeToString())))
    for key, hidden in (({"kty": "oct", "k": "hunter2"}, True), ({"kty": "RSA", "n": "hunter2", "e": "AQAB"}, False)):
        provider = jwt_pb2.JwtProvider(issuer="i", local_jwks={"inline_string": json.dumps({"keys": [key]})})
        shown = tree(decode(f"type.googleapis.com/{provider.DESCRIPTOR.full_name}", provider.SerializeToString()))
        assert ("hunter2" not in str(shown)) is hidden


def test_the_path_of_a_key_is_shown() -> None:
    message = secret_pb2.Secret(name="s", tls_certificate={"private_key": {"filename": "/etc/tls/server.key"}})
    assert tree(decode(SDS, message.SerializeToString())) == {
        "name": "s",
        "tls_certificate": {"private_key": {"filename": "/etc/tls/server.key"}},
    }


# ── the commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def get(server: AdsServer, *more: str) -> int:
    return run(["xds", "get", "--timeout", "60", "--xds", server.address, "--node", "edge-1", *more])


def test_get_prints_all_resources_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    keys = api_key_auth_pb2.ApiKeyAuth(credentials=[{"key": "hunter2", "client": "acme"}])
    resources = content() | {LDS: {"public": listener("public", "table", "server", ("keys", keys))}}
    with AdsServer(resources) as server:
        assert get(server) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert "the private key" not in out
    shown = yaml.safe_load(out)
    assert {kind: [item["name"] for item in items] for kind, items in shown.items()} == {
        "cds": ["chat", "llama"],
        "eds": ["chat-members", "llama"],
        "lds": ["public"],
        "rds": ["table"],
        "sds": ["server"],
    }
    assert shown["eds"][0]["resource"]["endpoints"][0]["lb_endpoints"][0]["load_balancing_weight"] == 1
    assert shown["eds"][0]["version"] == "v1"
    assert shown["sds"][0]["resource"]["tls_certificate"]["private_key"] == REDACTED
    assert '{key: "[redacted]", client: acme}' in out


def test_get_prints_one_type_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer(content()) as server:
        assert get(server, "--type", "eds", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["eds"]
    assert [item["name"] for item in shown["eds"]] == ["chat-members", "llama"]


def test_get_acknowledges_everything() -> None:
    with AdsServer(content()) as server:
        assert get(server) == 0
        last = {item.type_url: item for item in server.requests}
    assert {kind: item.version_info for kind, item in last.items()} == dict.fromkeys((CDS, EDS, LDS, RDS, SDS), "v1")
    assert all(item.response_nonce and not item.HasField("error_detail") for item in last.values())


def test_get_of_an_empty_fleet_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer({}) as server:
        assert get(server) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"cds": [], "eds": [], "lds": [], "rds": [], "sds": []}


@pytest.mark.slow
def test_get_reports_missing_resources(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer(content() | {EDS: {"llama": endpoints("llama")}}) as server:
        assert get(server, "--timeout", "3") == 3
    printed = capsys.readouterr()
    assert "not received within 3 s: eds chat-members" in printed.err
    assert [item["name"] for item in yaml.safe_load(printed.out)["eds"]] == ["llama"]


@pytest.mark.slow
def test_a_silent_and_an_absent_control_plane_are_distinguished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with AdsServer(None) as server:
        assert get(server, "--timeout", "3") == 3
        assert "accepts connections, but sent nothing to this node within 3 s" in capsys.readouterr().err
    assert get(server) == 4
    assert "refused" in capsys.readouterr().err.lower()


def test_a_port_without_grpc_fails_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run(["xds", "get", "--xds", address, "--timeout", "0.6"]) == 4
    assert "no gRPC connection within 0.3 s" in capsys.readouterr().err


def test_a_refused_node_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer(content(), refuse=(grpc.StatusCode.PERMISSION_DENIED, "proxies.edge is for others")) as server:
        assert get(server) == 1
    printed = capsys.readouterr()
    assert "rejects this node: proxies.edge is for others" in printed.err
    assert printed.out == ""


def test_a_server_without_ads_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer(content(), refuse=(grpc.StatusCode.UNIMPLEMENTED, "no such method")) as server:
        assert get(server) == 4
    assert "does not serve ADS" in capsys.readouterr().err


@pytest.mark.slow
def test_control_characters_of_a_server_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer({CDS: {"a": cluster("a\x1b[31m")}}, refuse=None) as server:
        assert get(server, "--timeout", "3") == 3
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err


def test_get_works_over_mutual_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    server_pair, client_pair = authority.issue("server", ["127.0.0.1"]), authority.issue("edge-1")
    credentials = grpc.ssl_server_credentials(
        [(server_pair.key.read_bytes(), server_pair.certificate.read_bytes())], authority.ca.read_bytes(), True
    )
    shown = ["--tls-ca", str(authority.ca), "--tls-cert", str(client_pair.certificate), "--tls-key"]
    with AdsServer(content(), credentials=credentials) as server:
        assert get(server, *shown, str(client_pair.key)) == 0
        assert server.peers[0]["x509_common_name"] == [b"edge-1"]
        capsys.readouterr()
        assert get(server) == 4
        assert "it may need TLS" in capsys.readouterr().err
        assert get(server, "--tls-ca", str(authority.ca)) == 4, "the server requires a client certificate"
        stranger = Authority(tmp_path / "stranger")
        assert get(server, "--tls-ca", str(stranger.ca)) == 4, "the server's certificate is not trusted"
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert get(server, "--tls-ca", "/nowhere/ca.crt") == 1
        assert "cannot read /nowhere/ca.crt" in capsys.readouterr().err
    with AdsServer({}) as server:
        assert get(server, "--tls-ca", str(authority.ca)) == 4
        assert "it does not use TLS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert", "c"], "set both"),
        (["--tls-cert", "c", "--tls-key", "k"], "requires --tls-ca"),
        (["--xds", "nowhere"], "without a port"),
        (["--node", "a\nb"], "unprintable characters"),
        (["--type", "vhds"], "vhds"),
    ],
)
def test_wrong_flags_are_a_usage_error(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["xds", "get", *arguments]) == 64
    assert words in capsys.readouterr().err


class WatchProcess:
    """`lbctl xds watch` in a separate process."""

    def __init__(self, address: str, *more: str) -> None:
        command = [sys.executable, "-m", "lbctl", "xds", "watch", "--xds", address, "--node", "edge-1", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> WatchProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def lines(self, number: int) -> list[str]:
        """Return the next lines without their timestamps."""
        parts = [self.line().rstrip("\n").partition("  ") for _ in range(number)]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", time) for time, _, _ in parts)
        return [rest for _, _, rest in parts]

    def error(self) -> str:
        assert self.process.stderr
        return self.process.stderr.readline()


@pytest.mark.slow
def test_watch_prints_a_line_per_change() -> None:
    with AdsServer(content()) as server, WatchProcess(server.address) as watching:
        assert sorted(watching.lines(5)) == [
            "cds  added chat, llama  version v1",
            "eds  added chat-members, llama  version v1",
            "lds  added public  version v1",
            "rds  added table  version v1",
            "sds  added server  version v1",
        ]
        server.publish(content() | {EDS: {"llama": endpoints("llama", 9), "chat-members": endpoints("chat-members")}})
        assert watching.lines(1) == ["eds  changed llama  version v2"]
        server.publish(content() | {CDS: {"chat": cluster("chat", service="chat-members")}})
        assert watching.lines(2) == ["cds  removed llama  version v3", "eds  removed llama"]
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(60) == 130
        assert watching.error().strip() == "", "an interruption is not an error"


@pytest.mark.slow
def test_watch_of_one_type_prints_only_that_type() -> None:
    with AdsServer(content()) as server, WatchProcess(server.address, "--type", "rds") as watching:
        assert watching.lines(1) == ["rds  added table  version v1"]


@pytest.mark.slow
def test_watch_reconnects_to_a_restarted_control_plane() -> None:
    with AdsServer(content()) as server:
        watching = WatchProcess(server.address)
        with watching:
            watching.lines(5)
            server.__exit__()
            assert "trying again" in watching.error()
            time.sleep(0.5)
            changed = content() | {CDS: content()[CDS] | {"new": cluster("new")}, EDS: content()[EDS]}
            with AdsServer(changed, port=server.port):
                assert "is responding again" in watching.error()
                assert watching.lines(1) == ["cds  added new  version v1"], "known resources are not reported again"


def test_watch_of_an_absent_server_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with AdsServer({}) as server:
        pass
    assert run(["xds", "watch", "--xds", server.address]) == 4


def test_help_imports_no_heavy_modules() -> None:
    code = "import sys; from lbctl.cli import run; run(['xds', 'get', '--help']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = set(result.stdout.split())
    assert {"betterproto2", "envoy_data_plane", "grpc", "google.protobuf", "pydantic"} & modules == set()
