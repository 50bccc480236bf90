"""JSON Web Tokens: signature, validity period, issuer, audience and tenant.

Every key verifies exactly one algorithm, regardless of what the token states. A token "signed" with none, or with a
public key as the secret, does not match any key. Every requirement is checked explicitly, and an unreadable claim does
not meet it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.routes import Jwt, Route
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote, sections
from lbctl.targets.haproxy.jwks import UnfitKeyError, VerificationKey, read
from lbctl.targets.haproxy.match import Acls
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import File
from lbctl.targets.token import Token

_UNFIT = quote.error("the credentials do not identify a tenant", "forbidden")
_NOT_FOR_US = quote.error("this token is for another audience", "forbidden")
_TENANT = r"^(?![\[{])[!-~][ -~]*\z"
"""Matches printable ASCII, because HAProxy turns `\u00f6` into one byte. Later versions return arrays and objects as
JSON."""
_CONTROLS = "[[:cntrl:]]"
_NUMBER = r"^[0-9]+\z"
_NO_TIME = r'"(?:exp|nbf)"\s*+:\s*+(?![0-9]{1,15}(?:\.[0-9]+)?\s*+[,}])'
"""Matches, in the text of the claims, a time that is not a plain number.

HAProxy would also accept a number inside a string, and the 1 of `1e400`.
"""
_CUT = r"\s*+:\s*+\x22(?:[^\x22\x5c]|\x5c(?!u0000).)*+\x5cu0000"
"""Matches, in the text of the claims, a value that contains an escaped NUL. HAProxy reads only the part before the
NUL."""
_WHOLE = r"\}\s*+\z"
"""Matches the end of the claims. HAProxy does not see text after an unescaped NUL."""
_AUDIENCES = 8
"""Maximum number of audiences checked if a token has several. HAProxy reads array elements by position."""
_CLAIMS = "var(txn.token),field(2,.),ub64dec"
_CLAIM = "var(txn.token),jwt_payload_query("


def files(route: Route, view: View) -> Iterator[File]:
    """Yield one file for each key.

    The keys are public, but in separate files, because HAProxy can read keys only from files.
    """
    if route.auth and route.auth.jwt:
        for number, key in _keys(route, view):
            yield File(_file(route, number), key.pem)


def diagnostics(route: Route, view: View) -> Iterator[Diagnostic]:
    """Yield a warning for each key that HAProxy cannot use."""
    if route.auth is None or route.auth.jwt is None:
        return
    for number, key in enumerate(read(view.jwks[route.name], view.proxy.version), 1):
        if isinstance(key, UnfitKeyError):
            yield Diagnostic(
                BY_ID["route.auth.jwt"].code,
                f"key {number} of the set is ignored, and its tokens are rejected: {key}",
                path=("routes", route.name, "auth", "jwt", "jwks_file"),
                severity="warning",
            )


def lines(route: Route, jwt: Jwt, view: View, acls: Acls, if_route: str) -> Iterator[Token]:
    """Yield the lines that verify a request's token.

    The lines set txn.issued if the token is valid, and txn.tenant if it names a tenant. A valid token for another
    audience or with an unusable tenant is rejected with 403. A request that already has a tenant does not need a token.
    """
    path = ("routes", route.name, "auth", "jwt")
    without_tenant = "!{ var(txn.tenant) -m found }"
    yield line("http-request set-var(txn.token) http_auth_bearer", if_route, without_tenant, source=path)
    verified = acls.name("var(txn.verified)", "int", ["1"])
    yield from _verify_signature(route, view, acls, if_route, verified)
    yield from _read_times(if_route)
    conditions = (
        verified,
        acls.name("var(txn.exp),sub(txn.now)", "int", ["1:"]),
        acls.name("var(txn.nbf)", "reg", [_NUMBER]),
        acls.name("var(txn.now),sub(txn.nbf)", "int", ["0:"]),
        acls.name(_claim("iss"), "str", [jwt.issuer]),
        acls.name(_CLAIMS, "reg", [_WHOLE]),
        f"!{acls.name(_CLAIMS, 'reg', [_NO_TIME])}",
        f"!{_is_cut('iss', acls)}",
    )
    yield line("http-request set-var(txn.issued) bool(true)", if_route, *conditions, source=(*path, "issuer"))
    issued = acls.name("var(txn.issued)", "bool", ["true"])
    yield from _audience(jwt, acls, f"{if_route} {issued}", path)
    if jwt.tenant_claim:
        claim = _claim(jwt.tenant_claim)
        has_usable_tenant = acls.name(claim, "reg", [_TENANT])
        has_control_characters = acls.name(claim, "reg", [_CONTROLS])
        for unusable in (has_control_characters, _is_cut(jwt.tenant_claim, acls)):
            yield line(f"http-request return status 403 {_UNFIT}", if_route, issued, unusable, source=path)
        yield line(
            "http-request set-var(txn.tenant)", quote.word(claim), if_route, issued, has_usable_tenant, source=path
        )


def _verify_signature(route: Route, view: View, acls: Acls, if_route: str, verified: str) -> Iterator[Token]:
    """Yield the lines that verify the signature. Key IDs are prefixed with a slash, so that none is ever empty."""
    yield line("http-request set-var(txn.alg)", quote.word('var(txn.token),jwt_header_query("$.alg")'), if_route)
    yield line(
        "http-request set-var-fmt(txn.kid)", quote.word('/%[var(txn.token),jwt_header_query("$.kid")]'), if_route
    )
    for number, key in _keys(route, view):
        conditions = [acls.name("var(txn.alg)", "str", [key.algorithm])]
        if key.kid:
            conditions.append(acls.name("var(txn.kid)", "str", ["/", f"/{key.kid}"]))
        place = sections.beside(_file(route, number), view.proxy)
        check = quote.word(f'var(txn.token),jwt_verify("{key.algorithm}","{place}")')
        path = ("routes", route.name, "auth", "jwt", "jwks_file")
        yield line("http-request set-var(txn.verified)", check, if_route, f"!{verified}", *conditions, source=path)


def _read_times(if_route: str) -> Iterator[Token]:
    """Yield the lines that read when the token expires and when it becomes valid.

    A claim that is not a number is treated as 0: such an expiry is in the past, and such a start is allowed.
    """
    yield line("http-request set-var(txn.now) date()", if_route)
    yield line("http-request set-var(txn.exp)", quote.word(f'{_CLAIM}"$.exp","int")'), if_route)
    yield line("http-request set-var(txn.nbf) int(0)", if_route)
    yield line("http-request set-var(txn.nbf)", quote.word(f'{_CLAIM}"$.nbf","int")'), if_route)


def _audience(jwt: Jwt, acls: Acls, if_route: str, path: tuple[str, ...]) -> Iterator[Token]:
    """Yield the line that rejects tokens for other audiences; `aud` is a string or an array of strings."""
    if not jwt.audiences:
        return
    places = ["aud", *(f"aud[{place}]" for place in range(_AUDIENCES))]
    not_ours = [f"!{acls.name(_claim(place), 'str', jwt.audiences)}" for place in places]
    yield line(f"http-request return status 403 {_NOT_FOR_US}", if_route, *not_ours, source=(*path, "audiences"))


def _is_cut(name: str, acls: Acls) -> str:
    """Return the ACL that matches if the claim contains a NUL."""
    return acls.name(_CLAIMS, "reg", [rf"\x22{re.escape(name)}\x22{_CUT}"])


def _claim(name: str) -> str:
    return "var(txn.token)," + quote.sample("jwt_payload_query", f"$.{name}")


def _keys(route: Route, view: View) -> Iterator[tuple[int, VerificationKey]]:
    """Yield the usable keys with their positions in the set, starting at 1."""
    for number, key in enumerate(read(view.jwks[route.name], view.proxy.version), 1):
        if isinstance(key, VerificationKey):
            yield number, key


def _file(route: Route, number: int) -> str:
    return f"haproxy-jwt-{quote.name(route.name).text}-{number}.pem"
