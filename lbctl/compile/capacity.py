"""What a replica can carry: its weight if given, else its GPUs' throughput, else 1.

Within a pool either all replicas say something of their capacity or none does: a replica of unknown strength beside
replicas of known strength would be given an arbitrary share.
"""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.compile.context import Context
from lbctl.compile.gpus import GPUS
from lbctl.model.pool import Pool, Replica


def throughputs(ctx: Context) -> dict[str, float]:
    """GPU type → throughput on the scale A100-80GB = 5: the built-in table with the fleet's own figures over it."""
    return {name: gpu.throughput for name, gpu in GPUS.items()} | dict(ctx.fleet.gpus)


def capacities(ctx: Context, name: str, pool: Pool, table: Mapping[str, float]) -> list[float]:
    """One number > 0 for each replica, in the file's order."""
    told = [item.weight is not None or item.gpu is not None for item in pool.replicas]
    if any(told) and not all(told):
        for index, tells in enumerate(told):
            if not tells:
                ctx.error(
                    "LB203", "has neither a gpu nor a weight, but others of its pool do",
                    ("pools", name, "replicas", index), "give it one, or none to all",
                )  # fmt: skip
    return [_capacity(ctx, ("pools", name, "replicas", index), item, table) for index, item in enumerate(pool.replicas)]


def gpu_count(item: Replica) -> int:
    return item.gpu_count if item.gpu_count is not None else max(1, len(item.devices))


def _capacity(ctx: Context, path: tuple[str | int, ...], item: Replica, table: Mapping[str, float]) -> float:
    if item.gpu_count is not None and item.devices and item.gpu_count != len(item.devices):
        ctx.error(
            "LB205", f"gpu_count is {item.gpu_count}, but {len(item.devices)} devices are named", (*path, "gpu_count"),
            "leave gpu_count out, or name all devices",
        )  # fmt: skip
    known = item.gpu is None or ctx.known("LB204", "GPU", item.gpu, table, (*path, "gpu"))
    if item.weight is not None:
        return item.weight
    return table[item.gpu] * gpu_count(item) if item.gpu is not None and known else 1.0
