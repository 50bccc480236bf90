"""Polls the engine's health check and metrics page concurrently, with one time limit for both.

Each reading opens new connections, so that a stopped engine is noticed immediately. Only an engine that refuses
connections counts as unreachable. If a connection times out, the engine is busy or wedged, but has not restarted.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin

import aiohttp

from lbctl.agent.engine_key import key_header
from lbctl.agent.readings import EngineReading
from lbctl.agent.settings import ENGINE_KINDS, NO_PAGE, AgentSettings
from lbctl.base.errors import reason_of
from lbctl.runtime import log
from lbctl.runtime.net.fetch import fetch
from lbctl.runtime.net.http_client import session
from lbctl.signals import table
from lbctl.signals.derive import derive
from lbctl.signals.detect import page_kind
from lbctl.signals.devices import selection
from lbctl.signals.exposition import MetricsPage, MetricsReader
from lbctl.signals.signal import COUNTERS
from lbctl.signals.source import SourceReading

READ_TIMEOUT = 3.0
"""Time limit for a reading, in seconds."""
_START_TIME = "process_start_time_seconds"
_DEFAULT_PATH = "/metrics"
_LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
_NETWORK_ERRORS = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ETIMEDOUT})


@dataclass(frozen=True, slots=True)
class PageValues:
    """The values from one metrics page. `signals`, `counters`, `started_at` and the flags are as in `EngineReading`."""

    problem: str = ""
    """The reason why the page contains no usable values, or an empty string if it contains some."""
    signals: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    started_at: float | None = None
    restarted: bool = False
    by_steps: bool = False


class PageReader:
    """Reads successive metrics pages from one engine."""

    def __init__(self, kind: str, devices: tuple[str, ...] | None = None) -> None:
        """`kind` and `devices` are as in `AgentSettings`, but `kind` must not be empty. Raises UnknownName."""
        self._table = table(kind)
        self._reader = MetricsReader({*self._table.names(), _START_TIME})
        self._selection = selection((), devices or (), self._table.gpus)
        self._before: SourceReading | None = None

    def read(self, body: bytes, at: float) -> PageValues:
        """Return the values on a page. `at` is in seconds on the monotonic clock."""
        page = self._reader.read(body)
        reading = self._table.reading(page, self._selection, at)
        if not reading.quantities:
            return PageValues(f"the page has no usable {self._table.title} metric", started_at=_started_at(page))
        derived = derive(self._table, self._before, reading)
        self._before = replace(reading, moves=derived.moves)
        return PageValues(
            signals={name: signal.value for name, signal in derived.values.items()},
            counters={name: value for name, value in reading.quantities.items() if name in COUNTERS},
            started_at=_started_at(page),
            restarted=derived.restarted,
            by_steps=derived.by_steps,
        )


def _started_at(page: MetricsPage) -> float | None:
    """Return the process's start time, or None if the page does not contain it or covers several processes."""
    samples = page.samples.get(_START_TIME, ())
    return samples[0].value or None if len(samples) == 1 else None


class EngineWatch:
    """Polls one engine."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises UnknownName if the settings specify an unknown kind."""
        self._settings = settings
        has_kind = settings.kind not in ("", NO_PAGE)
        self._page = PageReader(settings.kind, settings.devices) if has_kind else None
        """The reader for this kind of engine, or None if no page is read or the kind has not been detected yet."""
        self._page_url = urljoin(settings.engine, _page_path(settings))
        self._page_has_key = self._page_url.startswith(f"{settings.engine}/")

    async def read(self) -> EngineReading:
        """Poll the engine within `READ_TIMEOUT`. Never raises."""
        key, key_problem = key_header(self._settings)
        async with session() as client:
            (reachable, problem), page = await asyncio.gather(self._check(client, key), self._read_page(client, key))
        hint = f"; {key_problem}" if key_problem else ""
        return EngineReading(
            time.monotonic(),
            reachable,
            problem + hint if problem else "",
            page.problem + hint if page.problem else "",
            page.signals,
            page.counters,
            page.started_at,
            page.restarted,
            page.by_steps,
        )

    async def _check(self, client: aiohttp.ClientSession, key: Mapping[str, str]) -> tuple[bool, str]:
        """Run the health check. Return whether the engine accepts connections, and the problem, if any."""
        settings = self._settings
        headers = {"Connection": "close", "Accept": "*/*", **key}
        try:
            async with (
                asyncio.timeout(READ_TIMEOUT),
                client.get(settings.engine + settings.health_path, headers=headers, allow_redirects=False) as response,
            ):
                if response.status not in settings.health_statuses:
                    return True, f"{settings.health_path}: status {response.status}"
                return True, ""
        except TimeoutError:
            return True, f"{settings.health_path}: no response within {READ_TIMEOUT:g} s"
        except Exception as error:  # noqa: BLE001 -- the agent survives any response from an engine
            return not _refuses(error), f"{settings.health_path}: {connection_problem(error)}"

    async def _read_page(self, client: aiohttp.ClientSession, key: Mapping[str, str]) -> PageValues:
        if self._settings.kind == NO_PAGE:
            return PageValues()
        began = time.monotonic()
        try:
            sent = next(iter(key.items()), None) if self._page_has_key else None
            fetched = await fetch(client, self._page_url, READ_TIMEOUT, key=sent)
            if fetched.reason:
                return PageValues(fetched.message)
            if self._page is None:
                kind = page_kind(fetched.body)
                if kind not in ENGINE_KINDS:
                    return PageValues("the page has no metrics from a known engine (set --kind)")
                log.event("reading the engine's metrics page", kind=kind)
                self._page = PageReader(kind, self._settings.devices)
            return self._page.read(fetched.body, began)
        except Exception as error:  # noqa: BLE001 -- the agent survives any page from an engine
            return PageValues(reason_of(error))


def connection_problem(error: BaseException) -> str:
    """Return a human-readable reason for a failed request."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return reason_of(cause).lower() if isinstance(cause, ConnectionError) else reason_of(cause)


def _refuses(error: Exception) -> bool:
    """Return whether the engine refuses connections.

    TLS errors, name-resolution errors, network errors and a lack of file descriptors do not count, because an engine
    that becomes reachable again after one of these has not restarted.
    """
    if not isinstance(error, aiohttp.ClientConnectorError):
        return False
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorDNSError):
        return False
    return error.os_error.errno not in _LOCAL_ERRORS | _NETWORK_ERRORS


def _page_path(settings: AgentSettings) -> str:
    """Return the path or URL of the metrics page, which defaults to the usual path for this kind of engine."""
    if settings.kind not in ("", NO_PAGE) and settings.metrics_path == _DEFAULT_PATH:
        return table(settings.kind).page or _DEFAULT_PATH
    return settings.metrics_path
