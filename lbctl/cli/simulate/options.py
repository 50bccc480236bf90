"""Parses the options of `lbctl simulate`. All functions in this module raise UsageError for invalid options."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.base.quantities import QuantityError, parse_duration, parse_per_second
from lbctl.ir.pools import Pool, Replica
from lbctl.pick.waiting import PRIORITIES
from lbctl.simulate import capacity, load
from lbctl.simulate.load import TenantShare, conversation
from lbctl.simulate.setup import Outage, SpeedChange
from lbctl.simulate.trace import Trace

_MAX_REQUESTS = 20_000_000
_MIN_SPEED = 0.0001
"""Minimum speed factor for an engine that is not stopped."""
_MAX_COUNT_DIGITS = 9
"""Maximum number of digits in a GPU count."""
_DRAINED = "it is drained and gets no requests, so this has no effect (choose another replica)"


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Command-line options. Options that are not given are None or empty, or have their default value."""

    paths: tuple[str, ...]
    against: tuple[str, ...]
    """Files of other fleets to compare with."""
    trace_file: str | None
    rate: str | None
    """Rate of a synthetic load, for example `5/s`."""
    prompt: float | None
    """Mean prompt length in the synthetic load, in tokens."""
    answer: float | None
    """Mean response length in the synthetic load, in tokens."""
    duration: str | None
    """Duration of the synthetic load, for example `10m`."""
    burst: float | None
    """Mean number of requests that arrive at the same time in the synthetic load."""
    tenant: tuple[str, ...]
    """Tenants in the synthetic load, each as `NAME=SHARE[:PRIORITY]`."""
    pool: str | None
    """Pool that gets the requests."""
    policy: str | None
    """Comma-separated `proxy:algorithm` pairs."""
    speedup: float
    """Factor by which the trace's rate is multiplied."""
    requests: int | None
    """Number of requests to replay from the trace."""
    proxies: int
    """Number of proxies that share the load."""
    engine: str | None
    """Engine costs, as a file or as comma-separated `key=value` pairs for the strongest replica."""
    model: str | None
    """Model whose measured engines are used, according to each replica's GPUs."""
    calibrate: str | None
    """URL of a live replica whose metrics determine the strongest replica's costs."""
    calibrate_for: str
    """Time for which the metrics are observed."""
    slow: tuple[str, ...]
    """Replica speeds, each as `REPLICA=FACTOR[@SECONDS]`."""
    kill: tuple[str, ...]
    """Replica failures, each as `REPLICA@SECONDS[-SECONDS]`."""
    join: tuple[str, ...]
    """Replicas that join later, each as `REPLICA@SECONDS`."""
    lose: tuple[str, ...]
    """Missing replicas, each as a name, `largest` or `zone=Z`."""
    telemetry_delay: str
    """Delay between sampling the engines and using the sample."""
    find: str | None
    """`rate` or `replicas`."""
    slo: str | None
    """Limits for a search."""
    gpu: tuple[str, ...]
    """GPU types for `--find replicas`, each as `[COUNT×]TYPE`."""
    price: tuple[str, ...]
    """Prices per GPU and hour, each as `TYPE=PRICE`."""
    seed: int
    """Random seed."""
    plot_file: str | None
    """Path of the chart."""
    form: str
    """Output format."""


def check(options: SimulationOptions) -> None:
    """Check that the options can be combined."""
    synthetic = {
        "--rate": options.rate,
        "--prompt": options.prompt,
        "--answer": options.answer,
        "--duration": options.duration,
    }
    given = [name for name, value in (*synthetic.items(), ("--burst", options.burst)) if value is not None]
    given += ["--tenant"] if options.tenant else []
    if options.trace_file is not None and given:
        raise click.UsageError(f"--trace and {given[0]}: use a trace or options for the load, not both")
    missing = [name for name, value in synthetic.items() if value is None]
    if options.trace_file is None and missing:
        need = "set the load with --trace FILE, or with --rate 5/s --prompt 900 --answer 130 --duration 10m"
        raise click.UsageError(f"{need}; {', '.join(missing)} is missing" if given else need)
    if bool(options.find) != bool(options.slo):
        raise click.UsageError("--find and --slo require each other: --find rate --slo 'ttft p99 < 2s'")
    if options.gpu and options.find != "replicas":
        raise click.UsageError("--gpu requires --find replicas")
    named = [option for option in ("kill", "join", "slow") if getattr(options, option)]
    named += [f"lose {text}" for text in options.lose if text != "largest"]
    if options.gpu and named:
        raise click.UsageError(
            f"--gpu and --{named[0]}: the replicas of --gpu do not have the fleet's names and zones "
            "(only --lose largest can be combined with --gpu)"
        )
    numbers = {name: getattr(options, name) for name in ("prompt", "answer", "burst", "speedup")}
    if wrong := [name for name, value in numbers.items() if value is not None and not math.isfinite(value)]:
        raise click.UsageError(f"--{wrong[0]}: not a number")
    if sum(value is not None for value in (options.engine, options.model, options.calibrate)) > 1:
        raise click.UsageError("--engine, --model and --calibrate: use only one of these options for engine costs")


def synthetic_load(options: SimulationOptions) -> Trace:
    """Return the synthetic load that the options describe."""
    assert options.rate is not None
    assert options.duration is not None
    try:
        rate, seconds = parse_per_second(options.rate), parse_duration(options.duration) / 1000
    except QuantityError as error:
        raise click.UsageError(f"{error}; {error.hint}") from None
    if not 0 < rate * seconds <= _MAX_REQUESTS:
        raise click.UsageError(
            f"--rate and --duration result in {rate * seconds:g} requests; the number must be from 1 to "
            f"{_MAX_REQUESTS:,}"
        )
    assert options.prompt is not None
    assert options.answer is not None
    burst = 1.0 if options.burst is None else options.burst
    lengths = conversation(options.prompt, options.answer)
    trace = load.poisson(rate, seconds, lengths, f"load {options.seed}", burst=burst)
    if not trace.times:
        raise click.UsageError("--rate and --duration: no requests arrive in this time")
    tenants = tenants_of(options.tenant)
    return load.with_tenants(trace, tenants, f"tenants {options.seed}") if tenants else trace


def tenants_of(texts: Sequence[str]) -> tuple[TenantShare, ...]:
    """Parse `--tenant`."""
    tenants: dict[str, TenantShare] = {}
    for text in texts:
        name, _, rest = text.rpartition("=")
        share, colon, priority = rest.partition(":")
        number = _number(share)
        if not name or not number:
            raise click.UsageError(f"--tenant: {text!r} is not NAME=SHARE[:PRIORITY], with a positive share")
        if colon and priority not in PRIORITIES:
            raise click.UsageError(f"--tenant: {priority!r} is not a priority; use {', '.join(PRIORITIES)}")
        _check_once("--tenant", name, tenants)
        tenants[name] = TenantShare(name, number, PRIORITIES.index(priority if colon else "normal"))
    return tuple(tenants.values())


def seconds_of(option: str, text: str) -> float:
    """Return a duration in seconds."""
    try:
        return parse_duration(text) / 1000
    except QuantityError as error:
        raise click.UsageError(f"{option}: {error}; {error.hint}") from None


def obstacles(pool: Pool, lose: Sequence[str]) -> dict[str, str]:
    """Map each replica to the reason why it cannot have events because it is lost or drained, or to "" if it can."""
    result = {item.name: _DRAINED if item.drain else "" for item in pool.replicas}
    for text in lose:
        why = f"--lose {text} removes it from the start (omit one of the two options)"
        result |= {item.name: why for item in lost_by(text, pool)}
    return result


def speeds_of(texts: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, float], tuple[SpeedChange, ...]]:
    """Parse `--slow`. Return a map from replicas to initial speed factors, and the later speed changes.

    `names` is the result of `obstacles`.
    """
    speeds: dict[str, float] = {}
    changes = []
    for text in texts:
        name, _, rest = text.partition("=")
        factor, _, at = rest.partition("@")
        _check_name("--slow", name, names)
        try:
            number, time = float(factor), float(at or 0)
        except ValueError:
            raise click.UsageError(f"--slow: {text!r} is not REPLICA=FACTOR[@SECONDS]") from None
        if not (_MIN_SPEED <= number <= 100 or (at and number == 0)) or not 0 <= time < 1e9:
            raise click.UsageError(
                f"--slow: {text!r}: the factor must be from {_MIN_SPEED:g} to 100, or 0 with @SECONDS"
            )
        if at:
            changes.append(SpeedChange(time, name, number))
            continue
        _check_once("--slow", name, speeds)
        speeds[name] = number
    return speeds, tuple(changes)


def outages_of(texts: Sequence[str], names: Mapping[str, str]) -> tuple[Outage, ...]:
    """Parse the failures in `--kill`. `names` is the result of `obstacles`."""
    outages = []
    for text in texts:
        name, at, times = text.rpartition("@")
        begin, dash, end = times.partition("-")
        first, last = _number(begin), _number(end) if dash else math.inf
        if not at or first is None or last is None or last <= first:
            raise click.UsageError(f"--kill: {text!r} is not REPLICA@SECONDS, or REPLICA@SECONDS-SECONDS to restart it")
        _check_name("--kill", name, names)
        outages.append(Outage(name, first, last))
    return tuple(outages)


def joins_of(texts: Sequence[str], names: Mapping[str, str]) -> dict[str, float]:
    """Parse `--join`. Map each replica to the time at which it joins. `names` is the result of `obstacles`."""
    joins: dict[str, float] = {}
    for text in texts:
        name, _, at = text.rpartition("@")
        time = _number(at)
        if time is None or not name:
            raise click.UsageError(f"--join: {text!r} is not REPLICA@SECONDS")
        _check_name("--join", name, names)
        _check_once("--join", name, joins)
        joins[name] = time
    return joins


def _number(text: str) -> float | None:
    """Parse a number from 0 up to, but not including, 1e9. Return None for any other string."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def _check_name(option: str, name: str, names: Mapping[str, str]) -> None:
    if name not in names:
        raise click.UsageError(f"{option}: the pool has no replica {name!r}; {_known(name, names)}")
    if names[name]:
        raise click.UsageError(f"{option} {name}: {names[name]}")


def _check_once(option: str, name: str, before: Collection[str]) -> None:
    if name in before:
        raise click.UsageError(f"{option}: {name} is set twice")


def _known(name: str, names: Collection[str]) -> str:
    return did_you_mean(name, names) or ", ".join(sorted(names)[:8])


def prices_of(texts: Sequence[str]) -> dict[str, float]:
    """Parse `--price`. Map each GPU type to its price per hour."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, price = text.partition("=")
        value = _number(price)
        if value is None or not name:
            raise click.UsageError(f"--price: {text!r} is not TYPE=PRICE, the price of one GPU per hour")
        _check_once("--price", name, prices)
        prices[name] = value
    return prices


def gpu_pool(pool: Pool, text: str, throughputs: Mapping[str, float]) -> Pool:
    """Return the pool with a single replica of this GPU type, which `--find replicas` then duplicates."""
    count, times, name = text.rpartition("x")
    has_count = times and count.isdecimal() and len(count) <= _MAX_COUNT_DIGITS
    name, number = (name, int(count)) if has_count else (text, 1)
    if name not in throughputs:
        raise click.UsageError(
            f"--gpu: {name!r} is not in the GPU table; {did_you_mean(name, throughputs) or 'see lbctl gpus'}"
        )
    if not 1 <= number <= 1024:
        raise click.UsageError(f"--gpu: {text!r}: the number of GPUs per replica must be from 1 to 1024")
    model = pool.replicas[0]
    replica = Replica(text, model.address, throughputs[name] * number, gpu=name, gpu_count=number)
    alone = capacity.with_replicas(pool, 1)
    return Pool(
        **{item: getattr(alone, item) for item in Pool.__dataclass_fields__ if item != "replicas"}, replicas=(replica,)
    )


def loss_of(lose: Sequence[str]) -> Callable[[Pool], Pool]:
    """Return a function that removes the replicas specified in every `--lose` from a pool."""

    def rest(pool: Pool) -> Pool:
        lost = {item.name for text in lose for item in lost_by(text, pool)}
        return capacity.without(pool, lambda replica: replica.name in lost)

    return rest


def lost_by(text: str, pool: Pool) -> tuple[Replica, ...]:
    """Return the replicas that one `--lose` option removes from a pool.

    `largest` considers only replicas that get requests.
    """
    if text == "largest":
        largest = max(capacity.serving(pool).replicas, key=lambda item: item.capacity, default=None)
        return (largest,) if largest else ()
    if text.startswith("zone="):
        return tuple(item for item in pool.replicas if item.zone == text.removeprefix("zone="))
    return tuple(item for item in pool.replicas if item.name == text)


def check_losses(lose: Sequence[str], pool: Pool) -> None:
    """Check that every `--lose` removes replicas from the pool, and that the remaining pool still gets requests."""
    for text in lose:
        lost = lost_by(text, pool)
        zone = text.removeprefix("zone=")
        if not lost and zone != text:
            zones = {item.zone for item in pool.replicas if item.zone}
            known = _known(zone, zones) or "its replicas have no zone"
            raise click.UsageError(f"--lose: pool {pool.name} has no replica in zone {zone!r}; {known}")
        if not lost:
            known = _known(text, [item.name for item in pool.replicas])
            raise click.UsageError(f"--lose: pool {pool.name} has no replica {text}; {known} (or largest, or zone=Z)")
        if all(item.drain for item in lost):
            raise click.UsageError(f"--lose {text}: {_DRAINED}")
    if lose.count("largest") > 1:
        raise click.UsageError("--lose largest removes one replica, even if repeated (name the second one)")
    if not capacity.serving(loss_of(lose)(pool)).replicas:
        names = ", ".join(item.name for item in capacity.serving(pool).replicas)
        raise click.UsageError(
            f"--lose: without {lost_text(lose)}, pool {pool.name} has no replica that gets requests; "
            f"keep one of these: {names}"
        )


def lost_text(lose: Sequence[str]) -> str:
    """Describe the replicas removed by `--lose`, as a phrase."""
    *others, last = (
        "the largest replica" if text == "largest" else text.replace("zone=", "zone ", 1)
        for text in dict.fromkeys(lose)
    )
    return f"{', '.join(others)} and {last}" if others else last
