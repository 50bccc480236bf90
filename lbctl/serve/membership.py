"""Joins this process to its control plane: opens the members' store and registers a name in it."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

from lbctl.base.paths import exists
from lbctl.ir.proxies import Control
from lbctl.model.control_section import ControlSection
from lbctl.model.fleet import FleetSource
from lbctl.runtime import log
from lbctl.runtime.errors import UnknownStateError
from lbctl.serve.fleet.reader import read_control
from lbctl.serve.ha.format import check_format
from lbctl.serve.ha.presence import claim
from lbctl.serve.settings import Options, ServeSettings, settings
from lbctl.serve.wiring import Shared
from lbctl.store.interface import StoreError
from lbctl.store.lease import Authority, as_store_error
from lbctl.store.open import answered, open_shared
from lbctl.store.sqlite import DATABASE

_MARKER = "shared"
"""File in the state directory that marks this machine as a member."""
_RETRY = 1.0
"""Seconds between attempts to connect to the store."""


def check_state_is_known(options: Options, section: ControlSection) -> None:
    """Raise UnknownStateError if the fleet may set a state directory but that setting cannot be read.

    With the default directory, this process would be a separate control plane without the last valid fleet and the
    drains.
    """
    if options.state is not None or options.dry_run:
        return
    default = Path(Control().state)
    if section.source is None and section.lost is None:
        advice = "the `control` section of the files cannot be read: if it sets a state directory, add --state DIR"
        log.warn(advice, state=default)
    if section.lost is None or not section.lacks("state"):
        return
    if section.text or not any(exists(default / name) for name in (DATABASE, _MARKER)):
        log.findings([section.lost])
        log.error(
            "control.state cannot be read, so the last valid fleet cannot be found: correct the file or add --state DIR"
        )
        raise UnknownStateError


async def shared_store(options: Options, source: FleetSource | None) -> Shared | None:
    """Return the store that the fleet specifies; None if this machine's state directory is used. Raises StoreError.

    A member whose files are unreadable waits until they are readable, because it would make independent decisions with
    a separate state.
    """
    chosen = settings(options, source)
    waits = False
    while chosen.control.store is None and not options.dry_run and await asyncio.to_thread(exists, _marker(chosen)):
        if not waits:
            log.error(
                "waiting for control.store in the files: this machine is a member of a control plane. To leave it, "
                f"remove {_marker(chosen)}"
            )
        waits = True
        await asyncio.sleep(_RETRY)
        chosen = settings(options, (await asyncio.to_thread(read_control, options.paths)).source)
    store = chosen.control.store
    if store is None or options.dry_run:
        return None
    with as_store_error(chosen.state):
        await asyncio.to_thread(Path.mkdir, chosen.state, mode=0o700, parents=True, exist_ok=True)
    name = chosen.control.member or _host_name()
    opened = await asyncio.to_thread(open_shared, store, name)
    return Shared(name, opened, store.lease / 1000, Authority(), marker=_marker(chosen))


def _marker(chosen: ServeSettings) -> Path:
    return chosen.state / _MARKER


async def join(shared: Shared) -> None:
    """Register this member's name in the store, waiting until the store responds. Raises StoreError.

    A member that has not read the other members' records must not serve, because it does not know which replicas
    operators have drained. Until then, proxies keep their configuration.
    """
    try:
        await answered(lambda: check_format(shared.store))
        await answered(lambda: claim(shared.store, shared.name, log.warn))
    except StoreError:
        await shared.store.close()
        raise
    if shared.marker is not None:
        with as_store_error(shared.marker.parent):
            await asyncio.to_thread(shared.marker.touch, 0o600)
    log.event("joined the control plane", member=shared.name, store=shared.store.location)


def _host_name() -> str:
    """Return this machine's host name in the form of a valid member name."""
    return re.sub(r"[^a-z0-9._-]", "-", socket.gethostname().lower())[:63] or "member"
