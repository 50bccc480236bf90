"""For `--check`, replaces files, addresses and host names that exist only in production.

A CI pipeline has neither the certificates nor the addresses used in production. In the checked text only, missing files
are replaced by placeholders, listen addresses by sockets in a private directory, and host names by 127.0.0.1. The view
is changed and then rendered by the same target, so everything else is the same as in production.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.ir.file_paths import with_files
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View

Locate = Callable[[str], Path | None]
"""Maps a path in the fleet to the file on this machine, or to None if the file does not exist."""

_LOCAL_HOST = "127.0.0.1"
_MAX_NAMES = 5


def stand_in(view: View, prefix: Path, locate: Locate, *, keep_addresses: bool = False) -> View:
    """Return the view with placeholders, which are written to the private directory `prefix`.

    The path must be short enough for a socket. If `keep_addresses` is set, the listeners keep their addresses.
    """
    files = _Files(view, prefix, locate)
    local = replace(
        view,
        proxy=replace(
            view.proxy,
            config=_config(view.proxy, prefix),
            user=None,
            group=None,
            chroot=None,
            metrics=_metrics(view, prefix),
        ),
        listeners=tuple(
            _listener(item, index, prefix, keep_address=keep_addresses) for index, item in enumerate(view.listeners)
        ),
        pools={name: _pool(item) for name, item in view.pools.items()},
    )
    return with_files(local, files.rename)


def replaced(view: View, locate: Locate, logs: Sequence[str]) -> list[str]:
    """Return descriptions of the items that `stand_in` replaces but the proxy needs at startup.

    The items are files, host names and `logs`, which are the paths of the access logs that the proxy opens.
    """
    files: set[str] = set()

    def collect(path: str, _: str) -> str:
        files.add(path)
        return path

    with_files(view, collect)
    missing = {path for path in files if locate(path) is None}
    missing |= {path for pair in _pairs(view) if missing.intersection(pair) for path in pair}
    hosts = {item.address.host for pool in view.pools.values() for item in pool.replicas if _is_name(item.address)}
    hosts |= {pool.discovery.name for pool in view.pools.values() if isinstance(pool.discovery, DnsDiscovery)}
    hosts |= {item.tracing.otlp.host for item in view.listeners if item.tracing and _is_name(item.tracing.otlp)}
    listing = (
        ("files that are not on this machine", missing),
        ("host names, which a proxy may resolve at startup", hosts),
        ("access logs, which it opens at startup", {path for path in logs if not path.startswith("/dev/")}),
    )
    return [f"{what} ({shortened(sorted(names))})" for what, names in listing if names]


def shortened(names: Sequence[str]) -> str:
    """Join up to five of the names, and count the rest."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _metrics(view: View, prefix: Path) -> Address | None:
    return view.proxy.metrics and Address(path=str(prefix / "metrics.sock"))


def _config(proxy: Proxy, prefix: Path) -> str | None:
    """Return the configuration path to use for the check.

    A fragment contains the absolute paths of the files next to it.
    """
    return str(prefix / posixpath.basename(proxy.config or "")) if proxy.is_fragment else None


def _listener(listener: Listener, index: int, prefix: Path, *, keep_address: bool) -> Listener:
    log = listener.access_log
    if log.path is not None and not log.path.startswith("/dev/"):
        log = replace(log, path=str(prefix / f"access{index}.log"))
    tracing = listener.tracing and replace(listener.tracing, otlp=_with_local_host(listener.tracing.otlp))
    bind = listener.bind if keep_address else Address(path=str(prefix / f"{index}.sock"))
    return replace(listener, bind=bind, access_log=log, tracing=tracing)


def _pool(pool: Pool) -> Pool:
    if isinstance(pool.discovery, DnsDiscovery):
        pool = replace(pool, discovery=replace(pool.discovery, name=_LOCAL_HOST))
    if not any(_is_name(item.address) for item in pool.replicas):
        return pool
    return replace(
        pool, replicas=tuple(replace(item, address=_with_local_host(item.address)) for item in pool.replicas)
    )


def _with_local_host(address: Address) -> Address:
    return replace(address, host=_LOCAL_HOST) if _is_name(address) else address


def _is_name(address: Address) -> bool:
    """Return whether the host is a name.

    Compiled IPv4 addresses consist only of digits and dots, and IPv6 addresses contain a colon.
    """
    return bool(address.host) and ":" not in address.host and not address.host.replace(".", "").isdigit()


class _Files:
    """Placeholders for missing files. A certificate and its key are replaced together, so that they match.

    A file with several uses, such as a PEM file for a certificate and its key, gets the content for each use.
    """

    def __init__(self, view: View, prefix: Path, locate: Locate) -> None:
        self._prefix = prefix
        self._locate = locate
        self._incomplete = {path for pair in _pairs(view) if not all(map(locate, pair)) for path in pair}
        self._contents: dict[str, list[str]] = {}

    def rename(self, path: str, kind: str) -> str:
        local = self._locate(path)
        if local is not None and path not in self._incomplete:
            return str(local.absolute())
        place = self._prefix / "files" / path.strip("/").replace("/", "__")
        place.parent.mkdir(parents=True, exist_ok=True)
        contents = self._contents.setdefault(path, [])
        if _CONTENT[kind] not in contents:
            contents.append(_CONTENT[kind])
            place.write_text("".join(contents))
        return str(place)


def _pairs(view: View) -> list[tuple[str, str]]:
    listeners = [
        (item.certificate, item.key)
        for listener in view.listeners
        if listener.tls is not None
        for item in listener.tls.certificates
    ]
    pools = [
        (pool.tls.certificate, pool.tls.key)
        for pool in view.pools.values()
        if pool.tls is not None and pool.tls.certificate is not None and pool.tls.key is not None
    ]
    return listeners + pools


STAND_IN_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkzCCATigAwIBAgIUVETOj2KDOhn2YDk57FYndM6iokwwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIc3RhbmQtaW4wIBcNMjYxMTIwMjA0NDQzWhgPMjEyNjEwMjcy
MDQ0NDNaMBMxETAPBgNVBAMMCHN0YW5kLWluMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEE+VLMQGxf7MicPyiTbCAUcS/XLmQELNwJShGSD3G0LYspHxgOAvo9BF2
ZlF+Va4wTIFAFcDVvEjGSd+KbANTaqNoMGYwHQYDVR0OBBYEFN2l1pjdzu5hqVHw
xll9wXtk8CbKMB8GA1UdIwQYMBaAFN2l1pjdzu5hqVHwxll9wXtk8CbKMA8GA1Ud
EwEB/wQFMAMBAf8wEwYDVR0RBAwwCoIIc3RhbmQtaW4wCgYIKoZIzj0EAwIDSQAw
RgIhAKLyMEw0A8ysdvwDYw6loDHF+QzCdAZB1ObhMIDweweuAiEA7taL5KpG0wgz
KmvDYCRqfPZWCaCizVWUTAhdmsyu1K0=
-----END CERTIFICATE-----
"""
STAND_IN_KEY = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIMslCC5YGQ6C1BYC8XkmH4zeVC+yS9Dfe0lopXKQ8ZpNoAoGCCqGSM49
AwEHoUQDQgAEE+VLMQGxf7MicPyiTbCAUcS/XLmQELNwJShGSD3G0LYspHxgOAvo
9BF2ZlF+Va4wTIFAFcDVvEjGSd+KbANTag==
-----END EC PRIVATE KEY-----
"""
_CRL = """\
-----BEGIN X509 CRL-----
MIGdMEQCAQEwCgYIKoZIzj0EAwIwEzERMA8GA1UEAwwIc3RhbmQtaW4XDTI2MTEy
MDIwNDQ0M1oYDzIxMjYxMDI3MjA0NDQzWjAKBggqhkjOPQQDAgNJADBGAiEA/7kM
1fCuW4Kk7Iuq+M97NIvdD8dVisKTCIvcE71tTHUCIQCMpEPMb/3c7SCMaFzoZ6qj
lmU9Ueysy1uxgOgpEHvyXg==
-----END X509 CRL-----
"""
_JWKS = """\
{"keys": [{"kty": "EC", "crv": "P-256",
  "x": "E-VLMQGxf7MicPyiTbCAUcS_XLmQELNwJShGSD3G0LY", "y": "LKR8YDgL6PQRdmZRflWuMEyBQBXA1bxIxknfimwDU2o"}]}
"""
"""These keys were generated for this purpose, are not valid for any name, and are public because they are in this
file."""

_CONTENT = {
    "certificate": STAND_IN_CERTIFICATE,
    "key": STAND_IN_KEY,
    "ca": STAND_IN_CERTIFICATE,
    "crl": _CRL,
    "api_keys": "",
    "jwks": _JWKS,
}
