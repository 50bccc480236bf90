"""Every parser of foreign input, with inputs to start from and the errors that it may raise.

An input is bytes. A parser accepts it or raises one of its errors; any other exception is a bug in the parser.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest
from google.protobuf.message import DecodeError

from lbctl.api import schema, tokens
from lbctl.api.codec import SchemaError
from lbctl.api.codec import parse as parse_body
from lbctl.apply.haproxy import running
from lbctl.base import foreign_json, quantities
from lbctl.base.diagnostics import Diagnostics
from lbctl.base.foreign_json import shaped
from lbctl.compile import credential_files
from lbctl.importer.run import run as run_import
from lbctl.init.gpus import gpus_of
from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, PickPolicy, Pool, Replica, SessionKey
from lbctl.model.fleet import parse as parse_fleet
from lbctl.model.load import SourceText
from lbctl.pick.features import read as read_features
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import connection, exchange, http_protocol, wire
from lbctl.picker.admission import QuestionKey
from lbctl.picker.ext_proc import ProcessorStream
from lbctl.picker.service import PickService
from lbctl.picker.spop import SpopApi, SpopProtocol
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from lbctl.serve.discovery import endpoint_slices, inference_pool
from lbctl.serve.discovery.endpoints import replicas_of
from lbctl.serve.ha.presence import MemberInfo, read_info, write_info
from lbctl.serve.ha.records import LeaderStatus, read_leader, write_leader
from lbctl.serve.ha.requests import MemberRequest, MemberRequests, NotSignedError
from lbctl.serve.traffic.log_line import ReplicaAddresses, tries_of
from lbctl.serve.traffic.timer_line import timers_of
from lbctl.signals.detect import page_kind
from lbctl.signals.exposition import MetricsReader
from lbctl.signals.prometheus import NoValueError, single_value
from lbctl.simulate.trace import read as read_trace
from lbctl.store.interface import Presence
from lbctl.store.records import UNREADABLE
from lbctl.store.signing import Keyring, parse_envelope, parse_keys
from lbctl.xds.protocol import load_reports, request_logs
from lbctl.xds.protocol import wire as xds_wire
from tests.support import spop
from tests.support.importer import samples
from tests.support.paths import FIXTURES

_TABLE = PoolTable(
    "chat",
    PickPolicy((SessionKey(header="x-session-id"),)),
    (Candidate("a", "10.0.0.1:80"), Candidate("b", "10.0.0.2:80")),
)


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser with its seeds and errors."""

    parse: Callable[[bytes], object]
    """Parse an input."""
    seeds: tuple[bytes, ...]
    """Valid inputs, from which others are made."""
    errors: tuple[type[Exception], ...] = ()
    """The exceptions that it may raise for an input that it rejects."""


def _on_file(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a parser that passes a file descriptor with the input to `read`, a reader of files."""

    def parse(data: bytes) -> object:
        with os.fdopen(os.memfd_create("input"), "wb") as memory:
            memory.write(data)
            memory.flush()
            return read(f"/proc/self/fd/{memory.fileno()}")

    return parse


def _import(kind: str) -> Callable[[bytes], object]:
    return _on_file(lambda name: run_import(kind, [name], Diagnostics()))


def _link(data: bytes) -> None:
    values = wire.parse(data)
    readers: tuple[Callable[[], object], ...] = (
        lambda: list(wire.samples_of(values)),
        lambda: wire.proxy_samples_of(values),
        lambda: wire.peers_of(values),
        lambda: wire.question_of(values),
        lambda: wire.changed_table(wire.table_of(values, 0.0), values, 0.0),
    )
    for read in readers:
        with suppress(wire.WireError):
            read()


def _picked(data: bytes) -> None:
    service = PickService()
    service.set_table("chat", _TABLE)
    ProcessorStream(service).receive(ProcessingRequest.FromString(data))


def _spop(data: bytes) -> None:
    """Read a frame, without its length, both as the first frame of a connection and as a later one."""
    service = PickService()
    service.set_table("chat", _TABLE)
    api = SpopApi(service, QuestionKey())
    for before in (b"", spop.hello()):
        protocol = SpopProtocol(api)
        if before:
            protocol.respond(bytearray(before))
        with suppress(connection.MalformedError):
            protocol.respond(bytearray(len(data).to_bytes(4, "big") + data))


def _slices(data: bytes) -> object:
    slices = shaped(foreign_json.parse(data), [{"metadata": {"name": str, "namespace": str}, **endpoint_slices.SHAPE}])
    discovery = KubernetesDiscovery(namespace="ml", service="llama", port="http")
    return replicas_of(discovery, endpoint_slices.endpoints("http", slices, {}), {"node": {}, "pod": {}})


def _pods(data: bytes) -> object:
    shape = {"pool": inference_pool.POOL_SHAPE, "pods": [{"metadata": {"name": str}, **inference_pool.POD_SHAPE}]}
    given = shaped(foreign_json.parse(data), shape)
    pool = inference_pool.read(given.get("pool", {}))
    discovery = KubernetesDiscovery("ml", "", inference_pool="llama")
    return pool and replicas_of(discovery, inference_pool.endpoints(pool, given.get("pods", ())), {"node": {}})


def _files(kind: str) -> tuple[bytes, ...]:
    return tuple(file.read_bytes()[:4000] for file in samples(kind)[:8])


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _quantity(text: str) -> None:
    for read in (
        quantities.parse_duration, quantities.parse_size, quantities.parse_percent, quantities.parse_temperature,
        quantities.parse_rate, quantities.parse_token_rate, quantities.parse_per_second, quantities.parse_address,
        quantities.parse_version,
    ):  # fmt: skip
        with suppress(quantities.QuantityError):
            read(text)


_SLICE = {
    "metadata": {"name": "s1", "namespace": "ml"},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    "endpoints": [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": "p"}}
    ],
}
_PODS = {
    "pool": {
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}, {"number": 8001}]}
    },
    "pods": [
        {
            "metadata": {"name": "p"},
            "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]},
        }
    ],
}
_KUBECONFIG = b"""\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {token: abc}}]
"""
_STAT = (
    "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,wretr,wredis,status,weight,"
    "hrsp_4xx,hrsp_5xx,rate,cli_abrt,srv_abrt,ttime,rtime,ctime,qtime,req_tot,addr,type\n"
    "chat,a,0,0,0,1,,1,1,1,,0,,0,0,0,0,UP,1,0,0,1,0,0,1,1,1,1,1,10.0.0.1:80,2\n"
)
_TIMERS = (
    b'<134>1 2026-11-29T01:00:00.000+00:00 host lbctl 7 - [lbctl@0 proxy="edge" backend="pool_chat" status="200" '
    b'end="----" server="a" timers="0 0 1 20 21"]'
)
_NGINX = b"<190>Nov 29 01:00:00 lbctl: edge|chat|200|10.0.0.1:80|200|0.010|0.020"
_ADDRESSES = ReplicaAddresses([Pool("chat", (Replica("a", Address("10.0.0.1", 80)),))], {})
_MEMBER = MemberRequests("cp-1", Keyring(), lambda: 1000.0)

PARSERS: dict[str, Parser] = {
    "a fleet's YAML": Parser(
        lambda data: parse_fleet([SourceText("fleet.yaml", data, ".")], Diagnostics()),
        tuple((FIXTURES / name).read_bytes() for name in ("quickstart.yaml", "full.yaml")),
    ),
    "a quantity": Parser(
        _text(_quantity), (b"30s", b"8MiB", b"5%", b"90C", b"10/s", b"[::1]:80", b"unix:/run/x", b"1.22")
    ),
    "a file of API keys": Parser(
        _text(lambda text: credential_files.parse_keys("keys", text, Diagnostics())),
        (b"key-1234567890abcdef: acme\n", b"'k:1': t\nsha256:" + b"a" * 64 + b": u\n"),
    ),
    "nginx's configuration": Parser(_import("nginx"), _files("nginx")),
    "HAProxy's configuration": Parser(_import("haproxy"), _files("haproxy")),
    "Envoy's configuration": Parser(_import("envoy"), _files("envoy")),
    "a page of metrics": Parser(
        lambda data: (MetricsReader(["vllm:num_requests_running"]).read(data), page_kind(data), gpus_of("dcgm", data)),
        tuple(
            (FIXTURES / "metrics" / name).read_bytes()[:3000] for name in ("vllm_v1.prom", "dcgm.prom", "triton.prom")
        ),
    ),
    "an answer of Prometheus": Parser(
        single_value,
        (b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0.5"]}]}}',),
        (NoValueError,),
    ),
    "nginx's log line": Parser(lambda data: tries_of(data, frozenset({"edge"}), _ADDRESSES), (_NGINX,)),
    "HAProxy's log line": Parser(timers_of, (_TIMERS,)),
    "HAProxy's Runtime API": Parser(
        _text(lambda text: (running.counters(text), running.read(text, text, text))),
        (("Pid: 7\nVersion: 2.6.1\n" + _STAT).encode(),),
        (running.UnreadableAnswerError,),
    ),
    "a question to the picker over HTTP": Parser(
        lambda data: http_protocol.parse(bytearray(data)),
        (b"POST /pick/chat HTTP/1.1\r\nhost: x\r\nx-session-id: s\r\ncontent-length: 2\r\n\r\n{}",),
        (connection.MalformedError,),
    ),
    "a query to the picker by SPOP": Parser(
        _spop,
        (
            spop.hello(check=True)[4:],
            spop.frame(spop.DISCONNECT, spop.name("status-code") + b"\x03\x00")[4:],
            spop.notify(
                [
                    ("key", b"\x00"),
                    ("target", spop.string("/pick/chat?regions=eu")),
                    ("length", spop.string("2")),
                    ("headers", spop.string("x-session-id")),
                    ("value", spop.string("s")),
                    ("body", spop.string("{}")),
                    ("address", b"\x06\x7f\x00\x00\x01"),
                    ("number", b"\x04" + spop.varint(2**64 - 1)),
                ],
                2**32,
            )[4:],
        ),
    ),
    "a question to the picker by ext_proc": Parser(
        _picked,
        (
            ProcessingRequest(
                request_headers={"headers": {"headers": [{"key": "x-session-id", "raw_value": b"s"}]}}
            ).SerializeToString(),
        ),
        (DecodeError, ValueError),
    ),
    "the body of a client": Parser(
        lambda data: read_features(_TABLE, {"content-type": ["application/json"]}, data, len(data)),
        (b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}', b'{"prompt":["a","b"]}'),
    ),
    "the link to serve": Parser(
        _link,
        (wire.whole(_TABLE, 0.0), b'{"kind":"samples","samples":[["chat","a",1,2,3]]}', b'{"kind":"peers","peers":{}}'),
        (wire.WireError,),
    ),
    "the counts of another picker": Parser(exchange.parse, (b'{"from":"abc","counts":{"chat":{"a":[1,2,3,4]}}}',)),
    "a request of xDS": Parser(
        lambda data: xds_wire.read(data, delta=False),
        (DiscoveryRequest(type_url="t", resource_names=["a"], node={"id": "edge"}).SerializeToString(),),
        (xds_wire.StreamError,),
    ),
    "a request of incremental xDS": Parser(
        lambda data: xds_wire.read(data, delta=True),
        (DeltaDiscoveryRequest(type_url="t", node={"id": "edge"}).SerializeToString(),),
        (xds_wire.StreamError,),
    ),
    "a load report": Parser(
        load_reports.read,
        (LoadStatsRequest(node={"id": "edge"}, cluster_stats=[{"cluster_name": "chat"}]).SerializeToString(),),
        (xds_wire.StreamError,),
    ),
    "an access log of Envoy": Parser(
        lambda data: list(request_logs.read(data)), (b"\x12\x00",), (xds_wire.StreamError,)
    ),
    "EndpointSlices": Parser(_slices, (json.dumps([_SLICE]).encode(),), (ValueError,)),
    "an InferencePool and its pods": Parser(_pods, (json.dumps(_PODS).encode(),), (ValueError,)),
    "a kubeconfig": Parser(_on_file(lambda name: kubeconfig.read(Path(name))), (_KUBECONFIG,), (ClusterError,)),
    "a write to the API": Parser(
        lambda data: isinstance(body := json.loads(data), dict) and parse_body(schema.OverrideRequest, body),
        (b'{"kind":"drain","pool":"chat","replica":"a","ttl":60}',),
        (SchemaError, ValueError),
    ),
    "an announcement of a member": Parser(
        _text(lambda text: read_info(Presence("cp-1", "instance", text))),
        (write_info(MemberInfo("cp-1", "leader", 7, "https://cp-1:1", "[::1]:2", steps=("r/1",))).encode(),),
    ),
    "the leader's heartbeat": Parser(
        _text(read_leader), (write_leader(LeaderStatus("cp-1", 7, "https://cp-1:1", 1000.0)).encode(),), UNREADABLE
    ),
    "a signed text": Parser(_text(parse_envelope), (f"signed:1:17.4:{'0' * 64}:[]".encode(),)),
    "a key file": Parser(_text(parse_keys), (b"key-" * 8 + b"\nunsigned\n",), (ValueError,)),
    "a forwarded request": Parser(
        _text(lambda text: _MEMBER.verify(text, MemberRequest("POST", "/", b""), [])),
        (_MEMBER.sign(MemberRequest("POST", "/", b""), "cp-1", "anna", b"token").split(" ")[1].encode(),),
        (NotSignedError,),
    ),
    "a file of tokens": Parser(tokens.parse, (b"alice:operate:abcdefgh\n# c\n", b"token\n")),
    "a trace": Parser(
        _on_file(lambda name: read_trace(name, Diagnostics())),
        (b'{"timestamp":0,"input_length":10,"output_length":5}\n', b"TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,2\n"),
    ),
}
