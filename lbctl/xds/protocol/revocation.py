"""Checks client certificates against the revocation lists in a file.

gRPC for Python verifies a client's chain but does not support revocation lists, so a server checks them here in each
call.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

_Context = grpc.aio.ServicerContext[Any, Any]
_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"


class RevocationError(Exception):
    """A file of revocation lists cannot be used. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The revocation list of a CA."""

    issuer: x509.Name
    serials: frozenset[int]
    """Serial numbers of its revoked certificates. A lookup in the list itself would be a linear search."""
    next_update: datetime | None
    """Expiry time; None if the list never expires."""


@dataclass(frozen=True, slots=True)
class Revocations:
    """The revocation lists of CAs, each signed by its CA."""

    lists: tuple[RevocationList, ...]
    """At least one."""

    def refusal(self, certificate: bytes) -> str:
        """Return the reason why a client with this certificate (PEM) is rejected; empty if it is accepted.

        Like OpenSSL, it rejects every client of a CA whose list is missing or expired.
        """
        subject = x509.load_pem_x509_certificate(certificate)
        mine = [item for item in self.lists if item.issuer == subject.issuer]
        if not mine:
            return "its certificate authority has no revocation list"
        if any(subject.serial_number in item.serials for item in mine):
            return "it is revoked"
        now = datetime.now(UTC)
        if all(item.next_update is not None and item.next_update < now for item in mine):
            return "the revocation list of its certificate authority has expired"
        return ""


def read(lists: bytes, authorities: bytes) -> Revocations:
    """Read revocation lists and their CAs (PEM). Raises RevocationError."""
    try:
        found = tuple(x509.load_pem_x509_crl(block) for block in _blocks(lists))
        known = x509.load_pem_x509_certificates(authorities)
    except ValueError:
        raise RevocationError("not a PEM revocation list") from None
    if not found:
        raise RevocationError("contains no revocation list")
    for item in found:
        keys = [authority.public_key() for authority in known if authority.subject == item.issuer]
        if not any(_signed(item, key) for key in keys):
            issuer = item.issuer.rfc4514_string()
            raise RevocationError(f"no authority in client_ca has signed {issuer}'s revocation list")
    return Revocations(tuple(map(_searchable, found)))


def _searchable(item: x509.CertificateRevocationList) -> RevocationList:
    return RevocationList(item.issuer, frozenset(entry.serial_number for entry in item), item.next_update_utc)


def _blocks(text: bytes) -> list[bytes]:
    return [_BEGIN + block.partition(_END)[0] + _END + b"\n" for block in text.split(_BEGIN)[1:]]


def _signed(item: x509.CertificateRevocationList, key: CertificatePublicKeyTypes) -> bool:
    try:
        return item.is_signature_valid(key)  # type: ignore[arg-type]  # a key that cannot sign raises TypeError
    except (TypeError, InvalidSignature):
        return False


class RevokedClients(grpc.aio.ServerInterceptor):
    """Rejects calls by clients with revoked certificates: UNAUTHENTICATED.

    `current` returns the active lists, or None if there are none.
    """

    def __init__(self, current: Callable[[], Revocations | None]) -> None:
        self._current = current

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call, wrapped to check the client's certificate first."""
        handler = await continuation(details)
        if handler is None or self._current() is None:
            return handler
        request, response = (
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        )
        served = getattr(handler, f"{request}_{response}")

        async def answer(request: object, context: _Context) -> Any:
            await self._refuse(context)
            return await served(request, context)

        async def answers(request: object, context: _Context) -> AsyncIterator[Any]:
            await self._refuse(context)
            async for item in served(request, context):
                yield item

        make = getattr(grpc, f"{request}_{response}_rpc_method_handler")
        checked = answers if inspect.isasyncgenfunction(served) else answer
        return make(checked, handler.request_deserializer, handler.response_serializer)

    async def _refuse(self, context: _Context) -> None:
        if reason := self.refusal(context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the client certificate is rejected: {reason}")

    def refusal(self, context: _Context) -> str:
        """Return the reason why the client of a call is rejected; empty if it is accepted."""
        lists = self._current()
        certificates = context.auth_context().get("x509_pem_cert", ())
        return next(filter(None, (lists.refusal(item) for item in certificates)), "") if lists else ""
