"""Determines a replica's capacity, which is its weight if specified, otherwise its GPUs' throughput, otherwise 1.

Within a pool, either all replicas or none must specify their capacity, because a replica of unknown capacity among
replicas of known capacity would get an arbitrary share.
"""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.compile.context import Context
from lbctl.compile.gpus import GPUS
from lbctl.model.pool import Pool, Replica


def throughputs(ctx: Context) -> dict[str, float]:
    """Map each GPU type to its throughput (A100-80GB = 5), using the fleet's own values before the built-in table."""
    return {name: gpu.throughput for name, gpu in GPUS.items()} | dict(ctx.fleet.gpus)


def capacities(ctx: Context, name: str, pool: Pool, table: Mapping[str, float]) -> list[float]:
    """Return one capacity greater than 0 per replica, in the file's order. Reports LB203, LB204 and LB205."""
    specified = [replica.weight is not None or replica.gpu is not None for replica in pool.replicas]
    if any(specified) and not all(specified):
        for index, is_specified in enumerate(specified):
            if not is_specified:
                ctx.error(
                    "LB203", "this replica has neither a gpu nor a weight, but other replicas of its pool do",
                    ("pools", name, "replicas", index), "set one of them here, or remove them from all replicas",
                )  # fmt: skip
    return [
        _capacity(ctx, ("pools", name, "replicas", index), replica, table)
        for index, replica in enumerate(pool.replicas)
    ]


def gpu_count(replica: Replica) -> int:
    """Return the replica's number of GPUs, which is `gpu_count` if set, otherwise its number of devices, at least 1."""
    return replica.gpu_count if replica.gpu_count is not None else max(1, len(replica.devices))


def _capacity(ctx: Context, path: tuple[str | int, ...], replica: Replica, table: Mapping[str, float]) -> float:
    if replica.gpu_count is not None and replica.devices and replica.gpu_count != len(replica.devices):
        ctx.error(
            "LB205", f"gpu_count is {replica.gpu_count}, but {len(replica.devices)} devices are listed",
            (*path, "gpu_count"), "remove gpu_count, or list all devices",
        )  # fmt: skip
    is_known = replica.gpu is None or ctx.check_name("LB204", "GPU", replica.gpu, table, (*path, "gpu"))
    if replica.weight is not None:
        return replica.weight
    return table[replica.gpu] * gpu_count(replica) if replica.gpu is not None and is_known else 1.0
