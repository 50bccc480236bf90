"""A listener's settings."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.listeners import Listener, ListenerTls
from lbctl.ir.settings.format import Setting, duration, limit, nested, percent, size


def listener(listener: Listener) -> Iterator[Setting]:
    """Yield the listener's settings."""
    yield ("bind",), listener.bind
    if listener.tls:
        yield from nested("tls", _tls(listener.tls))
    yield ("http2",), listener.http2
    if listener.client_address:
        yield ("client_address", "trusted"), listener.client_address.trusted
        yield ("client_address", "header"), listener.client_address.header
        yield ("client_address", "forward"), listener.client_address.forward
    yield ("allow_from",), "any" if listener.allow_from is None else listener.allow_from
    yield ("deny_from",), listener.deny_from
    yield ("proxy_protocol",), listener.proxy_protocol
    yield ("max_connections",), limit(listener.max_connections)
    yield ("max_body",), "unlimited" if listener.max_body is None else size(listener.max_body)
    yield ("headers", "max_count"), listener.max_header_count
    yield ("headers", "max_bytes"), size(listener.max_header_bytes)
    yield ("inspect",), size(listener.inspect)
    yield ("timeouts", "request_headers"), duration(listener.request_headers_timeout)
    yield ("timeouts", "idle"), duration(listener.idle_timeout)
    yield ("access_log", "path"), listener.access_log.path or "the proxy's default path"
    yield ("access_log", "format"), listener.access_log.format
    if listener.tracing:
        yield ("tracing", "otlp"), listener.tracing.otlp
        yield ("tracing", "sample"), percent(listener.tracing.sample)
        yield ("tracing", "service"), listener.tracing.service
    yield ("request_id",), listener.request_id


def _tls(tls: ListenerTls) -> Iterator[Setting]:
    """Yield the TLS settings. The first certificate is the default, and all others are unordered."""
    first, *others = tls.certificates
    for index, certificate in enumerate(
        (first, *sorted(others, key=lambda certificate: (certificate.hosts, certificate.certificate)))
    ):
        yield ("certificates", index, "certificate"), certificate.certificate
        yield ("certificates", index, "key"), certificate.key
        yield ("certificates", index, "hosts"), certificate.hosts
    yield ("min_version",), tls.min_version
    if tls.client_ca:
        yield ("client_ca",), tls.client_ca
        yield ("client_certificate",), tls.client_certificate
        yield ("client_crl",), tls.client_crl or "none"
