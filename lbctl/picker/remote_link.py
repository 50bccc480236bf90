"""The link of a picker on another machine, which subscribes to the tables through the HTTP API of `lbctl serve`.

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
"""Connection timeout, and timeout without any data, both in seconds. The control plane sends a byte at least every 15
seconds."""
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
_REPORT_TTL = 3.0
"""Seconds after the end of a connection after which the last reports of engines are out of date."""
_KEY_TIMEOUT = 2.0
"""Seconds that a starting picker waits for its key before it begins to listen."""
_DATA = b"data: "
_FORBIDDEN, _MAX_REASON = 403, 4096
"""Response status for a token without the required role, and maximum length of the reason in bytes."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The control plane from which a picker receives its tables."""

    url: str
    """URL of the control plane's API."""
    token: Callable[[], str]
    """Returns the token for the API; if it is empty, no token is sent."""
    ca: str | None = None
    """Path of the CA bundle used to verify the certificate; None for the system CAs."""


def run(
    places: PickerEndpoints, control_plane: ControlPlane, memory: Path | None = None, pool: str | None = None
) -> int:
    """Run a picker with tables from this control plane until a signal ends it. Return its exit code.

    `memory` is the directory for the affinity memory; None if the memory is not saved. `pool` is the only pool to
    serve; None to serve all pools.
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
    """The CA bundle is not usable. The message states the reason."""


class RemoteLink:
    """Subscription to a control plane. It reconnects when the stream ends."""

    def __init__(self, control_plane: ControlPlane, own: str, address: str) -> None:
        """`own` and `address` are the ID and address under which other pickers know this picker.

        Without a token, or if the token does not allow joining, it only receives the tables. Raises
        UnusableAuthorityError.
        """
        self._query = {"id": own, "address": address}
        self._control_plane = control_plane
        self._has_warned = False
        try:
            self._tls = ssl.create_default_context(cafile=control_plane.ca) if control_plane.ca else None
        except OSError as error:
            raise UnusableAuthorityError(f"--tls-ca: {control_plane.ca}: {reason_of(error)}") from None

    async def key(self) -> str:
        """Return the picker key; empty if the control plane does not send one immediately."""
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
        try:
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
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _joined_lines(self, service: PickService) -> AsyncIterator[bytes]:
        """Yield the lines of one stream, limited to tables if the token does not allow joining.

        Raises aiohttp's exceptions and _RefusedError.
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
        service.joined()  # no list of other pickers will arrive
        async for line in self._lines({}):
            yield line

    async def _lines(self, query: Mapping[str, str], *, is_logged: bool = True) -> AsyncIterator[bytes]:
        """Yield the lines of one stream. Raises aiohttp's exceptions and _RefusedError.

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
    """The control plane has rejected the request for tables. The message states the reason."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"it returned status {status}: {reason}" if reason else f"it returned status {status}")


async def _reason_of(response: aiohttp.ClientResponse) -> str:
    """Return the reason given in a response from the control plane; empty if there is none."""
    try:
        reason = json.loads(await response.content.read(_MAX_REASON))["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return reason if isinstance(reason, str) and reason.isprintable() else ""
