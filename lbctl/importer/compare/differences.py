"""The results of sending a request through each of the two proxies, and the differences between them.

Header values are never shown, because some are secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lbctl.importer.draft import addresses

_NOT_COMPARED = frozenset(
    {
        "connection", "keep-alive", "x-request-id", "content-length", "transfer-encoding",
        "x-envoy-expected-rq-timeout-ms", "x-envoy-attempt-count", "x-envoy-internal", "x-envoy-external-address",
        "x-forwarded-proto", "x-forwarded-for", "x-real-ip", "x-envoy-original-path", "x-envoy-original-host", "te"
    }
)  # fmt: skip
"""Request headers that each proxy sets differently."""
_NOT_COMPARED_IN_ANSWERS = frozenset(
    {
        "connection", "keep-alive", "content-length", "transfer-encoding", "date", "server", "x-request-id", "via",
        "x-envoy-upstream-service-time", "location", "content-type", "set-cookie", "retry-after"
    }
)  # fmt: skip
"""Response headers that each proxy sets differently."""
_OWN_ANSWERS = frozenset({"cache-control", "www-authenticate", "x-envoy-upstream-healthchecked-cluster"})
"""Headers that a proxy adds to its own responses."""
_REFUSALS = frozenset({401, 403})
"""Status codes that reject a request without credentials."""
_Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """The result of sending a request through one of the proxies."""

    status: int
    """Status of the response, or 0 if no response was received."""
    replica: str = ""
    """Replica that responded, or an empty string if the proxy itself responded."""
    method: str = ""
    """Method received by the replica."""
    path: str = ""
    """Path received by the replica."""
    host: str = ""
    """Host header received by the replica."""
    headers: _Headers = ()
    """Other headers received by the replica, except for those that each proxy sets differently."""
    body: str = ""
    """Body received by the replica."""
    answer: _Headers = ()
    """Response headers, except for those that each proxy sets differently."""
    text: str = ""
    """Body of a response from the proxy itself, or an empty string for its error page."""


def observed(status: int, answer: Mapping[str, str], content: bytes) -> ObservedRequest:
    """Parse a response from an echo server or from the proxy itself."""
    named = {name.lower(): value for name, value in answer.items()}
    kept = tuple(sorted((name, value) for name, value in named.items() if name not in _NOT_COMPARED_IN_ANSWERS))
    try:
        received = json.loads(content)
        headers = dict(received["headers"])
        shown = sorted((name, value) for name, value in headers.items() if name not in {*_NOT_COMPARED, "host"})
        return ObservedRequest(
            status,
            received["replica"],
            received["method"],
            received["path"],
            headers.get("host", ""),
            tuple(shown),
            received["body"],
            kept,
        )
    except (ValueError, KeyError, TypeError):
        text = content.decode("utf-8", "replace").strip()
        return ObservedRequest(status, answer=kept, text="" if "<html" in text.lower() else text)


def refused(item: ObservedRequest) -> bool:
    """Whether a request without credentials was rejected."""
    return not item.replica and item.status in _REFUSALS


def without_key(before: ObservedRequest, after: ObservedRequest) -> Iterator[str]:
    """Yield a difference if only one of the two proxies accepted a request without credentials."""
    if not (refused(before) and refused(after)):
        yield f"status without a key {before.status} → {after.status}"


def differences(fleet: Mapping[str, Any], before: ObservedRequest, after: ObservedRequest) -> Iterator[str]:
    """Yield the differences between the two results."""
    if before.status != after.status:
        yield f"status {before.status} → {after.status}"
    if bool(before.replica) != bool(after.replica) or (before.replica and not _same_pool(fleet, before, after)):
        yield f"replica {before.replica or 'none'} → {after.replica or 'none'}"
        return
    if before.status == after.status:
        named = {str(pool.get("affinity", {}).get("header", "")) for pool in fleet["pools"].values()}
        ignored = frozenset(named) if before.replica else _OWN_ANSWERS
        yield from _of_headers("response ", before.answer, after.answer, ignored=ignored)
    if not before.replica:
        if before.text and before.text != after.text:
            yield "response body"
        return
    if not _in_one_pool(fleet, before, after):
        return
    for name in ("method", "path", "host", "body"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            yield f"{name} {one!r} → {other!r}"
    yield from _of_headers("", before.headers, after.headers, more=_forwarded(fleet), unequal=_unequal(fleet))


def _of_headers(
    where: str,
    before: _Headers,
    after: _Headers,
    *,
    ignored: frozenset[str] = frozenset(),
    more: frozenset[str] = frozenset(),
    unequal: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """Yield lost and added headers.

    Headers in `more` are allowed to be added. Headers in `unequal` are allowed to have a different value.
    """
    old, new = dict(before), dict(after)
    lost = [name for name in old if name not in new or (new[name] != old[name] and name not in unequal)]
    lost = [name for name in lost if name not in ignored]
    added = [name for name in new if name not in {*old, *ignored, *more}]
    if lost:
        yield f"{where}headers lost: {', '.join(lost)}"
    if added:
        yield f"{where}headers added: {', '.join(added)}"


def _forwarded(fleet: Mapping[str, Any]) -> frozenset[str]:
    """Return the headers that listeners use to forward the client's address on all their routes."""
    addressed = [item.get("client_address", {}) for item in fleet["listeners"].values()]
    return frozenset(name for item in addressed for name in item.get("forward", []))


def _unequal(fleet: Mapping[str, Any]) -> frozenset[str]:
    """Return the headers whose values always differ, which are the request ID and secrets."""
    texts = [route.get("headers", {}).get("request", {}).get("set", {}) for route in fleet["routes"].values()]
    ids = {name for each in texts for name, text in each.items() if "{request_id}" in text}
    return frozenset(ids.union(*(pool.get("upstream", {}).get("headers", {}) for pool in fleet["pools"].values())))


def _in_one_pool(fleet: Mapping[str, Any], before: ObservedRequest, after: ObservedRequest) -> bool:
    return any({before.replica, after.replica} <= set(addresses(pool)) for pool in fleet["pools"].values())


def _same_pool(fleet: Mapping[str, Any], before: ObservedRequest, after: ObservedRequest) -> bool:
    """Return whether both replicas are in the same pool, or in a split in which each proxy picks a pool at random."""
    splits = [
        set().union(*(set(addresses(fleet["pools"][name])) for name in route["split"]))
        for route in fleet["routes"].values()
        if "split" in route
    ]
    return _in_one_pool(fleet, before, after) or any({before.replica, after.replica} <= split for split in splits)


def services(fleet: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the addresses of external authorization services, each with the headers that replicas receive from it."""
    accepted = dict[str, list[str]]()
    for route in fleet["routes"].values():
        external = route.get("auth", {}).get("external")
        if external is not None:
            headers = accepted.setdefault(urlsplit(external["url"]).netloc, [])
            headers += [name for name in external.get("accept", []) if name not in headers]
    return accepted
