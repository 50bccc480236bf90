"""Resolves a pool's `upstream` and `credentials`, which replace parts of its requests."""

from __future__ import annotations

from lbctl.base.diagnostics import Path
from lbctl.base.system_ca import WORD, system_ca
from lbctl.compile.context import Context
from lbctl.compile.headers import is_reserved
from lbctl.ir import pools as ir
from lbctl.ir.secrets import may_hold_credential
from lbctl.model import pool as model
from lbctl.model.node import descend
from lbctl.model.upstream import HeaderFile


def upstream(ctx: Context, name: str, pool: model.Pool) -> ir.Upstream | None:
    """Resolve the replacements for parts of a request to a hosted API.

    Reports LB119 for headers that control the message, LB151 for credentials in plain text, LB152 for a pool that uses
    gRPC.
    """
    section, path = pool.upstream, ("pools", name, "upstream")
    if section is None:
        return None
    if pool.protocol == "grpc":
        hint = "set protocol: http1, or remove upstream"
        ctx.error("LB152", "a hosted API needs HTTP, but this pool uses gRPC", path, hint, key=True)
    for header, value in section.headers.items():
        _check_header(ctx, (*path, "headers", _written(ctx, (*path, "headers"), header)), header, value)
    headers = tuple(_header(header, value) for header, value in sorted(section.headers.items()))
    return ir.Upstream(section.host, (section.path_prefix or "").rstrip("/"), headers)


def credentials(ctx: Context, name: str, pool: model.Pool) -> ir.UpstreamHeader | None:
    """Resolve the key that the replicas require.

    Reports LB119 for headers that control the message, and LB160 if `upstream` is also set.
    """
    section, path = pool.credentials, ("pools", name, "credentials")
    if section is None:
        return None
    if pool.upstream is not None:
        hint = "put the key in `upstream.headers`, and remove `credentials`"
        ctx.error("LB160", "the key of a hosted API must be in `upstream.headers`", path, hint, key=True)
    if is_reserved(section.header):
        message = f"{section.header} is a message-framing header or a header of the proxy itself"
        ctx.error(
            "LB119", message, (*path, "header"), "use the header that the replicas read, for example authorization"
        )
    return ir.UpstreamHeader(section.header.lower(), file=section.file)


def tls(section: model.PoolTls | None, api: ir.Upstream | None) -> ir.PoolTls | None:
    """Resolve TLS to the replicas. A hosted API's certificate must contain its host."""
    if section is None:
        return None
    name = section.server_name or (api.server_name if api else None)
    ca = system_ca() if section.ca == WORD else section.ca
    return ir.PoolTls(ca, name, section.certificate, section.key)


def _header(name: str, value: str | HeaderFile) -> ir.UpstreamHeader:
    if isinstance(value, HeaderFile):
        return ir.UpstreamHeader(name, value.prefix, value.file)
    return ir.UpstreamHeader(name, value)


def _check_header(ctx: Context, path: Path, name: str, value: str | HeaderFile) -> None:
    if is_reserved(name):
        hint = "`upstream.host` sets the host" if name == "host" else "leave it to the proxy"
        ctx.error(
            "LB119",
            f"{name} is a message-framing header or a header of the proxy itself",
            path,
            hint,
            key=True,
        )
    elif may_hold_credential(name) and not isinstance(value, HeaderFile):
        hint = f"use a file that only its owner can read: {name}: {{file: secrets/{path[1]}-key}}"
        ctx.error("LB151", f"{name} may contain a credential, but its value is in plain text here", path, hint)


def _written(ctx: Context, path: Path, name: str) -> str:
    """Return the header name as written in the fleet."""
    node = descend(ctx.source.root, path)
    keys = node.value if node is not None and isinstance(node.value, dict) else {}
    return next((key for key in keys if key.lower() == name), name)
