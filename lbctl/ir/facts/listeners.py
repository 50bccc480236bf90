"""The facts of a listener."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.facts.words import Fact, most, percent, size, time, under
from lbctl.ir.listeners import Listener, ListenerTls


def listener(item: Listener) -> Iterator[Fact]:
    yield ("bind",), item.bind
    if item.tls:
        yield from under("tls", _tls(item.tls))
    yield ("http2",), item.http2
    if item.client_address:
        yield ("client_address", "trusted"), item.client_address.trusted
        yield ("client_address", "header"), item.client_address.header
    yield ("proxy_protocol",), item.proxy_protocol
    yield ("max_connections",), most(item.max_connections)
    yield ("max_body",), "unlimited" if item.max_body is None else size(item.max_body)
    yield ("inspect",), size(item.inspect)
    yield ("timeouts", "request_headers"), time(item.request_headers_timeout)
    yield ("timeouts", "idle"), time(item.idle_timeout)
    yield ("access_log", "path"), item.access_log.path
    yield ("access_log", "format"), item.access_log.format
    if item.tracing:
        yield ("tracing", "otlp"), item.tracing.otlp
        yield ("tracing", "sample"), percent(item.tracing.sample)
        yield ("tracing", "service"), item.tracing.service
    yield ("request_id",), item.request_id


def _tls(tls: ListenerTls) -> Iterator[Fact]:
    """The first certificate is the default; the others have no order."""
    first, *others = tls.certificates
    for place, item in enumerate((first, *sorted(others, key=lambda item: (item.hosts, item.certificate)))):
        yield ("certificates", place, "certificate"), item.certificate
        yield ("certificates", place, "key"), item.key
        yield ("certificates", place, "hosts"), item.hosts
    yield ("min_version",), tls.min_version
    if tls.client_ca:
        yield ("client_ca",), tls.client_ca
        yield ("client_certificate",), tls.client_certificate
