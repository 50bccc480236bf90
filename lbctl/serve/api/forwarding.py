"""Forwards a write to the control plane's leader, signed by this member and without the caller's token."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from lbctl.api.tokens import ApiToken
from lbctl.base.bounded import TooLargeError, whole
from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.runtime.net import http_client
from lbctl.serve.ha.requests import MemberRequest, MemberRequests

_HEADER = "x-lbctl-forwarded-by"
TIMEOUT = aiohttp.ClientTimeout(total=60, connect=3)
MAX_ANSWER_BYTES = 48 << 20
"""Maximum size of the leader's response in bytes."""


class NoLeaderError(Exception):
    """No member can currently perform writes. The message is sent to the client."""


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """The leader to which a follower forwards writes."""

    member: str
    """This member's name."""
    leader: str
    """The leader's name; empty if unknown."""
    url: str
    """The URL of the leader's API; empty if unknown."""
    certificate: str | None
    """Path of this member's certificate, and the CAs used to verify the leader's certificate too; None without TLS."""
    requests: MemberRequests
    """Signs the request."""


async def forward(request: web.Request, target: LeaderAddress, caller: ApiToken) -> web.Response:
    """Forward the request and return the leader's response.

    `caller`: the caller's token; its name is sent, but not the token itself.

    Raises NoLeaderError if there is no leader, or if the leader does not respond or rejects this member's signature.
    """
    if target.url and not _is_trustworthy(target.url):
        raise NoLeaderError(f"not forwarded: the leader's API at {target.url} does not use TLS")
    if not target.url or _HEADER in request.headers:
        raise NoLeaderError("not changed: this control plane currently has no leader")
    headers = {name: request.headers[name] for name in ("content-type",) if name in request.headers}
    body = await request.read()
    signed = MemberRequest(request.method, request.path_qs, body)
    headers["authorization"] = target.requests.sign(signed, target.leader, caller.principal.name, caller.secret)
    try:
        async with (
            http_client.session() as session,
            session.request(
                request.method,
                target.url + request.path_qs,
                data=body,
                headers=headers | {_HEADER: target.member},
                ssl=_context(target) if target.url.startswith("https:") else True,
                allow_redirects=False,
                timeout=TIMEOUT,
            ) as answer,
        ):
            content_type = answer.headers.get("content-type", "application/json")
            content = await whole(answer.content.iter_any(), MAX_ANSWER_BYTES)
            if answer.status == 401:
                raise NoLeaderError(
                    f"the leader {target.leader} rejects requests from this member: its keys or tokens differ, or it "
                    f"runs an earlier version of lbctl. Send the request to {target.url}"
                )
            return web.Response(body=content, status=answer.status, headers={"content-type": content_type})
    except (aiohttp.ClientError, OSError, TimeoutError, TooLargeError) as error:
        raise NoLeaderError(f"no response from the leader at {target.url}: {reason_of(error)}") from None


def _is_trustworthy(url: str) -> bool:
    """Return whether a token may be sent to the URL: over TLS, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and Address(parts.hostname or "", 0).on_loopback)


def _context(target: LeaderAddress) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if target.certificate is not None:
        context.load_verify_locations(target.certificate)
    return context
