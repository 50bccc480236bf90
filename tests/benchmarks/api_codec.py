"""`python -m tests.benchmarks.api_codec`: the API's pools of 10,000 replicas as JSON and back, by three codecs.

The hand-written codec, pydantic and msgspec encode and decode the same document, each with the types of the schema:
dataclasses for the first two, structs of the same fields for msgspec. Each codec is imported in a separate process
the cost of its start. Times are medians in milliseconds.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

import msgspec
from pydantic import TypeAdapter

from lbctl.api import schema
from lbctl.api.codec import decode, encode, type_hints
from tests.support.api import REPLICA, THEN, pool

POOLS, REPLICAS, RUNS = 100, 100, 15
_IMPORTS = {"json": "import json", "pydantic": "from pydantic import TypeAdapter", "msgspec": "import msgspec"}


def document() -> schema.Pools:
    """Return 100 pools of 100 replicas with live values."""
    return schema.Pools(tuple(_pool(number) for number in range(POOLS)))


def _pool(number: int) -> schema.Pool:
    live = {"requests_per_second": 12.345678, "errors": 0.01, "first_byte_p50": 0.123456, "first_byte_p99": 0.654321}
    rows = (
        replace(
            REPLICA, name=f"gpu-{number:03}-{index:03}", address=f"10.0.{number}.{index}:8000", gpu="h100", region="eu",
            zone="eu-1", state_since=THEN, weight=1.0 - index / 1000, declared=0.01, share=0.012345,
            acknowledged=0.012345, observed=0.012001, in_flight=index, idle=False, **live,
        )
        for index in range(REPLICAS)
    )  # fmt: skip
    return pool(f"pool-{number:03}", *rows)


def _structs(kind: Any, made: dict[Any, Any]) -> Any:
    """Return the msgspec type for a type of the schema; `made` has those that exist already."""
    if is_dataclass(kind) and isinstance(kind, type):
        if kind not in made:
            hints = type_hints(kind)
            made[kind] = msgspec.defstruct(
                kind.__name__,
                [
                    (item.name, _structs(hints[item.name], made), *(() if item.default is MISSING else (item.default,)))
                    for item in fields(kind)
                ],
                frozen=True,
            )
        return made[kind]
    arguments = tuple(_structs(item, made) if isinstance(item, type) else item for item in get_args(kind))
    if get_origin(kind) is tuple:
        return tuple[arguments]
    if type(None) in arguments:
        return arguments[0] | None
    return kind


def _as_struct(value: Any, made: Mapping[Any, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_struct(item, made) for item in value)
    if not is_dataclass(value):
        return value
    return made[type(value)](**{item.name: _as_struct(getattr(value, item.name), made) for item in fields(value)})


def codecs() -> Mapping[str, tuple[Callable[[], bytes], Callable[[bytes], object]]]:
    """Return name → how it encodes the document, and how it decodes it."""
    pools, made = document(), {}
    adapter: Any = TypeAdapter(schema.Pools)
    kind = _structs(schema.Pools, made)
    structs, encoder, decoder = _as_struct(pools, made), msgspec.json.Encoder(), msgspec.json.Decoder(kind)
    return {
        "json": (lambda: encode(pools).encode(), lambda text: decode(schema.Pools, json.loads(text))),
        "pydantic": (lambda: adapter.dump_json(pools), adapter.validate_json),
        "msgspec": (lambda: encoder.encode(structs), decoder.decode),
        "msgspec, formatted": (lambda: msgspec.json.format(encoder.encode(structs), indent=0), decoder.decode),
    }


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        began = _cpu()
        work()
        times.append(_cpu() - began)
    return 1000 * statistics.median(times)


def _cpu() -> float:
    """Return the processor's time of this process and of its children that have ended, in seconds."""
    used = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in used)


def _start(statement: str) -> float:
    return _median(lambda: subprocess.run([sys.executable, "-c", statement], check=True))


def main() -> None:
    """Print a row for each codec."""
    empty = _start("pass")
    starts = {name: _start(statement) - empty for name, statement in _IMPORTS.items()}
    print(f"{'codec':<20}{'encode':>10}{'decode':>10}{'import':>10}{'MB':>8}")
    for name, (write, read) in codecs().items():
        text = write()
        start = starts[name.partition(",")[0]]
        encoding, decoding = _median(write), _median(lambda text=text, read=read: read(text))
        print(f"{name:<20}{encoding:>10.1f}{decoding:>10.1f}{start:>10.1f}{len(text) / 1e6:>8.1f}")


if __name__ == "__main__":
    main()
