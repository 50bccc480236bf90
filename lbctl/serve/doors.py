"""Where the control plane listens: the API from the start on, the proxies' port once there is a fleet to answer with.

What it listens on is chosen once. A fleet that says otherwise later is told of (`restart_needed`), and certificates are
taken anew as they change. A door that would be open to strangers stays shut, and that ends the process.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

from lbctl.ir.proxies import Control
from lbctl.model.fleet import Source
from lbctl.serve import binds, log, report
from lbctl.serve.api import Access, Api, Serving
from lbctl.serve.settings import Options, Settings, make_token, settings
from lbctl.xds.cache import Edition
from lbctl.xds.credentials import CredentialsError
from lbctl.xds.ledger import Ledger, Observer
from lbctl.xds.server import BindError, Server

_GRACE = 6.0
"""Seconds over which the proxies' streams are ended."""


class CannotListenError(Exception):
    """The log has said why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Addresses as text, with the port that the system chose where 0 was asked for."""

    api: str | None = None
    xds: str | None = None


class Doors:
    """`serving` is what the API shows; `ledger` and `observer` are told what the streams do."""

    def __init__(self, options: Options, ledger: Ledger, observer: Observer) -> None:
        self.opened = Opened()
        self.settings: Settings | None = None
        self._options = options
        self._ledger = ledger
        self._observer = observer
        self._api: Api | None = None
        self._api_tls: ssl.SSLContext | None = None
        self._server: Server | None = None

    async def open_api(self, source: Source | None, serving: Serving, *, own_token: bool) -> None:
        """`source`: what can be read of the fleet. `own_token`: make one where there is none. CannotListenError."""
        chosen = settings(self._options, source)
        if own_token and chosen.token.parent == chosen.state:
            _make_token(chosen)
        self._check(chosen, "api")
        self.settings = chosen
        tls = chosen.control.api_tls
        try:
            self._api_tls = await asyncio.to_thread(_context, tls.certificate, tls.key) if tls else None
            api = Api(serving, Access(chosen.control.api_bind, chosen.token, self._api_tls))
            port = await api.start()
        except OSError as error:
            hint = "; a dry run beside another serve needs an --api-bind of its own" if self._options.dry_run else ""
            raise _refused(f"the API cannot listen on {chosen.control.api_bind}: {error}{hint}") from None
        self._api = api
        address = str(_with_port(chosen.control, "api_bind", port).api_bind)
        self.opened = replace(self.opened, api=address)
        log.event("the API listens", api=f"{'https' if tls else 'http'}://{address}", token=chosen.token)

    async def open_xds(self, source: Source, earlier: Edition | None) -> Callable[[Edition], None]:
        """What publishes to the proxies; `earlier` is what they may still have. CannotListenError."""
        chosen = self._with_the_api_as_it_is(settings(self._options, source))
        self._check(chosen, "xds")
        self.settings = chosen
        control = chosen.control
        server = Server(self._ledger, self._observer, bind=control.xds_bind, tls=control.xds_tls)
        if earlier is not None:
            server.recall(earlier)
        try:
            port = await server.start()
        except (BindError, CredentialsError) as error:
            raise _refused(f"xDS: {error}") from None
        self._server = server
        address = str(_with_port(control, "xds_bind", port).xds_bind)
        self.opened = replace(self.opened, xds=address)
        security = "none" if control.xds_tls is None else "mtls" if control.xds_tls.client_ca else "tls"
        log.event("proxies are served", xds=address, security=security, state=chosen.state)
        return server.publish

    def offer_again(self) -> int:
        """What proxies have refused, once more; how many resources that are, of every node."""
        return self._server.offer_again() if self._server else 0

    def renew(self) -> None:
        """Reads the own certificates again: for connections from now on; those that stand keep theirs."""
        problem = self._server.check_certificate() if self._server else ""
        tls = self.settings.control.api_tls if self.settings else None
        if self._api_tls is not None and tls is not None:
            try:
                _context(tls.certificate, tls.key)
                self._api_tls.load_cert_chain(tls.certificate, tls.key)
            except OSError as error:
                problem = problem or f"{tls.certificate}: {error}"
        if problem:
            log.warn("a certificate of our own cannot be used; the one before stays", reason=problem)

    def restart_needed(self, source: Source) -> list[str]:
        """The keys of `control` that this fleet has otherwise than this process."""
        if self.settings is None:
            return []
        return report.restart_needed(self.settings.control, settings(self._options, source).control)

    async def close(self) -> None:
        """The proxies' streams first; they go on with what they have."""
        if self._server is not None:
            await self._server.stop(_GRACE)
        if self._api is not None:
            await self._api.stop()

    def _with_the_api_as_it_is(self, chosen: Settings) -> Settings:
        if self.settings is None:
            return chosen
        here = self.settings.control
        control = replace(
            chosen.control, api_bind=here.api_bind, api_tls=here.api_tls, api_token_file=here.api_token_file,
            state=here.state,
        )  # fmt: skip
        return replace(chosen, control=control, token=self.settings.token, state=self.settings.state)

    def _check(self, chosen: Settings, door: str) -> None:
        found = list(binds.problems(chosen.control, chosen.token, self._options.insecure))
        mine = [item for item in found if item.path[1] == door]
        if mine:
            log.findings(mine)
            raise CannotListenError


def _refused(words: str) -> CannotListenError:
    log.error(words)
    return CannotListenError()


def _make_token(chosen: Settings) -> None:
    try:
        if make_token(chosen.token):
            log.event("a token for the API was made", file=chosen.token)
    except OSError as error:
        log.warn("a token for the API could not be made", file=chosen.token, reason=error.strerror)


def _with_port(control: Control, name: str, port: int) -> Control:
    return replace(control, **{name: replace(getattr(control, name), port=port)})


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
