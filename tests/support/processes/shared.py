"""Proxies and replicas that several tests of one process share.

`shared` is `running` for tests that only send requests: a proxy that already runs the same fleet is reused.
`shared_replicas` is `replicas`, for the fleets of such tests. Tests that reload the proxy, stop a replica or use up a
limit start their own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.diagnosis import diagnosed, started_idle
from tests.support.fleets import Fleet
from tests.support.processes.binaries import Binary
from tests.support.processes.client import pass_millisecond
from tests.support.processes.fleet import Gateway, running
from tests.support.processes.log_lines import began
from tests.support.processes.replicas import Behaviour, Replica

_MAX_PROXIES = 6
"""Maximum number of idle proxies kept for later tests, in each process of pytest."""
_PORT_KEYS = ("bind", "admin")


@dataclass(frozen=True, slots=True)
class _Proxy:
    gateway: Gateway
    stack: ExitStack


_proxies: OrderedDict[str, _Proxy] = OrderedDict()
_replicas: dict[str, Replica] = {}


class SharedGateway(Gateway):
    """A gateway whose access log begins when the test begins."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.proxy, gateway.ports, gateway, gateway._rendering)
        pass_millisecond()
        time.sleep(0.002)  # nginx logs the end of a request and its duration, each rounded to a millisecond
        self._start = time.time() * 1000

    def access_log(self, count: int, timeout: float = 30.0) -> list[dict[str, Any]]:
        """Return the lines of this test's requests, as `Gateway.access_log` does."""
        deadline = time.monotonic() + timeout
        lines: list[dict[str, Any]] = []
        while len(lines) < count:
            assert time.monotonic() < deadline, f"{len(lines)} lines instead of {count}\n{self.proxy.logs()}"
            every = super().access_log(0)
            lines = [line for line in every if began(self.proxy, line) >= self._start - 1]
            time.sleep(0 if len(lines) >= count else 0.05)
        return lines


@contextmanager
def shared(
    name: Binary, fleet: Fleet, *, files: Mapping[str, str | bytes] | None = None, options: Sequence[str] = ()
) -> Iterator[Gateway]:
    """Yield a gateway like `running`, with a proxy that already runs this fleet if there is one.

    If the block of a test fails, the proxy is stopped. The block of a fixture does not fail with a test.
    """
    key = _key(name, fleet, files or {}, options)
    proxy = _proxies.pop(key, None)
    if proxy is None:
        while len(_proxies) >= _MAX_PROXIES:
            _proxies.popitem(last=False)[1].stack.close()
        stack = ExitStack()
        with started_idle():
            proxy = _Proxy(stack.enter_context(running(name, fleet, files=files, options=options)), stack)
    gateway = SharedGateway(proxy.gateway)
    try:
        with diagnosed(gateway.fleet_text), diagnosed(gateway.proxy.logs):
            yield gateway
            gateway.proxy.assert_alive()
    except BaseException:
        with ExitStack() as stack:
            stack.push(proxy.stack.pop_all())
            raise
    if other := _proxies.pop(key, None):  # left by a block within this one
        other.stack.close()
    _proxies[key] = proxy


@contextmanager
def shared_replicas(*names: str) -> Iterator[list[Replica]]:
    """Yield a replica for each name like `replicas`, with its counters at zero and its default behaviour."""
    for name in names:
        if name not in _replicas:
            _replicas[name] = Replica(name)
            _replicas[name].__enter__()
    members = [_replicas[name] for name in names]
    for replica in members:
        replica.behaviour = Behaviour()
        replica.forget()
    yield members


def close() -> None:
    """Stop all shared proxies and replicas."""
    while _proxies:
        _proxies.popitem()[1].stack.close()
    while _replicas:
        _replicas.popitem()[1].__exit__()


def _key(name: Binary, fleet: Fleet, files: Mapping[str, str | bytes], options: Sequence[str]) -> str:
    """Return the common properties of two interchangeable proxies: everything except their ports."""
    digests = {
        path: hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
        for path, content in files.items()
    }
    return json.dumps([name, _without_ports(fleet), digests, list(options)])


def _without_ports(fleet: Fleet) -> Fleet:
    sections = {
        section: {
            each: {key: value for key, value in keys.items() if key not in _PORT_KEYS} for each, keys in entries.items()
        }
        for section, entries in fleet.items()
        if section in ("listeners", "proxies")
    }
    return {**fleet, **sections}
