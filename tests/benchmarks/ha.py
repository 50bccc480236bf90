"""`python -m tests.benchmarks.ha [FAULT…]`: measure a control plane of three members during faults, under load.

Requests run at a constant rate while the faults of `ha_faults` are injected one after the other, with each selected
store. Each row of the Markdown table has the results for one fault:
- the time until a member leads again (at most the lease and 2 s),
- the number of requests, and of failed ones (limit: none),
- the largest change of a weight within an interval (limit: `max_step`),
- how many resources an Envoy received that it already had (limit: none),
- whether an override from before the fault is held everywhere.

Values beyond their limit are marked. `--all` runs all faults with Redis and etcd, then `ha_sharing`, and prints the
tables of docs/develop/ha-measurements.md in about 25 minutes. `--short` does the same with fewer kills and shorter
pauses in about eight minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.ha_faults import FAKETIME, FAULTS, LEASE, NAMES, Sampler, Size, Trial, running, shares
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import eventually
from tests.support.stores import STORES

_RATE = 300.0
"""Requests per second over all proxies."""
_MAX_SECONDS = LEASE + 2.0
"""Maximum seconds until a member leads again."""
_MAX_MOVE = 0.3
"""Limit for the change of a weight relative to the median weight, which may itself change by `max_step`."""
_FULL, _SHORT = Size(kills=20, pause=30.0, down=300.0, steps=12), Size(kills=5, pause=10.0, down=20.0, steps=4)
_HEAD = """\
| {store}: fault | led again after | requests | failed | largest step | sent again | override |
|---|---|---|---|---|---|---|"""


def _marked(text: str, *, held: bool) -> str:
    return text if held else f"{text} MISSED"


def _row(trial: Trial, name: str) -> None:
    """Inject the fault under load, and print its row."""
    text, fault = FAULTS[name]
    sampler, request = Sampler(trial.envoys), Request("GET", "/health")
    sites = [envoy.client(envoy.node) for envoy in trial.envoys[:2]]
    with ExitStack() as stack:
        loads = [stack.enter_context(site.steady(_RATE / 4, request)) for site in sites]
        # A reload closes idle connections while a client may be sending a request.
        loads += [stack.enter_context(site.steady(_RATE / 4, request, keep_alive=False)) for site in trial.edges]
        loads.append(stack.enter_context(trial.envoys[2].client(NAMES[2]).steady(_RATE / 20, Request("GET", "/?n=20"))))
        eventually(lambda: min(shares(trial.envoys[0]).values()) < 0.8, 60)
        sampler.start()
        times = list(fault(trial))
        time.sleep(2)
        sampler.end()
    responses = [response for load in loads for response in load.load.responses]
    failed = [item for item in responses if not item.ok]
    override = all(plane.control.get("overrides")["overrides"] for plane in trial.planes if plane.control.ready())
    took = f"{min(times):.1f}–{max(times):.1f} s" if len(times) > 1 else f"{times[0]:.1f} s"
    cells = (
        text.format(trial.size),
        _marked(took, held=max(times) <= _MAX_SECONDS),
        f"{len(responses):,}",
        _marked(str(len(failed)), held=not failed),
        _marked(f"{sampler.largest:.0%}", held=sampler.largest < _MAX_MOVE),
        _marked(str(sampler.again), held=not sampler.again),
        _marked("held" if override else "lost", held=override),
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    for item in failed[:3]:
        print("   ", item)


def _trial(store: str, faults: list[str], size: Size) -> None:
    print(_HEAD.format(store=store), flush=True)
    with running(store, size) as trial:
        for name in faults:
            _row(trial, name)


def main() -> None:
    """Inject the selected faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ha")
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []])
    parser.add_argument("--all", action="store_true", help="Redis, etcd, and what ha_sharing measures")
    parser.add_argument("--short", action="store_true", help="fewer kills, shorter pauses")
    parser.add_argument("--store", choices=STORES, default="redis")
    options = parser.parse_args()
    faults = options.faults or list(FAULTS)
    if "clock" in faults and not Path(FAKETIME).exists():
        parser.error(f"{FAKETIME} is missing: apt-get install faketime")
    for store in ("redis", "etcd") if options.all else (options.store,):
        _trial(store, faults, _SHORT if options.short else _FULL)
    if options.all:
        short = ["--short"] if options.short else []
        print(flush=True)
        sys.exit(subprocess.run([sys.executable, "-m", "tests.benchmarks.ha_sharing", *short], check=False).returncode)


if __name__ == "__main__":
    main()
