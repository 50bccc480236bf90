"""What an Envoy's words about a resource mean in the YAML.

Envoy names no lines. Its words count positions within the message that it refuses (`VirtualHosts[0]… Routes[20]`), or
put a name in quotes. Both lead back: the message is the one that was sent.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import symbol_database
from google.protobuf.message import Message

from lbctl.base.diagnostics import Path
from lbctl.xds.resource import EDS, RDS, Resource

_LONGEST = 1000
_STEP = re.compile(r"\b(\w+?)\[(\d+)\]")
_BROKEN = "Proto constraint validation failed ("
_DUMP = "goo.gle/debug"
"""How a message begins that Envoy prints whole."""
_CAUSE = re.compile(r"(\w+)ValidationError\.(\w+(?:\[[^\]]*\])?): ((?:(?! \| caused by).)*)$", re.DOTALL)
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")
_LARGE = re.compile(r"regex '(.*)' RE2 program size", re.DOTALL)
_TELLING = 4
"""Characters from which on a text in Envoy's words is looked for in what was sent."""


def place(resource: Resource, words: str) -> Path:
    """The value of the fleet that `words` about `resource` are about; replicas go by their names."""
    _, broken, way = words.rpartition(_BROKEN)
    told = way if broken else words.partition(_DUMP)[0]
    return within(resource.type_url, message_of(resource), told) or resource.path


def short(words: str) -> str:
    """Never what Envoy prints of a message, in which keys may stand; of a broken rule the last cause alone."""
    _, broken, way = words.rpartition(_BROKEN)
    before, dump, _ = words.partition(_DUMP)
    if broken:
        cause = _CAUSE.search(way.strip().removesuffix(")"))
        told = f"{cause[1]}.{cause[2]}: {cause[3]}" if cause else way
    elif dump:
        told = f"{before} a rule of the message is broken, and Envoy's words end before it says which"
    else:
        told = words
    told = " ".join(told.split())
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…"


def message_of(resource: Resource) -> Message:
    kind = symbol_database.Default().GetSymbol(resource.type_url.rpartition("/")[2])
    message: Message = kind.FromString(resource.body)
    return message


def within(type_url: str, message: Any, words: str) -> Path:
    """Of one of the things that a message holds many of: a route of a table, a replica of a pool. Else empty."""
    steps = {name.replace("_", "").lower(): int(number) for name, number in _STEP.findall(words)}
    if type_url == RDS:
        return _route(message, steps, words)
    if type_url == EDS:
        return _replica(message, steps, words)
    return ()


def _route(table: Any, steps: dict[str, int], words: str) -> Path:
    names = {item.name for host in table.virtual_hosts for item in host.routes if item.name}
    host, number = steps.get("virtualhosts"), steps.get("routes")
    if host is not None and number is not None and host < len(table.virtual_hosts):
        routes = table.virtual_hosts[host].routes
        name = routes[number].name if number < len(routes) else ""
    else:
        name = next((item for item in _QUOTED.findall(words) if item in names), "") or _holder(table, words)
    return ("routes", name) if name else ()


def _holder(table: Any, words: str) -> str:
    """The route with the regular expression that is too large, or that cannot be read: with this Envoy's words end."""
    large = _LARGE.search(words)
    text = (large[1] if large else words.strip().rpartition(": ")[2]).encode()
    if len(text) < _TELLING:
        return ""
    routes = (item for host in table.virtual_hosts for item in host.routes)
    return next((item.name for item in routes if item.name and text in item.match.SerializeToString()), "")


def _replica(members: Any, steps: dict[str, int], words: str) -> Path:
    group, number = steps.get("endpoints"), steps.get("lbendpoints")
    pool = _pool(members)
    if not pool:
        return ()
    if group is not None and number is not None and group < len(members.endpoints):
        found = members.endpoints[group].lb_endpoints
        name = found[number].endpoint.hostname if number < len(found) else ""
    else:
        told = {_address(item): item.endpoint.hostname for part in members.endpoints for item in part.lb_endpoints}
        name = next((told[item] for item in re.findall(r"[\w.:\[\]]+", words) if item in told), "")
    return ("pools", pool, "replicas", name) if name else ("pools", pool)


def _pool(members: Any) -> str:
    marks = (group.metadata.filter_metadata for group in members.endpoints)
    return next((str(item["lbctl"]["pool"]) for item in marks if "lbctl" in item), "")


def _address(item: Any) -> str:
    socket = item.endpoint.address.socket_address
    return str(socket.address)
