"""The link of a picker on another machine: it subscribes to the tables of `lbctl serve` through its HTTP API.

While the control plane is unreachable, the picker continues with its last tables. After a few seconds, it ignores the
queues and the KV usage in them. The picker still avoids replicas that fail in the meantime, because proxies report that
they cannot reach them. Pauses between attempts grow and have jitter.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from lbctl.base.errors import reason_of
from lbctl.picker import wire
from lbctl.picker.grpc_server import CannotBindError
from lbctl.picker.launch import use_seed
from lbctl.picker.process import PickerEndpoints, PickerProcess
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.service import PickService
from lbctl.runtime import log
from lbctl.runtime.descriptors import raise_limit
from lbctl.xds.protocol.allocator import return_large_pieces

_PATH = "/api/v1/picks/tables"
_CONNECT, _SILENT = 5.0, 45.0
"""Timeouts in seconds for connecting and for silence. The control plane sends a byte at least every 15 seconds."""
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
_REPORT_TTL = 3.0
"""Seconds after the end of a connection after which the last reports of engines are out of date."""
_KEY_TIMEOUT = 2.0
"""Seconds that a starting picker waits for its key before it listens."""
_DATA = b"data: "
_FORBIDDEN, _MAX_REASON = 403, 4096
"""Status of the response to a token without the required role, and the maximum length of its reason in bytes."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The control plane that a picker subscribes to for its tables."""

    url: str
    """URL of its API."""
    token: Callable[[], str]
    """Returns the token for its API; empty: no token is sent."""
    ca: str | None = None
    """Path of the CA bundle to verify its certificate; None: system CAs."""


def run(
    places: PickerEndpoints, control_plane: ControlPlane, memory: Path | None = None, pool: str | None = None
) -> int:
    """Run a picker with this control plane's tables until a signal ends it. Return its exit code.

    `memory`: the directory for its affinity memory; None: the memory is not saved. `pool`: the only pool to serve;
    None: all pools.
    """
    handler = log.start(sys.stderr)
    raise_limit()
    return_large_pieces()
    try:
        return asyncio.run(_run(places, control_plane, memory, pool))
    except (CannotBindError, UnusableAuthorityError) as error:
        log.error(str(error))
        return 1
    finally:
        log.stop(handler)


async def _run(places: PickerEndpoints, control_plane: ControlPlane, memory: Path | None, pool: str | None) -> int:
    own = secrets.token_hex(8)
    link = RemoteLink(control_plane, own, str(places.bind))
    use_seed(await link.key())
    return await PickerProcess(places, link.run, own, is_alone=True, memory=memory, pool=pool).run()


class UnusableAuthorityError(Exception):
    """The CA bundle cannot be used. The message gives the reason."""


class RemoteLink:
    """Subscription to one control plane. The subscription reconnects when the stream ends."""

    def __init__(self, control_plane: ControlPlane, own: str, address: str) -> None:
        """`own` and `address` are this picker's ID and address for the other pickers.

        If there is no token, or the token may not join, it only receives the tables. Raises UnusableAuthorityError.
        """
        self._query = {"id": own, "address": address}
        self._control_plane = control_plane
        self._has_warned = False
        try:
            self._tls = ssl.create_default_context(cafile=control_plane.ca) if control_plane.ca else None
        except OSError as error:
            raise UnusableAuthorityError(f"--tls-ca: {control_plane.ca}: {reason_of(error)}") from None

    async def key(self) -> str:
        """Return the picker key; empty if the control plane does not send one right away."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError, wire.WireError, _RefusedError):
            async with asyncio.timeout(_KEY_TIMEOUT):
                async for line in self._lines(self._query if self._control_plane.token() else {}, is_logged=False):
                    values = wire.parse(line)
                    if values["kind"] == "key":
                        return wire.key_of(values)
                    if values["kind"] != "begin":
                        break
        return ""

    async def run(self, follower: TableFollower, service: PickService) -> None:
        """Apply the lines of the control plane until the task is cancelled."""
        pause, expiry = _FIRST_PAUSE, None
        while True:
            try:
                async for line in self._joined_lines(service):
                    follower.apply(line)
                    if expiry is not None:
                        expiry.cancel()
                    pause, expiry = _FIRST_PAUSE, None
                reason = "the stream has ended"
            except (aiohttp.ClientError, OSError, TimeoutError, wire.WireError, _RefusedError) as error:
                reason = reason_of(error)
            if expiry is None:
                log.warn("no new tables; using the last ones", url=self._control_plane.url, why=reason)
                expiry = asyncio.get_running_loop().call_later(_REPORT_TTL, follower.forget_reports)
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(2 * pause, _MAX_PAUSE)

    async def _joined_lines(self, service: PickService) -> AsyncIterator[bytes]:
        """Yield the lines of one stream, limited to the tables if the token may not join.

        Raises the exceptions of aiohttp and _RefusedError.
        """
        try:
            if self._control_plane.token():
                async for line in self._lines(self._query):
                    yield line
                return
        except _RefusedError as error:
            if error.status != _FORBIDDEN:
                raise
            if not self._has_warned:
                log.warn(
                    "this picker does not exchange counts, and it answers requests without a key: "
                    "its token needs the `picker` role",
                    why=str(error),
                )
            self._has_warned = True
        service.joined()  # there will be no list of other pickers
        async for line in self._lines({}):
            yield line

    async def _lines(self, query: Mapping[str, str], *, is_logged: bool = True) -> AsyncIterator[bytes]:
        """Yield the lines of one stream. Raises the exceptions of aiohttp and _RefusedError.

        `is_logged`: whether the connection is logged.
        """
        place, token = self._control_plane, self._control_plane.token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENT)
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=wire.MAX_LINE_BYTES) as session,
            session.get(
                place.url.rstrip("/") + _PATH,
                params=query,
                headers=headers,
                ssl=self._tls or True,
                allow_redirects=False,
            ) as response,
        ):
            if response.status != 200:
                raise _RefusedError(response.status, await _reason_of(response))
            if is_logged:
                log.event("receiving tables from the control plane", url=place.url)
            async for text in response.content:
                if text.startswith(_DATA):
                    yield text.removeprefix(_DATA)


class _RefusedError(Exception):
    """The control plane rejects the request for tables. The message gives the reason."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"it returned status {status}: {reason}" if reason else f"it returned status {status}")


async def _reason_of(response: aiohttp.ClientResponse) -> str:
    """Return the reason in a response from the control plane; empty if it does not contain one."""
    try:
        reason = json.loads(await response.content.read(_MAX_REASON))["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return reason if isinstance(reason, str) and reason.isprintable() else ""
