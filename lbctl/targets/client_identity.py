"""A client's identity: the headers that could claim it, its networks, and the challenge in a 401 response.

Some request headers would let a client claim to be a proxy. Such headers are removed from untrusted peers' requests.
Some of them identify the client, or state how and for which host its request arrived. Others give a method or path that
differs from the one used to choose a route. A peer in `client_address.trusted` may send them; without `client_address`,
no peer may send them. In names, `_` is treated as `-`, because many servers (CGI, WSGI) do not distinguish them.

A client with an IPv4 address may use an IPv4-mapped IPv6 address. Such an address is treated as IPv4 everywhere: it is
contained in IPv4 networks but not in IPv6 networks, including `::/0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Network, ip_network

from lbctl.ir.routes import Auth, Route
from lbctl.targets.response_bodies import error_body

FORWARDED_PREFIX = "x-forwarded-"
"""All headers with this prefix are removed. nginx removes headers only by their full name; these names are in
`CLAIMS`."""
CLAIMS = (
    "cf-connecting-ip",
    "forwarded",
    "proxy",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-forwarded-by",
    "x-forwarded-client-cert",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
    "x-ssl-client-cert",
)
"""Further headers of this kind, in addition to `x-forwarded-for` and `x-forwarded-proto`, which every proxy sets
itself."""
INTERNAL_PREFIX = "x-lbctl-internal-"
"""Prefix of headers that are written and read only by lbctl's own filters. Headers with this prefix are removed from
every request."""
INTERNAL = tuple(f"{INTERNAL_PREFIX}{name}" for name in ("anyone", "tenant", "token"))
HOP_BY_HOP = ("http2-settings", "keep-alive", "proxy-connection")
"""Headers that apply only to the connection between the client and the proxy. These headers are removed from every
request.

`upgrade` is also removed unless it requests WebSocket. `te` is kept, because gRPC needs it.
"""
_ESCAPED = re.compile(r"\[-_\]|\\.")
"""One character of a header name in a pattern. Patterns write `-` and `_` as a character class."""
_FRAMING = ("content_length", "transfer_encoding")
"""Headers that some servers would read as framing, because they treat `_` as `-`. These headers are removed from every
request."""
_MAX_GROUP_CHARACTERS = 64
"""Maximum total length, in characters, of the names in one of the `claim_groups`.

Envoy rejects expressions of more than 100 instructions unless its bootstrap sets another limit. A character takes one
instruction, or two as `[-_]`.
"""
REFUSED_ADDRESS_MESSAGE = "requests from this client address are not allowed"
"""Message of the 403."""
REFUSED_ADDRESS_KIND = "forbidden"
"""Type of the 403."""
REFUSED_ADDRESS_BODY = error_body(REFUSED_ADDRESS_MESSAGE, REFUSED_ADDRESS_KIND)
"""Body of the 403."""
_MAPPED = IPv6Network("::ffff:0:0/96")
BEARER = "Bearer"


def claim_groups(names: Iterable[str] = ()) -> list[str]:
    """Return `claims` as several expressions, each short enough for an Envoy with any bootstrap."""
    return groups([FORWARDED_PREFIX, *_whole_names(names)])


def groups(names: Iterable[str]) -> list[str]:
    """Return expressions for the full names of these headers, each short enough for an Envoy with any bootstrap."""
    return list(_alternatives(map(_name_pattern, names)))


def _alternatives(patterns: Iterable[str]) -> Iterator[str]:
    """Join patterns for full names into expressions, each short enough for an Envoy with any bootstrap."""
    group: list[str] = []
    size = 0
    for pattern in patterns:
        length = len(_ESCAPED.sub("-", pattern))
        if group and size + length > _MAX_GROUP_CHARACTERS:
            yield f"^(?:{'|'.join(group)})$"
            group, size = [], 0
        group.append(pattern)
        size += length
    if group:
        yield f"^(?:{'|'.join(group)})$"


def forged_claims(names: Iterable[str] = ()) -> str:
    """Return the expressions of `claims` and `forgeries` combined into one, for a listener without trusted peers."""
    return forgeries({FORWARDED_PREFIX, *_whole_names(()), *names})


def claims(names: Iterable[str] = ()) -> str:
    """Return a regular expression that matches the full name of a header that only a trusted peer may send.

    `names` contains additional headers of this kind.
    """
    return f"^(?:{'|'.join(map(_name_pattern, (FORWARDED_PREFIX, *_whole_names(names))))})$"


def forgeries(names: Iterable[str] = ()) -> str:
    """Return a regular expression that matches the full name of a header that no client may send.

    `names` contains additional headers of this kind.
    """
    return (
        "^(?:"
        + "|".join((_name_pattern(INTERNAL_PREFIX), *_FRAMING, *map(_name_pattern, (*HOP_BY_HOP, *sorted(names)))))
        + ")$"
    )


def given(routes: Iterable[Route]) -> list[str]:
    """Return the headers that only authentication may pass to replicas. No client may send them on any listener."""
    auths = [route.auth for route in routes if route.auth is not None]
    tenants = {auth.forward_tenant.lower() for auth in auths if auth.forward_tenant}
    return sorted(tenants.union(*(auth.external.accept for auth in auths if auth.external is not None)))


def lookalikes(routes: Iterable[Route], other: Iterable[str] = ()) -> list[str]:
    """Return expressions for headers that a server may confuse with a header that a route uses, or with one in `other`.

    A route uses a header if it sets it, removes it, or reads a key from it. The confusable names differ only in `-` and
    `_`. The route itself modifies only the header with the exact name.
    """
    names = set(other)
    for route in routes:
        names.update(name for name, _ in route.request_headers.set)
        names.update(route.request_headers.remove)
        if route.auth is not None and route.auth.api_keys is not None:
            names.update(route.auth.api_keys.headers)
    return other_spellings(names)


def other_spellings(names: Iterable[str]) -> list[str]:
    """Return expressions for names that differ from one of these headers only in `-` and `_`."""
    return list(_alternatives(spelling for name in sorted(names) for spelling in _spellings(name)))


def _spellings(name: str) -> Iterator[str]:
    for index, char in enumerate(name):
        if char in "-_":
            flipped = "_" if char == "-" else "-"
            yield f"{re.escape(name[:index])}{flipped}{_name_pattern(name[index + 1 :])}"


def _whole_names(names: Iterable[str]) -> list[str]:
    return [name for name in sorted({*CLAIMS, *names}) if not name.startswith(FORWARDED_PREFIX)]


def _name_pattern(name: str) -> str:
    pattern = "".join("[-_]" if char in "-_" else re.escape(char) for char in name.lower())
    return f"{pattern}.*" if name in (FORWARDED_PREFIX, INTERNAL_PREFIX) else pattern


def unmapped_networks(networks: Iterable[str]) -> Iterator[str]:
    """Yield the networks. IPv6 networks do not include the IPv4-mapped addresses."""
    for item in networks:
        network = ip_network(item)
        if isinstance(network, IPv6Network) and network.supernet_of(_MAPPED):
            yield from map(str, sorted(network.address_exclude(_MAPPED)))
        else:
            yield item


def mapped_network(network: str) -> str | None:
    """Return the IPv4-mapped IPv6 network of an IPv4 network; None for an IPv6 network."""
    parsed = ip_network(network)
    return f"::ffff:{parsed.network_address}/{96 + parsed.prefixlen}" if parsed.version == 4 else None


def challenge(auth: Auth | None) -> str:
    """Return a route's challenge, which asks for a user and a password, or for a key or token.

    The challenge is empty if an external service sends its own challenge.
    """
    if auth is not None and auth.external is not None:
        return ""
    if auth is None or auth.api_keys is None or auth.api_keys.realm is None:
        return BEARER
    return f'Basic realm="{auth.api_keys.realm}", charset="UTF-8"'


def credential_headers(auth: Auth | None) -> list[str]:
    """Return the headers that carry the client's credentials and are removed before a replica gets the request."""
    if auth is None or auth.forward_credentials:
        return []
    if auth.external is not None:
        return ["authorization"]
    return sorted({*(auth.api_keys.headers if auth.api_keys else ()), *(["authorization"] if auth.jwt else [])})
