"""`python -m tests.benchmarks.build`: measure the processor time for building and serialising the resources of an
Envoy.

Rows cover changed weights, one changed pool, and reading a fleet of a thousand files of which one has changed.
"""

from __future__ import annotations

import gc
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot
from lbctl.model.load import texts
from lbctl.serve.fleet.certificates import CertificateCache
from lbctl.serve.fleet.reader import read
from lbctl.targets.load import Loaded, load
from lbctl.xds.build.snapshot_cache import Builder
from tests.benchmarks.fleets import fleet
from tests.support.weights import plain_weights

_ENVOY = Proxy("somebody", "envoy", (1, 40))
_RUNS = 15


def lines() -> Iterator[str]:
    """Yield the rows of the table. The garbage collector is configured as in `lbctl`."""
    gc.set_threshold(100_000, 50)
    yield _line("all weights of 10 pools × 1,000", _reweighted(fleet(10, 1000), pools=10), 0.060)
    many = fleet(1000, 10)
    yield _line("one weight of 1,000 pools × 10", _reweighted(many, pools=1), 0.010)
    other = many.replace("127.100.0.3:9", "127.200.0.3:9", 1)
    yield _line("one changed pool of 1,000 × 10", _exchanged(many, other))
    with tempfile.TemporaryDirectory() as directory:
        yield _line("reading one changed file of 1,000", _reread(many, Path(directory)))


def _reweighted(text: str, pools: int) -> Callable[[], object]:
    """Return a function that builds the fleet with new weights for all replicas of this number of pools."""
    made, builder, chance = _loaded(text), Builder(), random.Random(1)
    builder.build(made, Snapshot(made.compiled.topology, {}, secrets=made.secrets))
    chosen = made.compiled.topology.pools[:pools]

    def work() -> None:
        weights = {pool.name: {item.name: chance.uniform(0.5, 2) for item in pool.replicas} for pool in chosen}
        snapshot = Snapshot(made.compiled.topology, plain_weights(weights), secrets=made.secrets)
        builder.build(made, snapshot).resources(_ENVOY)

    return work


def _exchanged(*texts: str) -> Callable[[], object]:
    """Return a function that builds the given fleets in turn, each replacing the previous one."""
    builder, fleets = Builder(), [_loaded(text) for text in texts]
    number = 0

    def work() -> None:
        nonlocal number
        made = fleets[number % len(fleets)]
        number += 1
        builder.build(made, Snapshot(made.compiled.topology, {}, secrets=made.secrets)).resources(_ENVOY)

    return work


def _reread(text: str, directory: Path) -> Callable[[], object]:
    """Return a function that changes a port in one file of a directory with a file per pool, and reads the fleet
    again."""
    written = yaml.load(text, Loader=yaml.CSafeLoader)
    pools = written.pop("pools")
    (directory / "fleet.yaml").write_text(yaml.dump(written, Dumper=yaml.CSafeDumper))
    for name, pool in pools.items():
        (directory / f"{name}.yaml").write_text(
            yaml.dump({"version": 1, "pools": {name: pool}}, Dumper=yaml.CSafeDumper)
        )
    changed, number = directory / "pool-7.yaml", 0

    def work() -> None:
        nonlocal number
        number += 1
        changed.write_text(re.sub(r":\d+$", f":{8000 + number}", changed.read_text(), count=1, flags=re.MULTILINE))
        contents = read(
            texts([str(directory)], Diagnostics()), {}, CertificateCache(), lambda *_: Secrets(), Diagnostics()
        )
        assert contents.loaded is not None, "the fleets of the benchmarks are good"

    return work


def _loaded(text: str) -> Loaded:
    made = load(["-"], Diagnostics(), stdin=BytesIO(text.encode()))
    assert made is not None, "the fleets of the benchmarks are good"
    return made


def _line(name: str, work: Callable[[], object], limit: float | None = None) -> str:
    work()
    gc.collect()
    gc.freeze()
    seconds = []
    for _ in range(_RUNS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    median, span = statistics.median(seconds), f"{min(seconds) * 1000:.1f}–{max(seconds) * 1000:.1f} ms"
    held = "" if limit is None else f"{limit * 1000:5.0f} ms {'ok' if median <= limit else 'MISSED'}"
    return f"{f'build, {name}':<44} {median * 1000:5.1f} ms {span:>15} {held}".rstrip()


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
