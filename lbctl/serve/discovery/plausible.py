"""Checks whether an answer's replicas could be listed in a fleet file, according to the model's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from pydantic import ValidationError

from lbctl.base.diagnostics import show
from lbctl.base.hosts import address_of, is_forbidden, is_metadata
from lbctl.ir.pools import Replica
from lbctl.model import pool as model
from lbctl.model.errors import messages_of

_CACHE_SIZE = 16_384
"""Maximum number of replicas whose results are cached, because few replicas of a large pool change at once."""


def implausible(replicas: Sequence[object]) -> str:
    """Return a short phrase that describes the problem with these replicas of a pool; empty if there is none."""
    for item in replicas:
        try:
            problem = _problem(item) if isinstance(item, Replica) else f"{show(str(item))} is not a replica"
        except TypeError:
            problem = "a replica contains a value of an unsupported type"
        if problem:
            return problem
    valid = [item for item in replicas if isinstance(item, Replica)]
    for field, values in (("name", [item.name for item in valid]), ("address", [str(item.address) for item in valid])):
        duplicates = [value for value, count in Counter(values).items() if count > 1]
        if duplicates:
            return f"two replicas have the {field} {show(duplicates[0])}"
    return ""


@lru_cache(maxsize=_CACHE_SIZE)
def _problem(item: Replica) -> str:
    try:
        model.Replica.model_validate(
            {
                "name": item.name, "address": str(item.address), "weight": item.capacity, "priority": item.priority,
                "region": item.region, "zone": item.zone, "gpu": item.gpu, "gpu_count": item.gpu_count,
                "labels": dict(item.labels),
            }
        )  # fmt: skip
    except ValidationError as error:
        key, message, _ = next(iter(messages_of(error, model.Replica)))
        return f"the replica {show(str(item.name))}: {key}: {message}"
    host = item.address.host
    address = address_of(host)
    if item.address.path or is_metadata(host, address) or (address is not None and is_forbidden(address)):
        return (
            f"the replica {show(item.name)} has the address {show(str(item.address))}, which is not valid for a replica"
        )
    return ""
