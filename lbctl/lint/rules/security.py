"""Who can read, who can enter, and where a scrape may be sent."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path as File
from urllib.parse import unquote, urlsplit

from lbctl.base.diagnostics import Path
from lbctl.base.hosts import is_metadata, literal, refused
from lbctl.compile.files import file_of, named_files
from lbctl.ir.pools import Pool
from lbctl.lint.rule import Found, rule
from lbctl.lint.sample import sample
from lbctl.lint.subject import Subject, is_loopback, telemetries
from lbctl.model.node import Node

_TLS = "tls: {certificates: [{certificate: tls/server.crt, key: tls/server.key}]}"
_SECRET = re.compile(
    r"\bsk-(?=[\w-]*[0-9])(?:[A-Za-z0-9]+[_-])*[A-Za-z0-9]{16,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b|\bnvapi-[\w-]{20,}"
    r"|\bxox[abpr]-[A-Za-z0-9-]{10,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.|(?i:\b(?:bearer|basic))\s+(?=\S*(?:[0-9]|[a-z][A-Z]))[\w.~+/=-]{8,}"
    r"|(?i:[?&](?:token|api_?key|key|password|secret|sig)=[^&{]{4,})"
)
"""Of words that might be prose, only those that hold a digit or change their case."""
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})


def _metrics(host: str) -> str:
    return f'telemetry:\n  sources:\n    - {{kind: dcgm, url: "http://{host}:9400/metrics"}}\n'


@rule(
    "LB520",
    "warning",
    "a listener beyond loopback without TLS",
    what="A listener is bound to an address that others can reach, and has no `tls`.",
    why="Prompts are people's letters, code and records, and keys travel with each of them: on the wire they can be "
    "read and changed.",
    before=sample(listener='gateway: {bind: "0.0.0.0:8080"}\n'),
    after=sample(listener=f'gateway: {{bind: "0.0.0.0:8443", {_TLS}}}\n'),
    ignore="Another balancer before it ends TLS, and the way between them is yours alone.",
)
def in_clear(fleet: Subject) -> Iterator[Found]:
    for item in fleet.topology.listeners:
        if item.tls is None and not is_loopback(item.bind):
            message = f"{item.bind} can be reached from elsewhere: prompts and keys travel in clear"
            yield Found(("listeners", item.name, "bind"), message, "tls: {certificates: …}, or bind it to 127.0.0.1")


@rule(
    "LB521",
    "warning",
    "TLS to replicas that verifies nothing",
    what="A pool speaks TLS to its replicas, and names no `ca`.",
    why="Without an authority the proxy takes any certificate: whoever can answer in the replica's place reads every "
    "prompt, and TLS costs its time for nothing.",
    before=sample("tls: {server_name: llama.internal}\n"),
    after=sample("tls: {ca: tls/replicas-ca.crt, server_name: llama.internal}\n"),
    ignore="The network underneath is encrypted and verified by itself.",
)
def unverified(fleet: Subject) -> Iterator[Found]:
    for pool in fleet.pools:
        if pool.tls is not None and pool.tls.ca is None:
            yield Found(("pools", pool.name, "tls", "ca"), "no `ca`: any certificate is believed", "ca: FILE")


@rule(
    "LB522",
    "error",
    "xDS beyond loopback without client certificates",
    what="`control.xds.bind` can be reached from elsewhere, and `control.xds.tls` has no `client_ca`.",
    why="Whoever connects gets the whole fleet with its keys. `lbctl serve` refuses to start so (LB510) unless told "
    "`--insecure`.",
    before=sample(more='control: {xds: {bind: "0.0.0.0:18000"}}\n'),
    after=sample(
        more="control:\n  xds:\n"
        '    bind: "0.0.0.0:18000"\n'
        "    tls: {certificate: tls/xds.crt, key: tls/xds.key, client_ca: tls/proxies-ca.crt}\n"
    ),
    ignore="The network admits the proxies alone, and serve is started with `--insecure`.",
)
def open_xds(fleet: Subject) -> Iterator[Found]:
    control = fleet.topology.control
    if not is_loopback(control.xds_bind) and (control.xds_tls is None or control.xds_tls.client_ca is None):
        message = f"{control.xds_bind} hands the fleet with its keys to whoever connects"
        yield Found(("control", "xds", "bind"), message, "tls: {certificate: …, key: …, client_ca: …}")


@rule(
    "LB523",
    "error",
    "the API beyond loopback without TLS and token",
    what="`control.api.bind` can be reached from elsewhere, and `control.api` lacks `tls` or `token_file`.",
    why="The API moves traffic: drains, weights, rollouts. `lbctl serve` refuses to start so (LB511).",
    before=sample(more='control: {api: {bind: "0.0.0.0:18080"}}\n'),
    after=sample(
        more="control:\n  api:\n"
        '    bind: "0.0.0.0:18080"\n'
        "    token_file: secrets/api-token\n"
        "    tls: {certificate: tls/api.crt, key: tls/api.key}\n"
    ),
    ignore="Never.",
)
def open_api(fleet: Subject) -> Iterator[Found]:
    control = fleet.topology.control
    if not is_loopback(control.api_bind) and (control.api_tls is None or control.api_token_file is None):
        message = f"{control.api_bind} lets whoever connects move traffic"
        yield Found(("control", "api", "bind"), message, "tls and token_file, or bind it to 127.0.0.1")


@rule(
    "LB524",
    "error",
    "a secret in the YAML",
    what="A value looks like a key or token (its beginning is that of a known kind, or it is a credential's header).",
    why="Fleet files stand in git, in diffs and in tickets. A GPU key that leaks is spent by strangers within the "
    "hour.",
    before=sample(
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, headers: {request: {set: {authorization: "
        "Bearer not-a-real-key-1}}}}\n"
    ),
    after=sample(
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, auth: {api_keys: {file: secrets/api-keys}, "
        "forward_credentials: true}}\n"
    ),
    ignore="The value is public.",
)
def told_secret(fleet: Subject) -> Iterator[Found]:
    for path, node in _texts(fleet.loaded.source.root):
        if _SECRET.search(str(node.value)) or _is_credential(path):
            yield Found(path, "this looks like a secret (not shown)", "a file that git does not hold, named here")


def _texts(root: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every text that is long enough for a secret, but for what of replicas cannot be one."""
    if isinstance(root.value, dict):
        for key, node in root.value.items():
            if isinstance(node.value, str) and len(node.value) > 7 and key != "address":
                yield (*path, key), node
            elif isinstance(node.value, dict | list):
                yield from _texts(node, (*path, key))
    elif isinstance(root.value, list):
        for index, node in enumerate(root.value):
            if isinstance(node.value, str) and len(node.value) > 7:
                yield (*path, index), node
            elif isinstance(node.value, dict | list):
                yield from _texts(node, (*path, index))


def _is_credential(path: Path) -> bool:
    sets = path[:1] in (("routes",), ("defaults",)) and path[-4:-1] == ("headers", "request", "set")
    return sets and str(path[-1]).lower() in _CREDENTIALS


@rule(
    "LB525",
    "warning",
    "a key file that everybody may read",
    what="A private key, a token or a list of API keys is readable by all users of this machine. A list that holds "
    "nothing but hashes is no secret.",
    why="Every process on the host, also one that broke out of a model's container, can then be your gateway.",
    before=sample(listener=f'gateway: {{bind: "127.0.0.1:8443", {_TLS}}}   # tls/server.key is -rw-r--r--\n'),
    after=sample(listener=f'gateway: {{bind: "127.0.0.1:8443", {_TLS}}}   # tls/server.key is -rw-------\n'),
    ignore="The file here is a stand-in.",
)
def open_keys(fleet: Subject) -> Iterator[Found]:
    for path, node in _key_files(fleet):
        place = file_of(fleet.loaded.source, node)
        if _readable_by_all(place):
            yield Found(path, "everybody on this machine can read this file", f"chmod 600 {node.value}")


def _key_files(fleet: Subject) -> Iterator[tuple[Path, Node]]:
    source, keys = fleet.loaded.source, fleet.loaded.secrets.api_keys
    for path, node in named_files(source.root):
        if path[-1] == "key" or (
            path[-2:] == ("api_keys", "file") and any(k.key for k in keys.get(str(node.value), ()))
        ):
            yield path, node
    for path in (("control", "xds", "tls", "key"), ("control", "api", "tls", "key"), ("control", "api", "token_file")):
        own = fleet.written(path)
        if own is not None:
            yield path, own


def _readable_by_all(place: File) -> bool:
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)


@rule(
    "LB526",
    "error",
    "metrics from a link-local or metadata address",
    what="A source of telemetry has a URL on an address that no replica can have: a link-local one, that of a cloud's "
    "metadata service, multicast or 0.0.0.0, however it is written, and also where `{host}` is the address of such a "
    "replica.",
    why="There the cloud hands out credentials of the machine. Nothing that serves metrics of a GPU stands there, so "
    "it is an error or an attack; `lbctl serve` does not fetch it.",
    before=sample(_metrics("169.254.169.254")),
    after=sample(_metrics("{host}")),
    ignore="Never.",
)
def metadata(fleet: Subject) -> Iterator[Found]:
    for pool in fleet.pools:
        for path, telemetry in telemetries(pool):
            for index, source in enumerate(telemetry.sources):
                words = _forbidden(_host(source.url))
                if words:
                    yield Found((*path, "sources", index, "url"), words, "http://{host}:PORT/metrics")
        yield from _forbidden_replicas(pool)


def _forbidden_replicas(pool: Pool) -> Iterator[Found]:
    """Those whose own address a source would ask."""
    for replica in pool.replicas:
        words = _forbidden(replica.address.host)
        telemetry = replica.telemetry or pool.telemetry if words else None
        if telemetry and any(_host(item.url) in ("host", "address") for item in telemetry.sources):
            path = ("pools", pool.name, "replicas", replica.name, "address")
            yield Found(path, f"{words} (`{{host}}` of its sources)", "the address at which the replica serves")


def _host(url: str) -> str:
    """The host as a client reads it; `host` or `address` where it is the replica's."""
    try:
        return unquote(urlsplit(url.replace("{", "").replace("}", "")).hostname or "")
    except ValueError:
        return ""


def _forbidden(host: str) -> str:
    """What is wrong with it, or nothing."""
    address = literal(host)
    if is_metadata(host, address):
        return "this address hands out the machine's own credentials, not metrics"
    return "no replica can have this address" if address is not None and refused(address) else ""
