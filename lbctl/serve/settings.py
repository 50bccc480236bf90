"""How `serve` itself is to run: the command line, over `control` of the fleet, over the defaults.

`control` is read for this even where the fleet has errors elsewhere: the control plane must stand somewhere to say so.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import file_of
from lbctl.compile.proxies import control as compile_control
from lbctl.ir.address import Address
from lbctl.ir.proxies import Control, ServerTls
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import texts
from lbctl.model.node import descend
from lbctl.serve.fleet.reader import understood

_TOKEN = "api-token"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `state`, `xds_bind`, `api_bind`: None where the fleet decides."""

    paths: tuple[str, ...]
    state: str | None = None
    xds_bind: Address | None = None
    api_bind: Address | None = None
    dry_run: bool = False
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """`control`: as it holds for this process, its files with the directory of the YAML before them."""

    control: Control
    state: Path
    token: Path


def settings(options: Options, source: FleetSource | None) -> Settings:
    """`source`: None where nothing of the fleet can be read; then the defaults hold."""
    written = compile_control(source.fleet.control) if source else Control()
    control = replace(
        written,
        xds_bind=options.xds_bind or written.xds_bind,
        api_bind=options.api_bind or written.api_bind,
        xds_tls=_rooted_tls(source, ("control", "xds", "tls"), written.xds_tls),
        api_tls=_rooted_tls(source, ("control", "api", "tls"), written.api_tls),
    )
    state = Path(options.state or _rooted(source, ("control", "state"), written.state)).absolute()
    named = written.api_token_file
    token = Path(_rooted(source, ("control", "api", "token_file"), named)) if named else state / _TOKEN
    return Settings(replace(control, state=str(state)), state, token)


def legible(paths: Sequence[str]) -> FleetSource | None:
    """What can be read of the files: all of them together, else the first that holds `control`, by itself."""
    diagnostics = Diagnostics()
    found = texts(paths, diagnostics)
    whole = understood(tuple(found), diagnostics)
    if whole is not None and (not diagnostics.failed or _has_control(whole)):
        return whole
    alone = (parse([text], Diagnostics()) for text in found)
    return next((source for source in alone if source is not None and _has_control(source)), None)


def _has_control(source: FleetSource) -> bool:
    return "control" in source.fleet.model_fields_set


def make_token(file: Path) -> bool:
    """A token of the process's own, for its owner alone; False where there is one already. OSError."""
    with suppress(FileExistsError):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")
        return True
    return False


def _rooted_tls(source: FleetSource | None, path: tuple[str, ...], tls: ServerTls | None) -> ServerTls | None:
    if tls is None:
        return None
    authority = tls.client_ca and _rooted(source, (*path, "client_ca"), tls.client_ca)
    return ServerTls(
        _rooted(source, (*path, "certificate"), tls.certificate), _rooted(source, (*path, "key"), tls.key), authority
    )


def _rooted(source: FleetSource | None, path: tuple[str, ...], value: str) -> str:
    node = descend(source.root, path) if source else None
    return str(file_of(source, node)) if source and node is not None else value
