"""`python -m tests.benchmarks.control`: measure the processor time of one `step` that decides about all replicas of a
pool."""

from __future__ import annotations

import gc
import statistics
import time

from lbctl.control.events import Observed
from lbctl.control.inputs import Observation
from lbctl.control.state import State
from lbctl.control.step import step
from tests.support.control import NOW, pool, seen, started

REPLICAS = 10_000
LIMIT = 0.030
_LOOKS = 25


def looks(names: tuple[str, ...]) -> list[Observed]:
    """Return looks in which every replica reports new evidence and every health signal; a few replicas are slow."""
    found = []
    for look in range(_LOOKS):
        now = NOW + 5.0 * (look + 1)
        news: dict[str, Observation] = {
            name: seen(now, speed=0.5 if place % 97 == 0 else 1.0, progress=100.0 * look, temperature=60.0, xid=0.0)
            for place, name in enumerate(names)
        }
        found.append(Observed(now, "llama", news))
    return found


def line() -> str:
    """Return the row of the table. The garbage collector is configured as in `lbctl`."""
    gc.set_threshold(100_000, 50)
    state: State = started(pool(replicas=REPLICAS))
    events = looks(tuple(item.replica.name for item in state.pools["llama"].replicas))
    seconds = []
    gc.freeze()
    for event in events:
        began = time.process_time()
        state, _ = step(state, event)
        seconds.append(time.process_time() - began)
    median, span = statistics.median(seconds), f"{min(seconds) * 1000:.0f}–{max(seconds) * 1000:.0f} ms"
    held = "ok" if median <= LIMIT else "MISSED"
    return f"{f'step, {REPLICAS:,} replicas':<44} {median * 1000:5.0f} ms {span:>15} {LIMIT * 1000:5.0f} ms {held}"


if __name__ == "__main__":
    print(line())
