"""The key for picker requests that `serve` creates in its state directory if the fleet does not name a key file."""

from __future__ import annotations

from pathlib import Path

from lbctl.base.errors import reason_of
from lbctl.compile.files import read_regular
from lbctl.ir.topology import Topology
from lbctl.runtime import log
from lbctl.serve.settings import make_token
from lbctl.targets.picker import missing_key

_FILE = "picker-key"
_MAX_BYTES = 4096


def needs_own_key(topology: Topology) -> bool:
    """Return whether `serve` creates this fleet's key: a pool uses the picker, and the fleet names no key file."""
    is_picked = any(pool.balance.pick is not None for pool in topology.pools)
    return is_picked and topology.control.picker_key_file is None and not missing_key(topology)


def own_key(state: Path) -> str:
    """Return the key in a state directory; both are created if they do not exist.

    If this fails, the failure is logged and the result is empty.
    """
    file = state / _FILE
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if make_token(file):
            log.event("created a key for the picker", file=file)
        return read_regular(file, _MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        log.warn("the picker accepts all requests, because its key cannot be read", file=file, why=reason_of(error))
        return ""
