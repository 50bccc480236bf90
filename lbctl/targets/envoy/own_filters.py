"""The operator's own HTTP filters.

Each file contains one typed filter in YAML, in the format used in Envoy's documentation.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module

import yaml
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from google.protobuf.json_format import ParseDict, ParseError

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLines
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.own_lines import Misplaced, refusal

_KEYS = {"name", "typed_config", "is_optional", "disabled"}
_TYPE = re.compile(r"type\.googleapis\.com/((?:envoy|xds|udpa)\.[A-Za-z0-9_.]+)\.[A-Za-z0-9_]+")
_UNKNOWN = re.compile(r"type_url: (\S+?)\.?(?:\s|$)")
_MAX_TYPES = 32
"""Maximum number of message types in a filter."""
_TERMINAL = "envoy.extensions.filters.http.router.v3.Router"
_SHAPE = '{name: …, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.…}}'


class NoFilterError(ValueError):
    """The text is not a typed HTTP filter."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line
        """Line number in the file, starting at 1."""


def filters(proxy: Proxy) -> list[HttpFilter]:
    """Return a proxy's own filters, in fleet order."""
    return [parse(item.text) for item in proxy.own_lines("http_filters")]


def misplaced(item: OwnLines) -> Iterator[Misplaced]:
    """Yield the reasons why the text is not a typed filter."""
    try:
        parse(item.text)
    except NoFilterError as error:
        yield Misplaced(error.line, str(error), _SHAPE)


def refusals(view: View) -> Iterator[Diagnostic]:
    """Yield the errors that make lbctl reject a fleet with this proxy."""
    proxy = view.proxy
    for item in proxy.own_lines("http_filters"):
        yield from (refusal(proxy, item, each) for each in misplaced(item))


def parse(text: str) -> HttpFilter:
    """Parse one filter. Raises NoFilterError."""
    document = _document(text)
    config = document.get("typed_config") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(config, dict) or not isinstance(config.get("@type"), str):
        raise NoFilterError("this is not a typed HTTP filter")
    others = sorted(map(str, document.keys() - _KEYS))
    if others:
        raise NoFilterError(f"an HTTP filter cannot have the key {others[0]}")
    if config["@type"].endswith(f"/{_TERMINAL}"):
        raise NoFilterError("lbctl adds the router itself, as the last filter")
    parsed = _message(document)
    if not parsed.name:
        raise NoFilterError("the filter has no name")
    return parsed


def _document(text: str) -> object:
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise NoFilterError(f"invalid YAML: {error.problem}", line) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NoFilterError(f"no YAML: {error}") from None


def _message(document: dict[str, object]) -> HttpFilter:
    """Parse the document, and import each message type in it."""
    for _ in range(_MAX_TYPES):
        try:
            message = HttpFilter()
            ParseDict(document, message)
            return message
        except (ParseError, TypeError, ValueError, RecursionError) as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or not _import(unknown[1]):
                raise NoFilterError(" ".join(str(error).split())) from None
    raise NoFilterError("this filter has too many types")


def _import(type_url: str) -> bool:
    """Import the messages of the type's package. Return whether the package contains any messages."""
    match = _TYPE.fullmatch(type_url)
    if match is None:
        return False
    try:
        package = import_module(match[1])
    except ImportError:
        return False
    modules = [item.name for item in pkgutil.iter_modules(package.__path__) if item.name.endswith("_pb2")]
    for name in modules:
        import_module(f"{match[1]}.{name}")
    return bool(modules)
