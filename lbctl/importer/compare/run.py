"""Performs the comparison: runs both proxies, sends the same requests to each, and collects the differences."""

from __future__ import annotations

import http.client
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lbctl.apply.binaries import find_program
from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.base.diagnostics import Diagnostics, Position
from lbctl.importer.compare import fleet, sessions
from lbctl.importer.compare.differences import (
    ObservedRequest,
    differences,
    observed,
    refused,
    services,
    without_key,
)
from lbctl.importer.compare.echo import echoes
from lbctl.importer.compare.places import StandIns, reserved_ports
from lbctl.importer.compare.processes import NotStartedError, running
from lbctl.importer.compare.samples import SampleRequest, samples
from lbctl.importer.compare.sandbox.confined import Sandbox, confined
from lbctl.importer.compare.sources import envoy, haproxy, nginx
from lbctl.importer.compare.sources.removed import CLOSED_HEADER, Removed, Rewritten
from lbctl.importer.draft import CLOSED_STATUS, Draft, addresses
from lbctl.importer.write import place_of
from lbctl.targets import target

_TIMEOUT = 10.0
_MAX_ANSWER_BYTES = 1 << 20
_NO_ROUTE = 404
"""Status that a fleet returns if no route matches a request. This response does not need protection."""


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """A request, with the results from both proxies."""

    sample: SampleRequest
    before: ObservedRequest
    """Result with the original configuration."""
    after: ObservedRequest
    """Result with the fleet."""
    differences: tuple[str, ...]
    """Descriptions of the differences. Empty if the results agree."""
    skipped: str = ""
    """The reason why the request was not compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of sample requests sent through both proxies."""

    rows: list[ComparedRequest]
    removed: tuple[Removed, ...]
    """Directives in the configuration that were not run."""


class MissingProxyError(Exception):
    """The proxy is not installed on this machine."""


def compare(kind: str, files: Sequence[str], draft: Draft, *, allow_unsandboxed: bool = False) -> Comparison:
    """Compare a configuration with its fleet.

    Raises MissingProxyError, NotStartedError, SandboxUnavailableError and TooSlowError.
    """
    binary = find_program(target(kind))
    if binary is None:
        raise MissingProxyError(
            f"--compare needs the program {target(kind).binary}, which was not found on this machine"
        )
    with tempfile.TemporaryDirectory(prefix="lbctl-compare-", ignore_cleanup_errors=True) as directory:
        base = Path(directory).resolve()
        base.chmod(0o711)
        result = confined(
            lambda sandbox: _compared(kind, binary, files, draft, sandbox), base, allow_unsandboxed=allow_unsandboxed
        )
    if "not_started" in result:
        raise NotStartedError(result["not_started"])
    return Comparison([_row_of(item) for item in result["rows"]], tuple(map(_removed_of, result["removed"])))


def _compared(kind: str, binary: str, files: Sequence[str], draft: Draft, sandbox: Sandbox) -> dict[str, Any]:
    """Return the comparison, or the reason why it was not possible, as JSON values."""
    try:
        return asdict(compare_in(sandbox, kind, binary, files, draft))
    except NotStartedError as error:
        return {"not_started": str(error)}


def _row_of(values: dict[str, Any]) -> ComparedRequest:
    before, after = map(_observed_of, (values["before"], values["after"]))
    sample = SampleRequest(**values["sample"])
    return ComparedRequest(sample, before, after, tuple(values["differences"]), values["skipped"])


def _observed_of(values: dict[str, Any]) -> ObservedRequest:
    headers, answer = (tuple((name, value) for name, value in values[key]) for key in ("headers", "answer"))
    return ObservedRequest(**(values | {"headers": headers, "answer": answer}))


def _removed_of(values: dict[str, Any]) -> Removed:
    return Removed(**(values | {"position": Position(**values["position"])}))


def compare_in(sandbox: Sandbox, kind: str, binary: str, files: Sequence[str], draft: Draft) -> Comparison:
    """Compare a configuration with its fleet, both of which run in this sandbox. Raises NotStartedError."""
    pools = draft.fleet["pools"].values()
    echoed = {address: list[str]() for pool in pools for address in addresses(pool)} | services(draft.fleet)
    binds = {name: str(item["bind"]) for name, item in draft.fleet["listeners"].items()}
    with ExitStack() as stack:
        dead = stack.enter_context(reserved_ports(["dead"]))["dead"]
        echo_ports = stack.enter_context(echoes(echoed, sessions.named_by_replicas(draft.fleet)))
        sandbox = replace(sandbox, connect=(*echo_ports.values(), dead))
        old, new = (
            _places(sandbox.base / name, stack.enter_context(reserved_ports(binds.values())), echo_ports, dead)
            for name in ("before", "after")
        )
        source = hide_secrets(draft, rewritten(kind, files, old))
        (old.directory / "main").write_text(source.text)
        _start(stack, kind, binary, old, str(old.directory / "main"), "the configuration", sandbox)
        try:
            config = fleet.configuration(kind, binary, draft, new)
        except ValueError as error:
            raise NotStartedError(f"the fleet: {error}") from None
        _start(stack, kind, binary, new, config, "the fleet", sandbox)
        rows = [_row(draft, source, sample, old.binds[binds[sample.listener]], new.binds[binds[sample.listener]])
                for sample in samples(draft.fleet, draft.longer_paths)]  # fmt: skip
        return Comparison(rows, source.removed)


def hide_secrets(draft: Draft, source: Rewritten) -> Rewritten:
    """Return the source with secrets removed from the words that must not be run."""
    secrets = draft.ledger.secrets
    removed = (replace(item, word=secrets.hidden(item.word, item.position)) for item in source.removed)
    return replace(source, removed=tuple(removed))


def _places(directory: Path, ports: Mapping[str, int], replicas: Mapping[str, int], dead: int) -> StandIns:
    directory.mkdir(mode=0o700)
    places = StandIns(directory, ports, replicas, dead)
    places.write_certificates()
    return places


def rewritten(kind: str, files: Sequence[str], places: StandIns) -> Rewritten:
    """Return the source rewritten for loopback."""
    diagnostics = Diagnostics()
    if kind == "nginx":
        from lbctl.importer.nginx.read import read as read_nginx

        return nginx.rewrite([item for file in files for item in read_nginx(file, diagnostics)], places)
    if kind == "haproxy":
        from lbctl.importer.haproxy.read import read as read_haproxy

        return haproxy.rewrite(read_haproxy(files, diagnostics), places)
    from lbctl.importer.envoy.read import read as read_envoy

    return envoy.rewrite(read_envoy(files[0], diagnostics), places)


def _start(
    stack: ExitStack, kind: str, binary: str, places: StandIns, config: str, what: str, sandbox: Sandbox
) -> None:
    if kind == "envoy" and not config.endswith((".yaml", ".json")):
        Path(config).rename(f"{config}.json")
        config = f"{config}.json"
    try:
        stack.enter_context(running(kind, binary, places.directory, config, places.binds.values(), sandbox))
    except NotStartedError as error:
        raise NotStartedError(f"{what}: {error}") from None


# ── One request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _row(draft: Draft, source: Rewritten, sample: SampleRequest, before: int, after: int) -> ComparedRequest:
    route = draft.fleet["routes"].get(sample.route, {})
    tls = "tls" in draft.fleet["listeners"][sample.listener]
    nothing = ObservedRequest(0)
    if route.get("respond", {}).get("status") == CLOSED_STATUS:
        return ComparedRequest(sample, nothing, nothing, (), "the import closed the route")
    if ("routes", sample.route) in draft.moved:
        return ComparedRequest(sample, nothing, nothing, (), "the proxy's metrics have a separate address")
    pools = {route.get("pool"), *route.get("split", {})} & set(draft.fleet["pools"])
    if any(draft.fleet["pools"][name].get("protocol", "http1") != "http1" for name in pools):
        return ComparedRequest(sample, nothing, nothing, (), "the echo servers support HTTP/1.1 only")
    one, other = (_ask(sample, port, tls=tls) for port in (before, after))
    if other.status == CLOSED_STATUS:
        return ComparedRequest(sample, one, other, (), "the import closed the route")
    number = dict(one.answer).get(CLOSED_HEADER, "")
    if one.status == CLOSED_STATUS and number.isdecimal() and int(number) < len(source.removed):
        why = f"the comparison closed the route: {source.removed[int(number)].text}"
        return ComparedRequest(sample, one, other, (), why)
    if one.status == 0 and _speaks_http2(draft, sample.listener):
        return ComparedRequest(sample, one, other, (), "the listener accepts HTTP/2 only")
    if not sample.route and refused(one) and other.status == _NO_ROUTE:
        return ComparedRequest(sample, one, other, ())
    lost = tuple(_lost_sessions(draft, pools))
    if route.get("auth", {}).keys() - {"external", "forward_credentials"}:
        differing = (*without_key(one, other), *lost)
        return ComparedRequest(
            sample,
            one,
            other,
            differing,
            "" if differing else "both refuse a request without a key; nothing else was compared",
        )
    differing = (*differences(draft.fleet, one, other), *lost)
    if not differing and one.replica:
        asks = (lambda each, port=port: _ask(each, port, tls=tls) for port in (before, after))
        differing = tuple(sessions.differences(draft.fleet, route, sample, *asks))
    return ComparedRequest(sample, one, other, differing)


def _lost_sessions(draft: Draft, pools: Iterable[str]) -> Iterator[str]:
    """Yield the pools that, unlike the configuration, do not keep sessions. A single request cannot reveal this."""
    for name in sorted(pools):
        if (statement := draft.unkept.get(("pools", name))) is not None:
            yield f"sessions do not stay on one replica in pool {name} ({place_of(statement.position)})"


def _speaks_http2(draft: Draft, listener: str) -> bool:
    """Return whether a listener leads to a pool that uses HTTP/2."""
    routes = [item for item in draft.fleet["routes"].values() if listener in item.get("listeners", [listener])]
    pools = [draft.fleet["pools"].get(item.get("pool"), {}) for item in routes]
    return any(pool.get("protocol", "http1") != "http1" for pool in pools)


def _ask(sample: SampleRequest, port: int, *, tls: bool) -> ObservedRequest:
    context = ssl._create_unverified_context() if tls else None
    connection = (
        http.client.HTTPSConnection(LOOPBACK, port, timeout=_TIMEOUT, context=context)
        if context is not None
        else http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT)
    )
    try:
        connection.request(sample.method, sample.path, sample.body or None, {"host": sample.host, **sample.headers})
        response = connection.getresponse()
        content = response.read(_MAX_ANSWER_BYTES)
        if response.length:
            return ObservedRequest(0)  # The response was truncated, or is too long.
    except (OSError, http.client.HTTPException):
        return ObservedRequest(0)
    finally:
        connection.close()
    return observed(response.status, dict(response.getheaders()), content)
