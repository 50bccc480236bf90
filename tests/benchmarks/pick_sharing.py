"""`python -m tests.benchmarks.pick_sharing [KIND …]`: the bytes that two pickers exchange at 1,000 picks per second.

Each request goes to one of the pickers at random, on a simulated clock. At the intervals of the real pickers, each
encodes its real messages with its counts and its new affinity entries, and the other one accepts them. A row has the
bytes and messages per second of both directions together, without the framing of gRPC and TLS. With more pickers, each
message goes to each of the others.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import exchange, saved_memory, shared_memory
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.service import PickService
from tests.benchmarks.pick_in_process import body

RATE, SECONDS = 1_000, 10
_CONVERSATIONS, _WARM_UP = 2_000, 5
"""Number of live sessions, and the seconds before the measurement. By then, each session has sent two requests."""
_MEAN_DURATION = 2.0
_MESSAGE = "the picker names a replica for each request and the proxy carries it " * 6
_CALLER = Caller("chat")


def _new_session(number: int) -> PickerQuestion:
    return PickerQuestion(_CALLER, {"x-session-id": [f"s{number}"]}, b"", 0)


def _new_prompt(number: int) -> PickerQuestion:
    return _with_body(number, body(number))


def _known_session(number: int) -> PickerQuestion:
    return _new_session(number % _CONVERSATIONS)


def _next_turn(number: int) -> PickerQuestion:
    """Return the next request of a conversation, which has two messages of 400 bytes more than the one before."""
    turn, session = divmod(number, _CONVERSATIONS)
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": f"{session} {place} {_MESSAGE}"[:400]} for place in range(20 + 2 * turn)
    ]
    return _with_body(session, json.dumps({"model": "m", "messages": messages}).encode())


def _with_body(session: int, text: bytes) -> PickerQuestion:
    headers = {"x-session-id": [f"s{session}"], "content-type": ["application/json"]}
    return PickerQuestion(_CALLER, headers, text, len(text))


KINDS: dict[str, Callable[[int], PickerQuestion]] = {
    "known sessions": _known_session,
    "next turns": _next_turn,
    "new sessions": _new_session,
    "new prompts": _new_prompt,
}
"""Name → the request with a number. All but the first have a session that is new or has a longer prompt each time."""


@dataclass(slots=True)
class _Traffic:
    counts: int = 0
    entries: int = 0
    messages: int = 0


class _Picker:
    def __init__(self, name: str, clock: Callable[[], float], replica_count: int) -> None:
        self.name = name
        self.memory = AffinityMemory(records_changes=True)
        self.service = PickService(clock, random.Random(name), self.memory)
        replicas = tuple(
            Candidate(f"llama-{number:03}", f"10.0.{number // 250}.{number % 250}:8000")
            for number in range(replica_count)
        )
        self.service.set_table("chat", PoolTable("chat", PickPolicy((SessionKey(header="x-session-id"),)), replicas))

    def send_counts(self, other: _Picker, traffic: _Traffic) -> None:
        message = exchange.message_of(self.name, self.service.counts(), self.service.demands())
        traffic.counts += len(message)
        traffic.messages += 1
        parsed = exchange.parse(message)
        assert parsed is not None
        other.service.merge(parsed[0], parsed[1])

    def send_entries(self, other: _Picker, traffic: _Traffic) -> None:
        for batch in self.memory.batches(self.memory.take_changes()):
            message = shared_memory.encode(self.name, batch)
            traffic.entries += len(message)
            traffic.messages += 1
            parsed = shared_memory.parse(message)
            assert parsed is not None
            other.service.merge_affinity(parsed[2], self.name < other.name)


def measure(question: Callable[[int], PickerQuestion], replica_count: int, seconds: int = SECONDS) -> _Traffic:
    """Return the bytes and messages that two pickers exchange in this time, after the warm-up."""
    now = 0.0
    pickers = [_Picker(name * 16, lambda: now, replica_count) for name in "ab"]
    generator = random.Random(1)
    ends: list[tuple[float, int, str]] = []
    traffic = _Traffic()
    every = {
        round(RATE * exchange.INTERVAL): _Picker.send_counts,
        round(RATE * saved_memory.INTERVAL): _Picker.send_entries,
    }
    for number in range(RATE * (_WARM_UP + seconds)):
        now = number / RATE
        if number == RATE * _WARM_UP:
            traffic = _Traffic()
        while ends and ends[0][0] <= now:
            _, place, pick = heapq.heappop(ends)
            pickers[place].service.finished(pick)
        place = generator.randrange(2)
        answer = pickers[place].service.pick(question(number))
        heapq.heappush(ends, (now + generator.expovariate(1 / _MEAN_DURATION), place, answer.id))
        for picks, send in every.items():
            if number % picks == 0:
                for sender, receiver in (pickers, reversed(pickers)):
                    send(sender, receiver, traffic)
    return traffic


def main() -> None:
    """Print a row for each kind of request and size of the pool."""
    for kind in sys.argv[1:] or KINDS:
        for replica_count in (16, 200):
            found = measure(KINDS[kind], replica_count)
            counts, entries = found.counts / SECONDS, found.entries / SECONDS
            print(
                f"{kind:<16} {replica_count:4} replicas  memory {entries / 1e3:7.1f} + counts {counts / 1e3:7.1f} = "
                f"{(entries + counts) / 1e3:7.1f} kB/s in {found.messages / SECONDS:.0f} messages",
                flush=True,
            )


if __name__ == "__main__":
    main()
