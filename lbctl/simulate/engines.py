"""Engines with continuous batching: chunked prefill, decoding slowed by the batch size, and a bounded KV cache.

An iteration generates one token for every running sequence and prefills up to `budget` prompt tokens. Iterations
without prefill are merged until a response ends, an arrival can be admitted, or the cache is full. If the cache is
full, the youngest sequence is preempted and its prompt is prefilled again later, as in vLLM. Prefixes are kept in an
8-way cache with LRU replacement. Cached tokens are not prefilled again.
"""

from __future__ import annotations

import math

from lbctl.simulate.balancing import PICKED
from lbctl.simulate.compiled import jit
from lbctl.simulate.state import DECODE, GAVE_UP, IDLE, PREFILL, EngineColumns, Requests, RunProgress, RunSettings

WAYS = 8
"""Number of blocks per set of the prefix cache."""


@jit
def enqueue(engines: EngineColumns, requests: Requests, replica: int, request: int) -> None:
    """Append a request to the replica's queue."""
    requests.follower[request] = -1
    if engines.waiting[replica]:
        requests.follower[engines.tail[replica]] = request
    else:
        engines.head[replica] = request
    engines.tail[replica] = request
    engines.waiting[replica] += 1


@jit
def begin(
    engines: EngineColumns, requests: Requests, settings: RunSettings, progress: RunProgress, replica: int, now: float
) -> None:
    """Start the next iteration or run of iterations. Set `end`, which is infinite without work."""
    preempt(engines, requests, settings, replica)
    admit(engines, requests, settings, progress, replica)
    running = engines.running[replica]
    factor = engines.factor[replica]
    engines.begun[replica] = now
    if factor <= 0.0 or (running == 0 and engines.reading[replica] == 0):
        engines.kind[replica] = IDLE
        engines.end[replica] = math.inf
        return
    if engines.reading[replica]:
        tokens = prefill_tokens(engines, settings, replica)
        engines.kind[replica] = PREFILL
        engines.tokens[replica] = tokens
        engines.planned[replica] = 1
        engines.end[replica] = now + duration(engines, replica, 1, tokens)
        return
    planned = engines.run_done[replica * settings.slots] - engines.step[replica]
    if running > 1:
        planned = min(planned, max(1, int((engines.cache[replica] - engines.context[replica]) // running)))
    engines.kind[replica] = DECODE
    engines.tokens[replica] = 0
    engines.planned[replica] = planned
    engines.end[replica] = now + duration(engines, replica, planned, 0)


@jit
def duration(engines: EngineColumns, replica: int, iterations: int, tokens: int) -> float:
    """Return the duration, in seconds, of the next `iterations`; the first of them prefills `tokens`."""
    running = engines.running[replica]
    each = engines.a[replica] + engines.b[replica] * running + engines.c[replica] * engines.context[replica]
    growth = engines.c[replica] * running * iterations * (iterations - 1) * 0.5
    seconds: float = (each * iterations + growth + engines.p[replica] * tokens) / engines.factor[replica]
    return seconds


@jit
def iterations_until(engines: EngineColumns, replica: int, now: float) -> int:
    """Return the number of iterations in the current run (1 or more), up to the end of the iteration at `now`."""
    running = engines.running[replica]
    each = engines.a[replica] + engines.b[replica] * running + engines.c[replica] * engines.context[replica]
    half = engines.c[replica] * running * 0.5
    passed = (now - engines.begun[replica]) * engines.factor[replica]
    linear = each - half
    count = 2.0 * passed / (linear + math.sqrt(linear * linear + 4.0 * half * passed))
    iterations: int = max(1, min(engines.planned[replica], math.ceil(count - 1e-9)))
    return iterations


@jit
def shorten(engines: EngineColumns, replica: int, now: float) -> None:
    """End a run of iterations after the iteration that is running at `now`."""
    if engines.kind[replica] == DECODE:
        engines.planned[replica] = iterations_until(engines, replica, now)
        engines.end[replica] = engines.begun[replica] + duration(engines, replica, engines.planned[replica], 0)


@jit
def finish(
    engines: EngineColumns, requests: Requests, settings: RunSettings, progress: RunProgress, replica: int
) -> None:
    """Account for the iterations that end now. Requests whose prefill is complete start to generate."""
    now = engines.end[replica]
    seconds = now - engines.begun[replica]
    running, iterations = engines.running[replica], engines.planned[replica]
    engines.step[replica] += iterations
    engines.busy_seconds[replica] += seconds
    engines.prefill_tokens[replica] += engines.tokens[replica]
    engines.decode_tokens[replica] += running * iterations
    engines.itl_seconds[replica] += running * seconds
    engines.itl_count[replica] += running * iterations
    engines.context[replica] += running * iterations + engines.tokens[replica]
    if engines.kind[replica] == PREFILL:
        complete_prefill(engines, requests, settings, progress, replica, now)


@jit
def complete_prefill(
    engines: EngineColumns, requests: Requests, settings: RunSettings, progress: RunProgress, replica: int, now: float
) -> None:
    """Prefill the iteration's tokens in order of admission, and drop requests whose clients have left."""
    base = replica * settings.slots
    tokens, kept = engines.tokens[replica], 0
    for slot in range(engines.reading[replica]):
        request, left = engines.read_request[base + slot], engines.read_left[base + slot]
        part = min(left, tokens)
        tokens -= part
        if requests.state[request] == GAVE_UP:
            engines.context[replica] -= requests.need[request] - (left - part)
            continue
        if part < left:
            engines.read_request[base + kept] = request
            engines.read_left[base + kept] = left - part
            kept += 1
            continue
        if requests.first[request] < 0.0:
            requests.first[request] = now
            note(requests, settings, progress, 2 * request)
        engines.decode_tokens[replica] += 1
        push(engines, settings, replica, request, engines.step[replica] + requests.rest[request] - 1)
    engines.reading[replica] = kept


@jit
def note(requests: Requests, settings: RunSettings, progress: RunProgress, entry: int) -> None:
    """Add an entry to the log, which only the picker reads."""
    if settings.policy != PICKED:
        return
    requests.log[progress.logged[0]] = entry
    progress.logged[0] += 1


@jit
def admit(
    engines: EngineColumns, requests: Requests, settings: RunSettings, progress: RunProgress, replica: int
) -> None:
    """Admit queued requests in order while sequences and cache have capacity."""
    base = replica * settings.slots
    promised = engines.context[replica]
    for slot in range(engines.reading[replica]):
        promised += engines.read_left[base + slot]
    while engines.waiting[replica] and engines.running[replica] + engines.reading[replica] < engines.sequences[replica]:
        request = engines.head[replica]
        if requests.state[request] == GAVE_UP:
            engines.left[replica] -= 1
        else:
            needed = promised + requests.need[request] + engines.running[replica]
            if promised > 0 and needed > engines.cache[replica]:
                return
            hit = cached_tokens(engines, requests, settings, progress, replica, request)
            slot = base + engines.reading[replica]
            engines.read_request[slot] = request
            engines.read_left[slot] = requests.need[request] - hit
            engines.reading[replica] += 1
            engines.context[replica] += hit
            if settings.block:
                requests.hit[request] = max(requests.hit[request], hit)
            promised += requests.need[request]
            progress.admissions[0] += 1
            requests.admitted[request] = progress.admissions[0]
        engines.head[replica] = requests.follower[request]
        engines.waiting[replica] -= 1


@jit
def prefill_tokens(engines: EngineColumns, settings: RunSettings, replica: int) -> int:
    """Return the number of prompt tokens that the next iteration prefills."""
    base = replica * settings.slots
    left = 0
    for slot in range(engines.reading[replica]):
        left += engines.read_left[base + slot]
    tokens: int = min(left, max(1, settings.budget - engines.running[replica]))
    return tokens


@jit
def preempt(engines: EngineColumns, requests: Requests, settings: RunSettings, replica: int) -> None:
    """Move the youngest sequences to the head of the queue until the next iteration fits into the cache."""
    base = replica * settings.slots
    while engines.running[replica] + engines.reading[replica] > 1:
        needed = engines.running[replica] + prefill_tokens(engines, settings, replica)
        if engines.context[replica] + needed <= engines.cache[replica]:
            return
        if engines.reading[replica]:
            engines.reading[replica] -= 1
            request = engines.read_request[base + engines.reading[replica]]
            engines.context[replica] -= requests.need[request] - engines.read_left[base + engines.reading[replica]]
        else:
            request = stop_youngest(engines, requests, settings, replica)
        requests.follower[request] = engines.head[replica] if engines.waiting[replica] else -1
        if not engines.waiting[replica]:
            engines.tail[replica] = request
        engines.head[replica] = request
        engines.waiting[replica] += 1
        requests.admitted[request] = 0
        engines.preempted[replica] += 1


@jit
def stop_youngest(engines: EngineColumns, requests: Requests, settings: RunSettings, replica: int) -> int:
    """Remove the most recently admitted sequence, and return its request.

    The request's whole context must be prefilled again.
    """
    base, youngest = replica * settings.slots, 0
    for slot in range(1, engines.running[replica]):
        other = requests.admitted[engines.run_request[base + slot]]
        if other > requests.admitted[engines.run_request[base + youngest]]:
            youngest = slot
    request = int(engines.run_request[base + youngest])
    produced = requests.rest[request] - (engines.run_done[base + youngest] - engines.step[replica])
    engines.context[replica] -= requests.need[request] + produced - 1
    requests.need[request] += produced
    requests.rest[request] -= produced
    engines.run_done[base + youngest] = -1
    rise(engines, settings, replica, youngest)
    pop(engines, settings, replica)
    return request


@jit
def cached_tokens(
    engines: EngineColumns, requests: Requests, settings: RunSettings, progress: RunProgress, replica: int, request: int
) -> int:
    """Return the number of the prompt's tokens that are in the prefix cache, and add the whole prompt to it."""
    if settings.block == 0:
        return 0
    hits, contiguous = 0, True
    begin_at = requests.block_start[request]
    for index in range(requests.block_count[request]):
        is_cached = touch(engines, progress, replica, requests.blocks[begin_at + index])
        contiguous = contiguous and is_cached
        if contiguous:
            hits += 1
    tokens: int = max(0, min(hits * settings.block, requests.need[request] - 1))
    return tokens


@jit
def touch(engines: EngineColumns, progress: RunProgress, replica: int, block: int) -> bool:
    """Return whether the block is cached, and mark it as the most recently used block in its set."""
    base = engines.cache_start[replica] + block % engines.cache_sets[replica] * WAYS
    progress.uses[0] += 1
    oldest = base
    for slot in range(base, base + WAYS):
        if engines.cached_block[slot] == block:
            engines.cached_at[slot] = progress.uses[0]
            return True
        if engines.cached_at[slot] < engines.cached_at[oldest]:
            oldest = slot
    engines.cached_block[oldest] = block
    engines.cached_at[oldest] = progress.uses[0]
    return False


# ── Heaps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@jit
def push(engines: EngineColumns, settings: RunSettings, replica: int, request: int, done: int) -> None:
    """Add a running sequence that completes at a given step."""
    slot = engines.running[replica]
    engines.running[replica] += 1
    engines.run_request[replica * settings.slots + slot] = request
    engines.run_done[replica * settings.slots + slot] = done
    rise(engines, settings, replica, slot)


@jit
def rise(engines: EngineColumns, settings: RunSettings, replica: int, slot: int) -> None:
    """Move a sequence towards the root of the heap to its correct position."""
    base = replica * settings.slots
    while slot and engines.run_done[base + slot] < engines.run_done[base + (slot - 1) // 2]:
        swap(engines, base + slot, base + (slot - 1) // 2)
        slot = (slot - 1) // 2


@jit
def pop(engines: EngineColumns, settings: RunSettings, replica: int) -> int:
    """Remove the sequence that completes first, and return its request."""
    base = replica * settings.slots
    engines.running[replica] -= 1
    size = engines.running[replica]
    request = engines.run_request[base]
    swap(engines, base, base + size)
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= size:
            return int(request)
        if child + 1 < size and engines.run_done[base + child + 1] < engines.run_done[base + child]:
            child += 1
        if engines.run_done[base + slot] <= engines.run_done[base + child]:
            return int(request)
        swap(engines, base + slot, base + child)
        slot = child


@jit
def swap(engines: EngineColumns, left: int, right: int) -> None:
    """Swap two running sequences."""
    request, done = engines.run_request[left], engines.run_done[left]
    engines.run_request[left], engines.run_done[left] = engines.run_request[right], engines.run_done[right]
    engines.run_request[right], engines.run_done[right] = request, done


@jit
def reschedule(engines: EngineColumns, replica: int) -> None:
    """Restore the heap of engines, ordered by end time, after one of them has changed."""
    heap, place, end = engines.heap, engines.place, engines.end
    slot = place[replica]
    while slot and end[heap[slot]] < end[heap[(slot - 1) // 2]]:
        slot = exchange(heap, place, slot, (slot - 1) // 2)
    size = len(heap)
    while True:
        child = 2 * slot + 1
        if child >= size:
            return
        if child + 1 < size and end[heap[child + 1]] < end[heap[child]]:
            child += 1
        if end[heap[slot]] <= end[heap[child]]:
            return
        slot = exchange(heap, place, slot, child)


@jit
def exchange(heap, place, one: int, other: int) -> int:  # type: ignore[no-untyped-def]
    """Swap two engines in the heap, and return the second position."""
    heap[one], heap[other] = heap[other], heap[one]
    place[heap[one]] = one
    place[heap[other]] = other
    return other
