"""The control plane's listeners: the API opens at startup, and the port for proxies once there is a fleet to serve.

The addresses are chosen once, at startup. If a later fleet changes them, this is reported (`restart_needed`).
Certificates are reloaded when they change. If an address would be exposed to untrusted clients, it is not bound and the
process exits: an xDS client gets the fleet including its keys, and a client that can write to the API can redirect the
fleet's traffic.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import Control
from lbctl.model.fleet import FleetSource
from lbctl.runtime import log
from lbctl.runtime.errors import CannotListenError
from lbctl.serve.api import status_rows
from lbctl.serve.api.authorization import ApiAccess, read_token
from lbctl.serve.api.interface import Serving
from lbctl.serve.api.server import ApiServer
from lbctl.serve.settings import Options, ServeSettings, make_token, remember_api, settings
from lbctl.xds.build.snapshot_cache import CachedSnapshot
from lbctl.xds.protocol.credentials import CredentialsError
from lbctl.xds.protocol.load_reports import LoadReceiver
from lbctl.xds.protocol.node_status import NodeStatus, StreamObserver
from lbctl.xds.protocol.private_socket import BindError
from lbctl.xds.protocol.request_logs import LatencyReceiver
from lbctl.xds.protocol.server import XdsServer

_SOCKET = "xds.sock"
"""Name of the file in the state directory."""
_EVERY_ADDRESS = ("0.0.0.0", "[::]")
_GRACE = 6.0
"""Time in seconds over which the proxies' streams are closed one after another."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The addresses of the open listeners, as text.

    If port 0 was configured, they contain the port assigned by the operating system.
    """

    api: str | None = None
    """The API's address; None if it is closed."""
    xds: str | None = None
    """The xDS endpoint's address; None if it is closed."""
    socket: str | None = None
    """The path of the Unix socket for proxies on this machine."""


class Endpoints:
    """Opens and closes the listeners. `nodes` and `observer` are called for events on the xDS streams."""

    def __init__(self, options: Options, nodes: NodeStatus, observer: StreamObserver) -> None:
        self.opened = Opened()
        self.settings: ServeSettings | None = None
        self._options = options
        self._nodes = nodes
        self._observer = observer
        self._api: ApiServer | None = None
        self._api_tls: ssl.SSLContext | None = None
        self._server: XdsServer | None = None

    async def open_api(self, source: FleetSource | None, serving: Serving, *, own_token: bool) -> None:
        """Bind and serve the API. Raises CannotListenError.

        `source` is the readable part of the fleet. With `own_token`, a token is created if none exists, and the API's
        address is saved for other lbctl commands.
        """
        chosen = settings(self._options, source)
        if own_token and chosen.token.parent == chosen.state:
            _make_token(chosen)
        self._check(chosen, "api")
        self._check(chosen, "logs")
        self.settings = chosen
        tls = chosen.control.api_tls
        try:
            self._api_tls = await asyncio.to_thread(_context, tls.certificate, tls.key) if tls else None
            api = ApiServer(serving, ApiAccess(chosen.control.api_bind, chosen.token, self._api_tls))
            port = await api.start()
        except OSError as error:
            hint = "; a dry run next to another serve needs its own --api-bind" if self._options.dry_run else ""
            raise _refused(f"the API cannot listen on {chosen.control.api_bind}: {reason_of(error)}{hint}") from None
        except BindError as error:
            raise _refused(f"the API: {error}") from None
        self._api = api
        address = str(_with_port(chosen.control, "api_bind", port).api_bind)
        self.opened = replace(self.opened, api=address)
        url = f"{'https' if tls else 'http'}://{address}"
        if own_token:
            _remember(chosen, "" if chosen.control.api_bind.path else url)
        log.event("the API listens", api=url, token=chosen.token)

    async def open_xds(
        self, source: FleetSource, earlier: CachedSnapshot | None, loads: LoadReceiver, latencies: LatencyReceiver,
        held: Callable[[], bool],
    ) -> Callable[[CachedSnapshot], None]:  # fmt: skip
        """Bind and serve xDS, and return the function that publishes to it. Raises CannotListenError.

        `earlier`: the snapshot that Envoys may still have from the previous process. `loads` and `latencies` receive
        the Envoys' reports. While `held` is true, new streams wait briefly for the next publication.
        """
        chosen = self._with_current_api(settings(self._options, source))
        self._check(chosen, "xds")
        self.settings = chosen
        control = chosen.control
        server = XdsServer(
            self._nodes, self._observer, bind=control.xds_bind, tls=control.xds_tls, socket=chosen.state / _SOCKET,
            secrets_in_clear=self._options.insecure, load_receiver=loads, latency_receiver=latencies, held=held,
        )  # fmt: skip
        if earlier is not None:
            server.recall(earlier)
        try:
            port = await server.start()
        except (BindError, CredentialsError) as error:
            raise _refused(f"xDS: {error}") from None
        self._server = server
        address = str(_with_port(control, "xds_bind", port).xds_bind)
        self.opened = replace(self.opened, xds=address, socket=server.socket or None)
        if server.socket_problem:
            log.findings([_no_socket(server.socket_problem)])
        security = "none" if control.xds_tls is None else "mtls" if control.xds_tls.client_ca else "tls"
        if control.xds_bind.path:
            security = "unix socket"
        log.event(
            "listening for proxies", xds=address, security=security, socket=server.socket or None, state=chosen.state
        )
        return server.publish

    @property
    def traffic_log_bind(self) -> Address | None:
        """Address at which the traffic log may be received; None in a dry run and before the API listens."""
        return None if self._options.dry_run or self.settings is None else self.settings.control.logs_bind

    def advertised(self, name: str) -> tuple[str, str]:
        """Return the API's URL and the xDS address for other machines to use; empty while closed.

        `name` replaces wildcard addresses.
        """
        scheme = "https" if self.settings and self.settings.control.api_tls else "http"
        api = _advertised(self.opened.api, name)
        return (f"{scheme}://{api}" if api else ""), _advertised(self.opened.xds, name)

    def retry_rejected(self) -> int:
        """Resend the resources that Envoys have rejected. Return their number across all nodes."""
        return self._server.retry_rejected() if self._server else 0

    def renew(self) -> None:
        """Reload the listeners' certificates. Open connections keep using the previous certificates."""
        problem = self._server.check_certificate() if self._server else ""
        tls = self.settings.control.api_tls if self.settings else None
        if self._api_tls is not None and tls is not None:
            try:
                _context(tls.certificate, tls.key)
                self._api_tls.load_cert_chain(tls.certificate, tls.key)
            except OSError as error:
                problem = problem or f"{tls.certificate}: {reason_of(error)}"
        if problem:
            log.warn("the new certificate cannot be used; the previous one stays in use", reason=problem)

    def restart_needed(self, source: FleetSource) -> tuple[str, ...]:
        """Return the keys in `control` that differ between this fleet and the start of the process."""
        if self.settings is None:
            return ()
        return status_rows.restart_needed(self.settings.control, settings(self._options, source).control)

    async def close(self) -> None:
        """Close the xDS streams, then the API. Proxies continue to run with their current configuration."""
        if self._server is not None:
            await self._server.stop(_GRACE)
        if self._api is not None:
            await self._api.stop()

    def _with_current_api(self, chosen: ServeSettings) -> ServeSettings:
        """Return the settings, but keep the current values of settings that cannot change at run time."""
        if self.settings is None:
            return chosen
        running = self.settings.control
        control = replace(
            chosen.control, api_bind=running.api_bind, api_tls=running.api_tls, api_token_file=running.api_token_file,
            state=running.state, store=running.store, member=running.member,
        )  # fmt: skip
        return replace(chosen, control=control, token=self.settings.token, state=self.settings.state)

    def _check(self, chosen: ServeSettings, listener: str) -> None:
        problems = exposed_addresses(chosen.control, chosen.token, self._options.insecure)
        own = [item for item in problems if item.path[1] == listener]
        if own:
            log.findings(own)
            raise CannotListenError


def exposed_addresses(control: Control, token: Path | None, insecure: bool) -> Iterator[Diagnostic]:
    """Yield LB510 for xDS, LB511 for the API and LB512 for the traffic log if untrusted clients could reach them.

    `control` includes the addresses from the command line; `token` is the API's token file.
    """
    tls = control.xds_tls
    if not control.xds_bind.on_loopback and not insecure and (tls is None or tls.client_ca is None):
        missing = "without TLS" if tls is None else "without client certificates"
        yield Diagnostic(
            "LB510",
            f"xDS on {control.xds_bind} {missing} would send the fleet and its keys to any client",
            path=("control", "xds", "bind"),
            hint="set certificate, key and client_ca in control.xds.tls, or use --insecure",
        )
    if not control.api_bind.on_loopback and (control.api_tls is None or not read_token(token)):
        missing = "without TLS" if control.api_tls is None else "without a token"
        yield Diagnostic(
            "LB511",
            f"the API on {control.api_bind} {missing} would be open to any client",
            path=("control", "api", "bind"),
            hint="set control.api.tls and control.api.token_file, or bind it to 127.0.0.1",
        )
    if not control.logs_bind.on_loopback:
        yield Diagnostic(
            "LB512",
            f"the traffic log on {control.logs_bind} would accept counts from any sender",
            path=("control", "logs", "bind"),
            hint="bind it to 127.0.0.1",
        )


def _no_socket(reason: str) -> Diagnostic:
    """Return LB528 if proxies on this machine can use only the TCP port."""
    return Diagnostic(
        "LB528",
        f"{reason}; over TCP, proxies on this machine receive keys only if they use client certificates",
        path=("control", "state"),
        severity="warning",
        hint="use a state directory with a shorter path, or a unix: path for control.xds.bind",
    )


def _refused(message: str) -> CannotListenError:
    log.error(message)
    return CannotListenError()


def _make_token(chosen: ServeSettings) -> None:
    try:
        if make_token(chosen.token):
            log.event("created an API token", file=chosen.token)
    except OSError as error:
        log.warn("cannot create an API token", file=chosen.token, reason=reason_of(error))


def _remember(chosen: ServeSettings, url: str) -> None:
    try:
        remember_api(chosen.state, url)
    except OSError as error:
        log.warn("cannot save the API's address", state=chosen.state, reason=reason_of(error))


def _advertised(address: str | None, name: str) -> str:
    if address is None or address.startswith("unix:"):
        return ""
    host, _, port = address.rpartition(":")
    return f"{name}:{port}" if host in _EVERY_ADDRESS else address


def _with_port(control: Control, name: str, port: int) -> Control:
    return replace(control, **{name: replace(getattr(control, name), port=port)})


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
