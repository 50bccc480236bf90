"""JSON Web Tokens: whose signature holds, until when, for whom, and for which tenant.

Every key verifies its one algorithm, whatever the token says of itself (a token "signed" with none, or with a public
key as a secret, finds no key). Everything that must hold is asked for as such: what cannot be read does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.routes import Jwt, Route
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.jwks import UnfitKeyError, VerificationKey, read
from lbctl.targets.haproxy.match import Acls
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import File
from lbctl.targets.token import Token

_UNFIT = quote.error("the credentials name no tenant", "forbidden")
_NOT_FOR_US = quote.error("this token is for another audience", "forbidden")
_TENANT = r"^(?![\[{])[!-~][ -~]*\z"
"""Printable ASCII: HAProxy makes one byte of `\\u00f6`. Later versions give arrays and objects as their JSON."""
_CONTROLS = "[[:cntrl:]]"
_NUMBER = r"^[0-9]+\z"
_AUDIENCES = 8
"""Of a token that has several, as many are looked at; HAProxy reads an array by its places."""
_CLAIM = "var(txn.token),jwt_payload_query("


def files(route: Route, view: View) -> Iterator[File]:
    """One for each key; public, and apart because HAProxy reads keys from files only."""
    if route.auth and route.auth.jwt:
        for number, key in _keys(route, view):
            yield File(_file(route, number), key.pem)


def diagnostics(route: Route, view: View) -> Iterator[Diagnostic]:
    """The keys that HAProxy cannot use."""
    if route.auth is None or route.auth.jwt is None:
        return
    for number, key in enumerate(read(view.jwks[route.name], view.proxy.version), 1):
        if isinstance(key, UnfitKeyError):
            yield Diagnostic(
                BY_ID["route.auth.jwt"].code,
                f"key {number} of the set is left out, and its tokens are refused: {key}",
                path=("routes", route.name, "auth", "jwt", "jwks_file"),
                severity="warning",
            )


def lines(route: Route, jwt: Jwt, view: View, acls: Acls, here: str) -> Iterator[Token]:
    """Sets txn.issued where the token is good, and txn.tenant where it names one; answers 403 where the token is good
    and for others, or its tenant no word. A request that has a tenant already has no token here."""
    path = ("routes", route.name, "auth", "jwt")
    unknown = "!{ var(txn.tenant) -m found }"
    yield line("http-request set-var(txn.token) http_auth_bearer", here, unknown, source=path)
    verified = acls.name("var(txn.verified)", "int", ["1"])
    yield from _verified(route, view, acls, here, verified)
    yield from _current(here)
    conditions = (
        verified,
        acls.name("var(txn.exp),sub(txn.now)", "int", ["1:"]),
        acls.name("var(txn.nbf)", "reg", [_NUMBER]),
        acls.name("var(txn.now),sub(txn.nbf)", "int", ["0:"]),
        acls.name(_claim("iss"), "str", [jwt.issuer]),
    )
    yield line("http-request set-var(txn.issued) bool(true)", here, *conditions, source=(*path, "issuer"))
    issued = acls.name("var(txn.issued)", "bool", ["true"])
    yield from _audience(jwt, acls, f"{here} {issued}", path)
    if jwt.tenant_claim:
        claim = _claim(jwt.tenant_claim)
        named, unfit = acls.name(claim, "reg", [_TENANT]), acls.name(claim, "reg", [_CONTROLS])
        yield line(f"http-request return status 403 {_UNFIT}", here, issued, unfit, source=path)
        yield line("http-request set-var(txn.tenant)", quote.word(claim), here, issued, named, source=path)


def _verified(route: Route, view: View, acls: Acls, here: str, verified: str) -> Iterator[Token]:
    """Key ids are compared behind a slash, so that the absent one is a word, too."""
    yield line("http-request set-var(txn.alg)", quote.word('var(txn.token),jwt_header_query("$.alg")'), here)
    yield line("http-request set-var-fmt(txn.kid)", quote.word('/%[var(txn.token),jwt_header_query("$.kid")]'), here)
    for number, key in _keys(route, view):
        fits = [acls.name("var(txn.alg)", "str", [key.algorithm])]
        if key.kid:
            fits.append(acls.name("var(txn.kid)", "str", ["/", f"/{key.kid}"]))
        check = quote.word(f'var(txn.token),jwt_verify("{key.algorithm}","{_file(route, number)}")')
        path = ("routes", route.name, "auth", "jwt", "jwks_file")
        yield line("http-request set-var(txn.verified)", check, here, f"!{verified}", *fits, source=path)


def _current(here: str) -> Iterator[Token]:
    """What is no number comes as text, and counts as 0: too long ago for an end, but not for a beginning."""
    yield line("http-request set-var(txn.now) date()", here)
    yield line("http-request set-var(txn.exp)", quote.word(f'{_CLAIM}"$.exp","int")'), here)
    yield line("http-request set-var(txn.nbf) int(0)", here)
    yield line("http-request set-var(txn.nbf)", quote.word(f'{_CLAIM}"$.nbf","int")'), here)


def _audience(jwt: Jwt, acls: Acls, here: str, path: tuple[str, ...]) -> Iterator[Token]:
    """`aud` is a string or an array of them."""
    if not jwt.audiences:
        return
    places = ["aud", *(f"aud[{place}]" for place in range(_AUDIENCES))]
    others = [f"!{acls.name(_claim(place), 'str', jwt.audiences)}" for place in places]
    yield line(f"http-request return status 403 {_NOT_FOR_US}", here, *others, source=(*path, "audiences"))


def _claim(name: str) -> str:
    return "var(txn.token)," + quote.sample("jwt_payload_query", f"$.{name}")


def _keys(route: Route, view: View) -> Iterator[tuple[int, VerificationKey]]:
    """With their places in the set, from 1."""
    for number, key in enumerate(read(view.jwks[route.name], view.proxy.version), 1):
        if isinstance(key, VerificationKey):
            yield number, key


def _file(route: Route, number: int) -> str:
    return f"haproxy-jwt-{quote.name(route.name).text}-{number}.pem"
