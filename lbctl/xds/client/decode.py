"""Decodes Envoy's messages using only envoy-data-plane, and finds their references.

The server encodes with xds-protos. This client does not use xds-protos, so that a bug in one library is not masked by
the same bug in the other. Importing this module takes a third of a second, so it is imported only by the commands that
read xDS.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast

import betterproto2
from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import ConfigSource
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import Rds
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import SdsSecretConfig
from envoy_data_plane.google.protobuf import Any as Packed
from envoy_data_plane.message_pool import default_message_pool

from lbctl.base.errors import reason_of
from lbctl.xds.resource import EDS, RDS, SDS

M = TypeVar("M", bound=Message)

_TYPE = re.compile(r"type\.googleapis\.com/((?:[a-z][a-z0-9_]*\.)+)[A-Z][A-Za-z0-9_.]*", re.ASCII)
_BROKEN = (ValueError, EOFError, TypeError, OverflowError, KeyError, AttributeError, struct.error, RecursionError)
"""Exceptions that betterproto raises for bytes that are not a valid message of the type."""


class DecodeError(Exception):
    """The bytes are not a message of that type, or the type is unknown. The message states the reason."""


def decode(type_url: str, body: bytes) -> Message:
    """Decode a message of the type named by the URL. Raises DecodeError."""
    kind = _class(type_url)
    if kind is None:
        raise DecodeError(f"{type_url} is not a known type")
    return parse(kind, body)


def parse(kind: type[M], body: bytes) -> M:
    """Decode a message of the given class. Raises DecodeError."""
    try:
        with _unwarned():
            return kind.parse(body)
    except _BROKEN as error:
        raise DecodeError(f"not a {kind.__name__}: {reason_of(error)}") from None


def _class(type_url: str) -> type[Message] | None:
    """Return the class for a type URL, importing its package on first use, because the API has hundreds of them."""
    kind = default_message_pool.url_to_type.get(type_url)
    package = _TYPE.fullmatch(type_url)
    if kind is None and package:
        try:
            with _unwarned():
                import_module(f"envoy_data_plane.{package.group(1)[:-1]}")
        except ModuleNotFoundError:
            return None
        kind = default_message_pool.url_to_type.get(type_url)
    return kind


@contextmanager
def _unwarned() -> Iterator[None]:
    """Suppress deprecation warnings, because the control plane, not this client, chooses which fields to set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def type_name(message: Message) -> str:
    """Return the full name, for example `envoy.config.cluster.v3.Cluster`; empty for map entries."""
    return default_message_pool.type_to_url.get(type(message), "").rpartition("/")[2]


def resource_name(message: Message) -> str:
    """Return the name that a client uses to subscribe to the resource."""
    if isinstance(message, ClusterLoadAssignment):
        return message.cluster_name
    return str(getattr(message, "name", ""))


def set_fields(message: Message) -> Iterator[tuple[str, object]]:
    """Yield (proto field name, value) for each field that was sent; protobuf omits plain fields with default values."""
    for field in dataclasses.fields(cast(Any, message)):
        value = getattr(message, field.name)
        if value is not None and (value or betterproto2.FieldMetadata.get(field).optional):
            yield field.name.rstrip("_"), value


def references(message: Message) -> Iterator[tuple[str, str]]:
    """Return (type, name) of each resource that this resource needs from the same stream: EDS, RDS and SDS."""
    for part in _within(message):
        if isinstance(part, Cluster):
            wanted = part.eds_cluster_config
            if part.type is ClusterDiscoveryType.EDS and wanted and _same_stream(wanted.eds_config):
                yield EDS, wanted.service_name or part.name
        elif isinstance(part, Rds) and _same_stream(part.config_source):
            yield RDS, part.route_config_name
        elif isinstance(part, SdsSecretConfig) and _same_stream(part.sds_config):
            yield SDS, part.name


def _same_stream(source: ConfigSource | None) -> bool:
    return source is not None and (source.ads is not None or source.self is not None)


def _within(message: Message) -> Iterator[Message]:
    """Yield the message and all messages inside it, including packed ones of a known type."""
    if isinstance(message, Packed):
        try:
            message = decode(message.type_url, message.value)
        except DecodeError:
            return
    yield message
    for _, value in set_fields(message):
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        for item in items:
            if isinstance(item, Message):
                yield from _within(item)
