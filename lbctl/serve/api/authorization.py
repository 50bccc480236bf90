"""Authorizes requests: checks the Host and Origin headers, the token, and whether the token permits writes.

If this member is a follower, an authorized write is forwarded to the leader.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from lbctl.api import tokens
from lbctl.api.routes import ROUTES
from lbctl.api.tokens import ApiToken, Principal
from lbctl.base.hosts import is_served_host
from lbctl.compile.files import read_regular
from lbctl.ir.address import Address
from lbctl.runtime.net.connections import Handler
from lbctl.serve.api.forwarding import LeaderAddress, NoLeaderError, forward
from lbctl.serve.api.interface import Serving
from lbctl.serve.api.responses import MAX_BODY_BYTES, RefusedRequest, read_bytes
from lbctl.serve.ha.requests import SCHEME, MemberRequest, NotSignedError

_MAX_TOKEN_FILE_BYTES = 64 * 1024
"""Maximum size of the token file, in bytes."""
_TABLES = next(route.path for route in ROUTES if route.operation == "pick_tables")
_STREAMS = frozenset(route.path for route in ROUTES if route.answer == "text/event-stream")
"""Paths of the streaming endpoints. Some streams are reserved for clients with a token, even if a token is not
required."""
_JOINING = frozenset({"id", "address"})
_PUBLIC = frozenset(route.path for route in ROUTES if route.access == "public")
_QUESTIONS = frozenset(route.path for route in ROUTES if route.access == "read" and route.body is not None)
"""Paths that accept a request body but do not change anything."""
ACTOR: ContextVar[str] = ContextVar("actor", default="")
"""Name of the token in the current request; empty if the request does not need a token."""
_AFAR = "the file set in control.api.token_file, or the file api-token in the state directory, on the server's machine"


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The API's address and access rules."""

    bind: Address
    """The API's listen address."""
    token: Path | None = None
    """The file that contains the token; None if writes are not allowed."""
    tls: ssl.SSLContext | None = None
    """The API's TLS context; None for plaintext connections."""

    @property
    def guarded(self) -> bool:
        """Whether read requests also require the token."""
        return not self.bind.on_loopback


class Authorization:
    """Middlewares that check every request."""

    def __init__(self, serving: Serving, access: ApiAccess) -> None:
        self._serving = serving
        self._access = access

    @web.middleware
    async def known_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject unexpected host names and origins, which are used in DNS-rebinding attacks.

        With TLS and a token, the certificate already protects against these attacks, and an orchestrator's probes may
        use any address.
        """
        if (
            not self._access.guarded
            and not self._access.bind.path
            and not is_served_host(request.host, self._access.bind.host)
        ):
            raise RefusedRequest(403, "this Host header is not allowed")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise RefusedRequest(403, "this Origin header is not allowed")
        return await handler(request)

    @web.middleware
    async def allowed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject a request that lacks the required token, and forward a write if this process is not the leader."""
        reading = request.method in ("GET", "HEAD") or _canonical(request) in _QUESTIONS
        if not _is_public(request) and (self._access.guarded or not reading or joins(request)):
            caller = await self._caller(request)
            principal = caller.principal
            _check_role(principal, request, reading=reading)
            ACTOR.set(principal.name)
            target = None if reading else self._serving.forwards_to()
            if target is not None:
                return await _forwarded(request, target, caller)
        elif _canonical(request) in _STREAMS and "authorization" in request.headers:
            known = _token_of(request, await self._accepted())
            ACTOR.set(known.principal.name if known is not None else "")
        return await handler(request)

    async def _accepted(self) -> Sequence[ApiToken]:
        return tokens.parse(await asyncio.to_thread(read_token, self._access.token))

    async def _caller(self, request: web.Request) -> ApiToken:
        """Return the caller's token; the caller may have sent its request to another member. Raises RefusedRequest."""
        accepted = await self._accepted()
        if not accepted:
            raise RefusedRequest(403, "this control plane has no token, so it does not allow this operation")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == SCHEME:
            return await self._forwarding(request, given.strip(), accepted)
        token = _token_of(request, accepted)
        if token is None:
            where = _AFAR if self._access.guarded else self._access.token
            raise RefusedRequest(401, f"this operation needs the token in {where}")
        return token

    async def _forwarding(self, request: web.Request, given: str, accepted: Sequence[ApiToken]) -> ApiToken:
        """Return the caller's token as reported by the member that checked it. Raises RefusedRequest."""
        requests = self._serving.member_requests()
        if requests is None or request.method in ("GET", "HEAD"):
            raise RefusedRequest(
                401, "this control plane does not accept forwarded requests, because it has no other members"
            )
        if request.content_length is None or request.content_length > MAX_BODY_BYTES:
            raise RefusedRequest(413, "a forwarded request needs a body of known length")
        signed = MemberRequest(request.method, request.path_qs, await read_bytes(request))
        try:
            actor, token = requests.verify(given, signed, [(item, item.secret) for item in accepted])
        except NotSignedError as error:
            raise RefusedRequest(401, str(error)) from None
        return token or ApiToken(Principal(actor, "operate"), b"")


def _token_of(request: web.Request, accepted: Sequence[ApiToken]) -> ApiToken | None:
    """Return the accepted token in the request; None if there is none."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    credentials = given.strip().encode(errors="surrogateescape")  # the header's bytes as they were sent
    return tokens.token_of(accepted, credentials) if kind.lower() == "bearer" else None


def read_token(file: Path | None) -> bytes:
    """Read the token file; return an empty value if it does not exist."""
    try:
        return read_regular(file, _MAX_TOKEN_FILE_BYTES).strip() if file is not None else b""
    except OSError:
        return b""


async def _forwarded(request: web.Request, target: LeaderAddress, caller: ApiToken) -> web.Response:
    try:
        return await forward(request, target, caller)
    except NoLeaderError as error:
        raise RefusedRequest(503, str(error)) from None


def _check_role(principal: Principal, request: web.Request, *, reading: bool) -> None:
    """Raise RefusedRequest if the token's role does not permit the request."""
    name = principal.name
    if principal.role == "picker" and _canonical(request) != _TABLES:
        raise RefusedRequest(403, f"{name}'s token has the picker role and can read only the tables for pickers")
    if principal.role == "read" and not reading:
        raise RefusedRequest(403, f"{name}'s token allows read access only")
    if principal.role == "read" and joins(request):
        raise RefusedRequest(
            403, f"{name}'s token allows read access only: a picker needs a token with the picker role"
        )


def _is_public(request: web.Request) -> bool:
    return request.path in _PUBLIC or _canonical(request) in _PUBLIC


def joins(request: web.Request) -> bool:
    """Return whether the request comes from a picker that is joining the other pickers.

    The others then connect to its address and count its requests.

    The response contains data that only pickers may see, so a web page must not be able to send such a request.
    """
    return _canonical(request) == _TABLES and bool(request.query.keys() & _JOINING)


def _canonical(request: web.Request) -> str:
    """Return the route's path as given in `ROUTES`; empty if there is no such route."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else ""
