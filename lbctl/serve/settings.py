"""The settings of `lbctl serve`: the command line overrides the fleet's `control`, which overrides the defaults.

`control` is read even if the fleet has errors elsewhere, because the control plane must listen somewhere in order to
report them.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lbctl.compile.files import file_of
from lbctl.compile.proxies import control as compile_control
from lbctl.ir.address import Address
from lbctl.ir.proxies import Control, ServerTls, Store
from lbctl.model.fleet import FleetSource
from lbctl.model.node import descend

TOKEN, _API_URL = "api-token", "api-url"
"""Names of files in the state directory."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command-line options.

    If `state`, `xds_bind`, `api_bind` or `picker_bind` is None, the fleet determines the value.
    """

    paths: tuple[str, ...]
    """Paths of the fleet's files and directories."""
    state: str | None = None
    xds_bind: Address | None = None
    api_bind: Address | None = None
    picker_bind: Address | None = None
    member: str | None = None
    """Name of this process among a store's members; None if the fleet defines it, with the host name as the default."""
    dry_run: bool = False
    """Whether to make all decisions but neither send nor save anything."""
    insecure: bool = False
    """Whether endpoints beyond loopback may be used without TLS."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """This process's settings."""

    control: Control
    """The `control` section with the options applied. Paths are resolved relative to the directory of the YAML file."""
    state: Path
    """The state directory."""
    token: Path
    """Path of the API token file."""


def settings(options: Options, source: FleetSource | None) -> ServeSettings:
    """Return this process's settings. If `source` is None, the defaults apply."""
    configured = compile_control(source.fleet.control) if source else Control()
    control = replace(
        configured,
        xds_bind=options.xds_bind or configured.xds_bind,
        api_bind=options.api_bind or configured.api_bind,
        picker_bind=options.picker_bind or configured.picker_bind,
        xds_tls=_rooted_tls(source, ("control", "xds", "tls"), configured.xds_tls),
        api_tls=_rooted_tls(source, ("control", "api", "tls"), configured.api_tls),
        store=_rooted_store(source, configured.store),
        member=options.member or configured.member,
    )
    state = Path(options.state or _rooted(source, ("control", "state"), configured.state)).absolute()
    token_file = configured.api_token_file
    token = Path(_rooted(source, ("control", "api", "token_file"), token_file)) if token_file else state / TOKEN
    return ServeSettings(replace(control, state=str(state)), state, token)


def remember_api(state: Path, url: str) -> None:
    """Write the API's URL to the state directory for use by commands on this machine. Raises OSError."""
    new = state / f"{_API_URL}.new"
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(f"{url}\n")
    new.replace(state / _API_URL)


def last_api(state: Path) -> str:
    """Return the API URL of the last `serve` process that used this state; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        url = (state / _API_URL).read_text(encoding="utf-8").strip()
        return url if url.startswith(("http://", "https://")) else ""
    return ""


def make_token(file: Path) -> bool:
    """Write a new random token that only the owner can read. Return False if the file exists. Raises OSError."""
    with suppress(FileExistsError):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as opened:
                opened.write(secrets.token_urlsafe(32) + "\n")
        except OSError:
            file.unlink()  # an empty file would be treated as an unusable token, also at the next start
            raise
        return True
    return False


def _rooted_tls(source: FleetSource | None, path: tuple[str, ...], tls: ServerTls | None) -> ServerTls | None:
    if tls is None:
        return None
    authority = tls.client_ca and _rooted(source, (*path, "client_ca"), tls.client_ca)
    revoked = tls.client_crl and _rooted(source, (*path, "client_crl"), tls.client_crl)
    return ServerTls(
        _rooted(source, (*path, "certificate"), tls.certificate),
        _rooted(source, (*path, "key"), tls.key),
        authority,
        revoked,
    )


def _rooted_store(source: FleetSource | None, store: Store | None) -> Store | None:
    if store is None:
        return None
    base = ("control", "store")
    return replace(
        store,
        password_file=store.password_file and _rooted(source, (*base, "password", "file"), store.password_file),
        ca=store.ca and _rooted(source, (*base, "tls", "ca"), store.ca),
        certificate=store.certificate and _rooted(source, (*base, "tls", "certificate"), store.certificate),
        key=store.key and _rooted(source, (*base, "tls", "key"), store.key),
        key_file=store.key_file and _rooted(source, (*base, "key_file"), store.key_file),
    )


def _rooted(source: FleetSource | None, path: tuple[str, ...], value: str) -> str:
    """Return a file's path, resolved relative to the directory of the YAML file that names it."""
    node = descend(source.root, path) if source else None
    return str(file_of(source, node)) if source and node is not None else value
