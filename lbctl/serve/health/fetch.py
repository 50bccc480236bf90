"""A single health check of a replica, as defined by the pool's active check: one connection, one timeout, one result.

A redirect is treated as a wrong status. Every exception is treated as a failed check, so that no response can stop the
checks of its replica. If this machine has run out of file descriptors or ports, the check has no result.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yarl

from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_ip
from lbctl.control.check_thresholds import CheckResult
from lbctl.ir.address import Address
from lbctl.ir.pools import ActiveCheck, GrpcCheck, HttpCheck, Pool, PoolTls, Replica, TcpCheck
from lbctl.runtime.net import http_client
from lbctl.runtime.net.resolve import UnresolvedError, resolve
from lbctl.serve.health.agent_reasons import first_reasons
from lbctl.serve.health.http2 import BrokenAnswerError, Http2Response, send_request

Locate = Callable[[str], Path | None]
"""Returns the file on this machine for a path in the fleet, or None if there is none."""
MAX_BODY_BYTES = 65_536
"""Maximum number of bytes of the body searched for `body_contains`, as in Envoy."""
_LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
_SERVING = b"\x00\x00\x00\x00\x02\x08\x01"
"""The gRPC message HealthCheckResponse{status: SERVING}."""
_AGENT = "lbctl-check"
_BUFFER = 16 * 1024
"""Maximum number of unparsed bytes before reading from the connection is paused."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A health check that has been prepared for one replica."""

    check: ActiveCheck
    """The check's settings."""
    address: Address
    """The address to which the check connects."""
    h2: bool
    """Whether the check uses HTTP/2."""
    tls: ssl.SSLContext | None
    """The TLS context; None for plaintext connections."""
    name: str
    """Name that the replica's certificate must contain; also used as the Host header unless the check sets one."""
    key: tuple[str, str] | None = field(default=None, repr=False)
    """Name and value of the header that contains the replica's API key; None if the replica does not require one."""
    asks_agent: bool = False
    """Whether the check is answered by an agent, whose failure responses contain reasons."""

    @property
    def timeout(self) -> float:
        """Timeout for the entire check, in seconds."""
        return self.check.timeout / 1000


def probe_of(
    pool: Pool, check: ActiveCheck, replica: Replica, tls: ssl.SSLContext | None, key: tuple[str, str] | None = None
) -> HealthCheck:
    """Return the health check for one replica. `key`: name and value of a header required by the replica.

    A separate port uses HTTP/1.1 without TLS, like model servers' ports; otherwise, the pool's protocol is used.
    """
    address, port = replica.address, pool.check_port(replica)
    target = address if port is None or address.path else Address(address.host, port)
    name = (pool.tls.server_name if pool.tls else None) or address.host or "localhost"
    return HealthCheck(check, target, speaks_h2(pool, check), tls, name, key, pool.agent is not None)


def connection_probe(address: Address, timeout: int) -> HealthCheck:
    """Return a check that only opens a connection to an address; `timeout` is in milliseconds."""
    return HealthCheck(ActiveCheck(TcpCheck(), timeout=timeout), address, False, None, address.host or "localhost")


def speaks_h2(pool: Pool, check: ActiveCheck) -> bool:
    """Return whether the pool's check uses HTTP/2."""
    if pool.protocol == "http1":
        return False
    return isinstance(check.probe, GrpcCheck) or (isinstance(check.probe, HttpCheck) and check.port is None)


def tls_of(tls: PoolTls, h2: bool, locate: Locate) -> ssl.SSLContext:
    """Return the TLS context for the pool's checks. Raises OSError (including ssl.SSLError) if a file is not usable."""
    context = ssl.create_default_context(cafile=_file(tls.ca, locate) if tls.ca else None)
    if tls.ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        context.load_cert_chain(_file(tls.certificate, locate), _file(tls.key, locate) if tls.key else None)
    if h2:
        context.set_alpn_protocols(["h2"])
    return context


def _file(path: str, locate: Locate) -> Path:
    file = locate(path)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, "the file does not exist", path)
    return file


async def fetch(probe: HealthCheck, session: aiohttp.ClientSession) -> CheckResult | None:
    """Perform one check. Return None if the result does not reveal anything about the replica."""
    try:
        async with asyncio.timeout(probe.timeout):
            return CheckResult(await _problem(probe, session))
    except TimeoutError:
        return CheckResult(f"no response within {probe.timeout:g} s")
    except (BrokenAnswerError, UnresolvedError) as error:
        return CheckResult(str(error))
    except asyncio.IncompleteReadError:
        return CheckResult("it closed the connection without a response")
    except Exception as error:  # noqa: BLE001 -- whatever an answer causes, the replica has not passed
        return _failed(error)


async def _problem(probe: HealthCheck, session: aiohttp.ClientSession) -> str:
    """Perform the check, and return the problem with the response; empty if there is none."""
    settings = probe.check.probe
    if isinstance(settings, GrpcCheck) and probe.h2:
        return _grpc_problem(await _h2(probe, "POST", "/grpc.health.v1.Health/Check", settings))
    if not isinstance(settings, HttpCheck):
        async with _connected(probe):
            return ""
    if probe.h2:
        answer = await _h2(probe, "GET", settings.path, settings)
        return _mismatch(settings, answer.status, answer.body)
    if probe.address.path:
        async with http_client.session(unix=probe.address.path) as own:
            return await _http1(probe, settings, own)
    return await _http1(probe, settings, session)


async def _http1(probe: HealthCheck, settings: HttpCheck, session: aiohttp.ClientSession) -> str:
    headers = {"User-Agent": _AGENT, "Connection": "close", "Accept": "*/*"}
    if settings.host:
        headers["Host"] = settings.host
    headers |= dict([probe.key] if probe.key else [])
    async with session.get(
        _url(probe, settings.path), headers=headers, allow_redirects=False, ssl=probe.tls or True,
        server_hostname=probe.name if probe.tls else None,
    ) as response:  # fmt: skip
        body = bytearray()
        needs_body = settings.body_contains or (probe.asks_agent and response.status not in settings.statuses)
        while needs_body and len(body) < MAX_BODY_BYTES and (piece := await response.content.readany()):
            body += piece
        problem = _mismatch(settings, response.status, bytes(body))
        reasons = first_reasons(bytes(body)) if problem and probe.asks_agent else ""
        return f"{problem}: {reasons}" if reasons else problem


def _url(probe: HealthCheck, path: str) -> yarl.URL:
    authority = "localhost" if probe.address.path else str(probe.address)
    return yarl.URL(f"{'https' if probe.tls else 'http'}://{authority}{path}", encoded=True)


def _mismatch(settings: HttpCheck, status: int, body: bytes) -> str:
    if status not in settings.statuses:
        return f"status {status}"
    if settings.body_contains and settings.body_contains.encode() not in body[:MAX_BODY_BYTES]:
        return f"the body does not contain {settings.body_contains!r}"
    return ""


async def _h2(probe: HealthCheck, method: str, path: str, settings: HttpCheck | GrpcCheck) -> Http2Response:
    host = (settings.host if isinstance(settings, HttpCheck) else None) or (
        str(probe.address) if not probe.tls else probe.name
    )
    headers = [(":method", method), (":scheme", "https" if probe.tls else "http"), (":path", path)]
    headers += [(":authority", host), ("user-agent", _AGENT), *([probe.key] if probe.key else [])]
    body = None
    if isinstance(settings, GrpcCheck):
        headers += [("content-type", "application/grpc"), ("te", "trailers")]
        body = _health_request(settings.service)
    async with _connected(probe) as (reader, writer):
        return await send_request(reader, writer, headers, body)


def _health_request(service: str) -> bytes:
    """Encode the gRPC message HealthCheckRequest{service}; the name must be at most 16,383 bytes long."""
    encoded = service.encode()
    size = bytes((len(encoded),)) if len(encoded) < 0x80 else bytes((len(encoded) & 0x7F | 0x80, len(encoded) >> 7))
    message = b"\x0a" + size + encoded if encoded else b""
    return b"\x00" + len(message).to_bytes(4) + message


def _grpc_problem(answer: Http2Response) -> str:
    if answer.status != 200:
        return f"status {answer.status}"
    if answer.body.startswith(_SERVING):
        return ""
    return "the health service reports NOT_SERVING" if answer.body else "the health service returned no status"


@asynccontextmanager
async def _connected(probe: HealthCheck) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect, including the TLS handshake.

    On exit, the connection is aborted, because checks do not wait for an orderly close.
    """
    name = probe.name if probe.tls else None
    options: dict[str, Any] = {"limit": _BUFFER, "ssl": probe.tls, "server_hostname": name}
    if probe.address.path:
        reader, writer = await asyncio.open_unix_connection(probe.address.path, **options)
    else:
        reader, writer = await asyncio.open_connection(await _address(probe), probe.address.port, **options)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _address(probe: HealthCheck) -> str:
    host = probe.address.host
    return host if is_ip(host) else (await resolve(host, (), probe.timeout)).addresses[0]


def _failed(error: Exception) -> CheckResult | None:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno in _LOCAL_ERRORS:
        return None
    reason = reason_of(cause)
    return CheckResult(reason.lower() if isinstance(cause, ConnectionError) else reason)
