"""Maps the error message in an Envoy NACK to a position in the YAML.

Envoy does not report line numbers. Its message either identifies part of the rejected resource by index
(`VirtualHosts[0]… Routes[20]`) or quotes a name. Indexes and names are resolved against the resource as it was sent.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import symbol_database
from google.protobuf.message import Message

from lbctl.base.diagnostics import Path
from lbctl.xds.resource import EDS, RDS, Resource

_MAX_LENGTH = 1000
_STEP = re.compile(r"\b(\w+?)\[(\d+)\]")
_BROKEN = "Proto constraint validation failed ("
_DUMP = "goo.gle/debug"
"""Marks the start of a complete message that Envoy dumps."""
_CAUSE = re.compile(r"(\w+)ValidationError\.(\w+(?:\[[^\]]*\])?): ((?:(?! \| caused by).)*)$", re.DOTALL)
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")
_LARGE = re.compile(r"regex '(.*)' RE2 program size", re.DOTALL)
_MIN_QUOTED = 4
"""Minimum length, in characters, of quoted text to look up in the resource."""


def place(resource: Resource, message: str) -> Path:
    """Return the config path that the NACK message about `resource` refers to; replicas are identified by name."""
    _, broken, detail = message.rpartition(_BROKEN)
    position = detail if broken else message.partition(_DUMP)[0]
    return within(resource.type_url, message_of(resource), position) or resource.path


def short(message: str) -> str:
    """Shorten a NACK message for display.

    Message dumps are removed, because they can contain keys. If a rule is violated, only the last cause is kept.
    """
    _, broken, detail = message.rpartition(_BROKEN)
    before, dump, _ = message.partition(_DUMP)
    if broken:
        cause = _CAUSE.search(detail.strip().removesuffix(")"))
        shortened = f"{cause[1]}.{cause[2]}: {cause[3]}" if cause else detail
    elif dump:
        shortened = f"{before} a rule of the message is violated, but Envoy's error is cut off before it names the rule"
    else:
        shortened = message
    shortened = " ".join(shortened.split())
    return shortened if len(shortened) <= _MAX_LENGTH else f"{shortened[:_MAX_LENGTH]}…"


def message_of(resource: Resource) -> Message:
    """Decode the message in a resource."""
    kind = symbol_database.Default().GetSymbol(resource.type_url.rpartition("/")[2])
    message: Message = kind.FromString(resource.body)
    return message


def within(type_url: str, message: Any, text: str) -> Path:
    """Return the path of the route or replica that `text` refers to; an empty path if there is none."""
    steps = {name.replace("_", "").lower(): int(number) for name, number in _STEP.findall(text)}
    if type_url == RDS:
        return _route(message, steps, text)
    if type_url == EDS:
        return _replica(message, steps, text)
    return ()


def _route(table: Any, steps: dict[str, int], text: str) -> Path:
    names = {item.name for host in table.virtual_hosts for item in host.routes if item.name}
    host, number = steps.get("virtualhosts"), steps.get("routes")
    if host is not None and number is not None and host < len(table.virtual_hosts):
        routes = table.virtual_hosts[host].routes
        name = routes[number].name if number < len(routes) else ""
    else:
        name = next((item for item in _QUOTED.findall(text) if item in names), "") or _route_quoting(table, text)
    return ("routes", name) if name else ()


def _route_quoting(table: Any, message: str) -> str:
    """Return the route that contains the regular expression quoted by Envoy.

    The expression is either invalid or compiles to a program that is too large.
    """
    large = _LARGE.search(message)
    text = (large[1] if large else message.strip().rpartition(": ")[2]).encode()
    if len(text) < _MIN_QUOTED:
        return ""
    routes = (item for host in table.virtual_hosts for item in host.routes)
    return next((item.name for item in routes if item.name and text in item.match.SerializeToString()), "")


def _replica(members: Any, steps: dict[str, int], text: str) -> Path:
    group, number = steps.get("endpoints"), steps.get("lbendpoints")
    pool = _pool(members)
    if not pool:
        return ()
    if group is not None and number is not None and group < len(members.endpoints):
        endpoints = members.endpoints[group].lb_endpoints
        name = endpoints[number].endpoint.hostname if number < len(endpoints) else ""
    else:
        names = {_address(item): item.endpoint.hostname for part in members.endpoints for item in part.lb_endpoints}
        name = next((names[item] for item in re.findall(r"[\w.:\[\]]+", text) if item in names), "")
    return ("pools", pool, "replicas", name) if name else ("pools", pool)


def _pool(members: Any) -> str:
    marks = (group.metadata.filter_metadata for group in members.endpoints)
    return next((str(item["lbctl"]["pool"]) for item in marks if "lbctl" in item), "")


def _address(item: Any) -> str:
    socket = item.endpoint.address.socket_address
    return str(socket.address)
