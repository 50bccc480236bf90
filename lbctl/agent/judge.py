"""Evaluates a replica's health from GPU and engine readings. This module does no I/O and does not read the clock.

Faults that the engine does not survive are remembered until it has restarted. They are a fatal XID, an uncorrectable
memory error, a lost GPU and a driver that could not be read. Once the driver and all GPUs can be read again, a
successful probe also clears the last two, because it shows that the engine still has its GPUs. For this purpose, and if
the engine seems wedged, the agent sends a probe even if the user has not enabled probes. Otherwise, an idle replica
would stay unhealthy forever after a single slow response from the driver. After a failed probe, the agent probes the
engine even while it is busy.

Unknown values change nothing. A replica that is asleep or wedged remains in that state while the metrics page cannot be
read, and a failed row remap remains until the driver reports that it has been resolved.

The engine counts as restarted if it refused connections and now accepts them again, if its start time has changed, or
if its counters have decreased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from lbctl.agent.assessment import Assessment, Reason, State
from lbctl.agent.memory import GpuHistory, Memory, ProgressWatch, RequestKind
from lbctl.agent.readings import EngineReading, GpuReading, GpuReadings
from lbctl.agent.settings import NO_PAGE, AgentSettings
from lbctl.base.bounded import size

PROBE_INTERVAL = 30.0
"""Minimum number of seconds between two probes."""
PROBE_IDLE = 10.0
"""Seconds without a request after which an engine counts as idle enough for a probe."""
WARMUP_RETRY = 1.0
"""Seconds between a failed warm-up request and the next attempt."""
UNREAD = Assessment("unhealthy", (Reason("engine", "not read yet"),))
"""The assessment before the first complete reading."""
_UNCERTAIN_STALL_FACTOR = 4
"""Multiplier for `stalled_after` if the progress counter changes only when a request ends."""
_MEMORY_RECOVERY_FACTOR = 1.1
"""Multiple of the limit above which free memory counts as sufficient again."""
_MEMORY_READINGS = (2, 1)
_SLOWDOWN_READINGS = (2, 5)
"""Number of consecutive readings before the limit counts as exceeded, and before it no longer does."""
_MAX_PROBE_FAILURES = 2
_MIN_WEIGHT = 5
_WEIGHT_STEP = 5
_HEAT = frozenset({"sw_thermal", "hw_thermal", "hw_slowdown"})
_UNREADABLE = frozenset({"gpu_lost", "driver"})
_RESTART_TOLERANCE = 1.0
"""Maximum difference, in seconds, between start times that count as equal. Engines calculate the time differently."""
_EARLIER_WORK = ("finished", "decode_tokens", "compute_count")
"""Counters that are 0 or absent in a newly started engine."""


def step(
    settings: AgentSettings, memory: Memory, gpus: GpuReadings, engine: EngineReading, now: float
) -> tuple[Memory, Assessment]:
    """Return the memory and the assessment after these readings. A repeated reading is not counted twice."""
    memory = _after_engine(settings, memory, engine)
    memory = _after_gpus(settings, memory, gpus)
    return memory, _assessment(settings, memory, gpus, engine, now)


def wants_request(settings: AgentSettings, memory: Memory, now: float) -> RequestKind | Literal[""]:
    """Return the kind of request to send now, or an empty string if no request is due.

    Call this only while no request is in progress.
    """
    engine = memory.engine
    if engine is None or engine.problem or memory.is_asleep or memory.draining_since is not None:
        return ""
    if _is_warming_up(settings, memory):
        return "warmup" if now >= memory.warmup_due else ""
    is_idle = memory.idle_since is not None and engine.at - memory.idle_since >= PROBE_IDLE
    can_recover = (
        memory.progress.is_wedged
        or _fails_probes(settings, memory)
        or (memory.gpus_readable and _has_unreadable(memory.faults))
    )
    if not can_recover and not (settings.probe and is_idle):
        return ""
    return "probe" if now - memory.probed_at >= PROBE_INTERVAL else ""


def requested(memory: Memory, kind: RequestKind, problem: str, now: float) -> Memory:
    """Return the memory after a request has ended.

    `problem` is the reason why it failed, or an empty string if the engine responded.
    """
    if kind == "warmup":
        if problem:
            return replace(memory, warmup_problem=problem, warmup_due=now + WARMUP_RETRY)
        return replace(memory, warmed=(memory.warmed or 0) + 1, warmup_problem="")
    if problem:
        return replace(memory, probed_at=now, probe_failures=memory.probe_failures + 1, probe_problem=problem)
    return replace(
        memory,
        probed_at=now,
        probe_failures=0,
        probe_problem="",
        progress=ProgressWatch(memory.progress.value),
        faults=tuple(fault for fault in memory.faults if fault.code not in _UNREADABLE),  # `step` adds the current ones
    )


def drain(memory: Memory, now: float, is_saved: bool) -> Memory:
    """Begin a drain, which lasts until `readmit` or a restart of the engine.

    `is_saved` is whether the drain survives an agent restart.
    """
    since = now if memory.draining_since is None else memory.draining_since
    return replace(memory, draining_since=since, is_drain_saved=is_saved or memory.is_drain_saved)


def readmit(memory: Memory) -> Memory:
    """End a drain, forget the faults, and accept any failed row remaps."""
    return replace(
        memory,
        draining_since=None,
        is_drain_saved=False,
        faults=(),
        accepted_remaps=memory.accepted_remaps | memory.failed_remaps,
        probe_failures=0,
        probe_problem="",
        load_note="",
    )


# ── The engine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _after_engine(settings: AgentSettings, memory: Memory, engine: EngineReading) -> Memory:
    if memory.engine is not None and engine.at <= memory.engine.at:
        return memory
    if _has_restarted(memory, engine):
        memory = _with_fresh_engine(memory)
    started_at = memory.started_at if engine.started_at is None else engine.started_at
    if not engine.reachable:
        return replace(
            memory, engine=engine, started_at=started_at, is_asleep=False, progress=ProgressWatch(), idle_since=None
        )
    awake = engine.signals.get("awake")
    is_asleep = memory.is_asleep if awake is None else not awake
    return replace(
        memory,
        engine=engine,
        started_at=started_at,
        is_asleep=is_asleep,
        progress=ProgressWatch() if is_asleep else _progress(settings, memory.progress, engine),
        warmed=_warmed(settings, engine) if memory.warmed is None else memory.warmed,
        idle_since=_idle_since(memory.idle_since, engine),
    )


def _has_restarted(memory: Memory, engine: EngineReading) -> bool:
    if not engine.reachable:
        return False
    was_down = memory.engine is not None and not memory.engine.reachable
    old, new = memory.started_at, engine.started_at
    has_new_time = old is not None and new is not None and abs(new - old) > _RESTART_TOLERANCE
    return was_down or engine.restarted or has_new_time


def _with_fresh_engine(memory: Memory) -> Memory:
    """Forget everything about the engine's previous process. `_after_gpus` adds the faults that are still present."""
    return Memory(
        restarts=memory.restarts + 1,
        gpus_at=memory.gpus_at,
        failed_remaps=memory.failed_remaps,
        accepted_remaps=memory.accepted_remaps,
        warmed=0,
        probed_at=memory.probed_at,
        save_note=memory.save_note,
    )


def _in_flight(engine: EngineReading) -> bool | None:
    """Return whether requests are running or waiting, or None if the page does not report these numbers."""
    reported = [engine.signals[name] for name in ("running", "queue") if name in engine.signals]
    return any(reported) if reported else None


def _progress(settings: AgentSettings, watch: ProgressWatch, engine: EngineReading) -> ProgressWatch:
    progress, in_flight = engine.signals.get("progress"), _in_flight(engine)
    if in_flight is None and progress in (None, watch.value):
        return watch
    if not in_flight:
        return ProgressWatch(progress)
    if progress is None:
        return watch
    if progress != watch.value or watch.still_since is None:
        return ProgressWatch(progress, engine.at)
    limit = settings.stalled_after * (1 if engine.by_steps else _UNCERTAIN_STALL_FACTOR)
    return replace(watch, is_wedged=engine.at - watch.still_since >= limit)


def _warmed(settings: AgentSettings, engine: EngineReading) -> int | None:
    """Return the number of warm-up requests that count as answered when the agent starts, or None if not yet known.

    The engine counts as newly started if its page shows no earlier work.
    """
    if engine.page_problem:
        return None
    is_fresh = settings.kind != NO_PAGE and not any(engine.counters.get(name) for name in _EARLIER_WORK)
    return 0 if is_fresh else settings.warmup


def _is_warming_up(settings: AgentSettings, memory: Memory) -> bool:
    return memory.warmed is not None and memory.warmed < settings.warmup


def _idle_since(before: float | None, engine: EngineReading) -> float | None:
    if engine.page_problem or _in_flight(engine):
        return None
    return engine.at if before is None else before


# ── The GPUs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _after_gpus(settings: AgentSettings, memory: Memory, gpus: GpuReadings) -> Memory:
    problems = tuple(_problems(memory, gpus))
    lasting = () if gpus.is_starting else problems
    memory = replace(memory, faults=_joined(memory.faults, lasting), gpus_readable=not problems)
    if gpus.at <= memory.gpus_at:
        return memory
    histories = dict(memory.gpus)
    faults: list[Reason] = []
    failed, accepted = set(memory.failed_remaps), set(memory.accepted_remaps)
    for gpu in gpus.gpus:
        faults += _fatal_xids(settings, gpu)
        if gpu.problem:
            continue
        before = histories.get(gpu.name, GpuHistory())
        if before.ecc_errors is not None and gpu.ecc_errors is not None and gpu.ecc_errors > before.ecc_errors:
            faults.append(Reason("ecc", f"GPU {gpu.name} had an uncorrectable memory error", gpu.name))
        histories[gpu.name] = _history(settings, before, gpu)
        if gpu.remap_failed:
            failed.add(gpu.name)
        elif gpu.remap_failed is not None:
            failed.discard(gpu.name)
            accepted.discard(gpu.name)
    return replace(
        memory,
        gpus=histories,
        gpus_at=gpus.at,
        faults=_joined(memory.faults, faults),
        failed_remaps=frozenset(failed),
        accepted_remaps=frozenset(accepted),
    )


def _problems(memory: Memory, gpus: GpuReadings) -> Iterator[Reason]:
    """Yield a reason if the driver cannot be read, or else one for each GPU that is unreadable or missing."""
    if gpus.problem:
        yield Reason("driver", gpus.problem)
        return
    for gpu in gpus.gpus:
        if gpu.problem:
            yield Reason("gpu_lost", f"GPU {gpu.name}: {gpu.problem}", gpu.name)
    for name in sorted(memory.gpus.keys() - {gpu.name for gpu in gpus.gpus}):
        yield Reason("gpu_lost", f"GPU {name} is missing from the driver's list", name)


def _joined(faults: tuple[Reason, ...], new: Iterable[Reason]) -> tuple[Reason, ...]:
    """Add new faults. A known fault gets the newest message. XIDs with different codes are different faults."""
    known = {_identity(fault): fault for fault in faults}
    for fault in new:
        known[_identity(fault)] = fault
    return tuple(known.values())


def _identity(fault: Reason) -> tuple[str, str, str]:
    return fault.code, fault.device, fault.message if fault.code == "xid" else ""


def _has_unreadable(faults: Iterable[Reason]) -> bool:
    return any(fault.code in _UNREADABLE for fault in faults)


def _fatal_xids(settings: AgentSettings, gpu: GpuReading) -> list[Reason]:
    codes = [code for code in gpu.xids if code in settings.fatal_xids]
    return [Reason("xid", f"GPU {gpu.name} reported the fatal XID {code}", gpu.name) for code in codes]


def _history(settings: AgentSettings, before: GpuHistory, gpu: GpuReading) -> GpuHistory:
    limit, free = settings.min_free_memory, gpu.memory_free
    has_memory = limit is None or (free is not None and free > limit * _MEMORY_RECOVERY_FACTOR)
    lacks_memory = limit is not None and free is not None and free < limit
    is_hot = not _HEAT.isdisjoint(gpu.slowdowns)
    is_slow = is_hot and gpu.clock is not None and gpu.clock < 1 - settings.max_slowdown
    is_fast = not is_hot or (gpu.clock is not None and not is_slow)
    return GpuHistory(
        before.ecc_errors if gpu.ecc_errors is None else gpu.ecc_errors,
        before.memory.after(lacks_memory, has_memory, _MEMORY_READINGS),
        before.slowdown.after(is_slow, is_fast, _SLOWDOWN_READINGS),
    )


# ── The result ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _assessment(
    settings: AgentSettings, memory: Memory, gpus: GpuReadings, engine: EngineReading, now: float
) -> Assessment:
    faults = (*_gpu_reasons(settings, memory, gpus), *_engine_reasons(settings, memory, engine, now))
    reasons: list[Reason] = []
    states: list[State] = []
    if memory.draining_since is not None:
        states.append("draining")
        reasons.append(Reason("draining", "the replica is being drained"))
    if faults:
        states.append("unhealthy")
        reasons += faults
    if memory.is_asleep:
        states.append("asleep")
        reasons.append(Reason("asleep", "the engine is asleep"))
    if _is_warming_up(settings, memory):
        states.append("warming_up")
        reasons.append(Reason("warming_up", _warmup_message(settings, memory)))
    state: State = states[0] if states else "healthy"
    return Assessment(state, tuple(reasons), _weight(gpus), tuple(_notes(settings, memory, gpus, engine)))


def _gpu_reasons(settings: AgentSettings, memory: Memory, gpus: GpuReadings) -> Iterator[Reason]:
    problems = tuple(_problems(memory, gpus))
    present = {_identity(problem) for problem in problems}
    for fault in _joined(memory.faults, problems):
        is_over = fault.code in _UNREADABLE and _identity(fault) not in present
        after = "; readable again, but the engine has not restarted or answered a probe since" if is_over else ""
        if is_over and memory.probe_problem:
            after += f": {memory.probe_problem}"
        yield replace(fault, message=fault.message + after)
    for name in sorted(memory.failed_remaps - memory.accepted_remaps):
        yield Reason("row_remap", f"GPU {name} could not remap a faulty memory row: replace the GPU", name)
    for name, history in memory.gpus.items():
        if history.memory.exceeded:
            limit = size(settings.min_free_memory or 0)
            yield Reason("memory", f"GPU {name} has less than {limit} of free memory", name)
        if history.slowdown.exceeded:
            lost = f"{settings.max_slowdown:.0%}"
            yield Reason("slowdown", f"GPU {name} has lost more than {lost} of its clock rate because of heat", name)


def _engine_reasons(settings: AgentSettings, memory: Memory, engine: EngineReading, now: float) -> Iterator[Reason]:
    if engine.problem or not engine.reachable:
        yield Reason("engine", engine.problem or "the engine does not accept connections")
    watch = memory.progress
    if watch.is_wedged and watch.still_since is not None:
        seconds = now - watch.still_since
        yield Reason("wedged", f"requests are in flight, but the engine has made no progress for {seconds:.0f} s")
    if _fails_probes(settings, memory):
        yield Reason("probe", f"the last {memory.probe_failures} probes failed: {memory.probe_problem}")


def _fails_probes(settings: AgentSettings, memory: Memory) -> bool:
    return settings.probe and memory.probe_failures >= _MAX_PROBE_FAILURES


def _warmup_message(settings: AgentSettings, memory: Memory) -> str:
    answered = f"{memory.warmed} of {settings.warmup} warm-up requests answered"
    return f"{answered}; the last one failed: {memory.warmup_problem}" if memory.warmup_problem else answered


def _weight(gpus: GpuReadings) -> int:
    """Return the clock, in percent (steps of 5), of the GPU most slowed down by heat, or 100 if none is slowed down."""
    clocks = [gpu.clock for gpu in gpus.gpus if gpu.clock is not None and not _HEAT.isdisjoint(gpu.slowdowns)]
    steps = round(min([*clocks, 1.0]) * 100 / _WEIGHT_STEP)
    return max(_MIN_WEIGHT, steps * _WEIGHT_STEP)


def _notes(settings: AgentSettings, memory: Memory, gpus: GpuReadings, engine: EngineReading) -> Iterator[str]:
    yield from (note for note in (gpus.note, memory.load_note, memory.save_note) if note)
    for gpu in gpus.gpus:
        if gpu.clock is not None and not _HEAT.isdisjoint(gpu.slowdowns):
            yield f"GPU {gpu.name} runs at {gpu.clock:.0%} of its normal clock rate because of heat"
    if settings.kind == NO_PAGE:
        yield "no metrics page is read, so a wedged engine is not detected"
    elif engine.page_problem and engine.reachable:
        yield f"the metrics page has no values, so a wedged engine is not detected: {engine.page_problem}"
