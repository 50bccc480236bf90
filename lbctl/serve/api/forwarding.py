"""Forwards a write to the leader of the control plane, with the caller's token."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from lbctl.base.errors import reason_of
from lbctl.base.records import dataclass
from lbctl.ir.address import Address

_HEADER = "x-lbctl-forwarded-by"
_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=3)


class NoLeaderError(Exception):
    """No member carries out writes at the moment. The message is for the client."""


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where a follower sends writes."""

    member: str
    """The name of this member."""
    url: str
    """The URL of the leader's API; empty where no leader is known."""
    certificate: str | None
    """The path of this member's own certificate, whose authorities also verify the leader's; None without TLS."""


async def forward(request: web.Request, target: LeaderAddress) -> web.Response:
    """Return the leader's answer. Raises NoLeaderError where there is no leader, or it does not answer."""
    if target.url and not _is_trustworthy(target.url):
        raise NoLeaderError(f"the leader's API is not reached by TLS at {target.url}, and the token is not sent there")
    if not target.url or _HEADER in request.headers:
        raise NoLeaderError("no member of this control plane leads at the moment, and nothing was changed")
    headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
    body = await request.read()
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.request(
                request.method,
                target.url + request.path_qs,
                data=body,
                headers=headers | {_HEADER: target.member},
                ssl=_context(target) if target.url.startswith("https:") else True,
                allow_redirects=False,
            ) as answer,
        ):
            content_type = answer.headers.get("content-type", "application/json")
            content = await answer.read()
            return web.Response(body=content, status=answer.status, headers={"content-type": content_type})
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NoLeaderError(f"the leader does not answer at {target.url}: {reason_of(error)}") from None


def _is_trustworthy(url: str) -> bool:
    """Return whether a token may be sent there: by TLS, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and Address(parts.hostname or "", 0).on_loopback)


def _context(target: LeaderAddress) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if target.certificate is not None:
        context.load_verify_locations(target.certificate)
    return context
