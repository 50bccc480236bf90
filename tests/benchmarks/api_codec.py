"""`python -m tests.benchmarks.api_codec`: measure the conversion of 10,000 replicas to the API's JSON and back.

The codec of the API is compared with `json` of the standard library, which decodes to dictionaries without any check.
Times are medians of processor time in milliseconds.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Callable

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.api.codec import decode_json, encode, json_text
from tests.support.api import REPLICA, THEN, pool

POOLS, REPLICAS, RUNS = 100, 100, 15


def document() -> schema.Pools:
    """Return 100 pools of 100 replicas with live values."""
    return schema.Pools(tuple(_pool(number) for number in range(POOLS)))


def _pool(number: int) -> schema.Pool:
    rows = (
        replace(
            REPLICA, name=f"gpu-{number:03}-{index:03}", address=f"10.0.{number}.{index}:8000", gpu="h100", region="eu",
            zone="eu-1", state_since=THEN, weight=1.0 - index / 1000, declared=0.01, share=0.012345,
            acknowledged=0.012345, observed=0.012001, in_flight=index, idle=False, requests_per_second=12.345678,
            errors=0.01, first_byte_p50=0.123456, first_byte_p99=0.654321,
        )
        for index in range(REPLICAS)
    )  # fmt: skip
    return pool(f"pool-{number:03}", *rows)


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        began = _cpu()
        work()
        times.append(_cpu() - began)
    return 1000 * statistics.median(times)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a row for each codec."""
    pools = document()
    text = encode(pools, indent=1).encode()
    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "json": (lambda: json_text(pools, indent=1), lambda: json.loads(text)),
        "lbctl.api.codec": (lambda: encode(pools, indent=1), lambda: decode_json(schema.Pools, text)),
    }
    print(f"{len(text) / 1e6:.1f} MB\n{'':<16}{'encode':>10}{'decode':>10}")
    for name, (write, read) in rows.items():
        print(f"{name:<16}{_median(write):>10.1f}{_median(read):>10.1f}")


if __name__ == "__main__":
    main()
