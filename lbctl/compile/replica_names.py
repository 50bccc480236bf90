"""The names of replicas that have none of their own."""

from __future__ import annotations

import re

from lbctl.compile.convert import address
from lbctl.ir.address import Address
from lbctl.model.pool import Replica


def name_of(replica: Replica) -> str:
    """The name of a replica: its own, else its address."""
    return replica.name or replica_name(address(replica.address))


def replica_name(where: Address) -> str:
    """The address with `-` for every character that a name cannot have."""
    text = str(where).lower()
    return re.sub(r"[^a-z0-9._-]", "-", text).lstrip("._-")[:63] or "replica"
