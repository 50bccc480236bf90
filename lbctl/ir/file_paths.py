"""Changes the file paths in views, so that targets do not depend on the machine for which they render.

`--files-root` and the placeholders for `--check` change paths in this way. Nothing else in the view changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Route
from lbctl.ir.snapshot import View

Rename = Callable[[str, str], str]
"""Maps (path, kind) to the new path. The kinds are certificate, key, ca, crl, api_keys and jwks."""


def with_files(view: View, rename: Rename) -> View:
    """Return the view with the path of every file that the proxy reads replaced."""
    return replace(
        view,
        listeners=tuple(_listener(listener, rename) for listener in view.listeners),
        routes={name: _route(item, rename) for name, item in view.routes.items()},
        pools={name: _pool(item, rename) for name, item in view.pools.items()},
    )


def _listener(listener: Listener, rename: Rename) -> Listener:
    if listener.tls is None:
        return listener
    certificates = tuple(
        replace(
            certificate, certificate=rename(certificate.certificate, "certificate"), key=rename(certificate.key, "key")
        )
        for certificate in listener.tls.certificates
    )
    tls = replace(
        listener.tls,
        certificates=certificates,
        client_ca=_maybe(listener.tls.client_ca, "ca", rename),
        client_crl=_maybe(listener.tls.client_crl, "crl", rename),
    )
    return replace(listener, tls=tls)


def _route(route: Route, rename: Rename) -> Route:
    if route.auth is None:
        return route
    keys, jwt = route.auth.api_keys, route.auth.jwt
    auth = replace(
        route.auth,
        api_keys=keys and replace(keys, file=rename(keys.file, "api_keys")),
        jwt=jwt and replace(jwt, jwks_file=rename(jwt.jwks_file, "jwks")),
    )
    return replace(route, auth=auth)


def _pool(pool: Pool, rename: Rename) -> Pool:
    if pool.tls is None:
        return pool
    tls = replace(
        pool.tls,
        ca=_maybe(pool.tls.ca, "ca", rename),
        certificate=_maybe(pool.tls.certificate, "certificate", rename),
        key=_maybe(pool.tls.key, "key", rename),
    )
    return replace(pool, tls=tls)


def _maybe(path: str | None, kind: str, rename: Rename) -> str | None:
    return None if path is None else rename(path, kind)
