"""Scraping real HTTP servers: bad servers, limits, and the reports."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from aiohttp import web

from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, MetricsSource, PickPolicy, Pool, Replica, Telemetry
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.fetch import Fetched, fetch
from lbctl.runtime.net.http_client import session
from lbctl.serve.telemetry import scraper
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.plan import ScrapePlan, scrape_plan
from tests.support.signals import fixture

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_INTERVAL = 0.1


@asynccontextmanager
async def _server(handler: Handler) -> AsyncIterator[int]:
    """Serve every request with this handler, and yield the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answering(body: bytes | str, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=int(headers.get("status", "200")), headers=headers)

    return handler


class _Reports(list[ScrapeReport]):
    """The reports, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._came = asyncio.Event()

    def take(self, report: ScrapeReport) -> None:
        self.append(report)
        self._came.set()

    async def until(self, wanted: Callable[[ScrapeReport], bool], patience: float = 60) -> ScrapeReport:
        async with asyncio.timeout(patience):
            while True:
                report = next((item for item in self if wanted(item)), None)
                if report:
                    return report
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def _scraping(*items: ScrapePlan) -> AsyncIterator[tuple[_Reports, Scraper]]:
    reports = _Reports()
    scraper = Scraper(reports.take)
    scraper.watch(items)
    task = asyncio.create_task(scraper.run())
    try:
        yield reports, scraper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def _replica(
    name: str, *sources: MetricsSource, timeout: float = 20.0, stale: float = 15.0, devices: tuple[str, ...] = ()
) -> ScrapePlan:
    telemetry = Telemetry(int(_INTERVAL * 1000), int(timeout * 1000), int(stale * 1000), sources)
    plan = scrape_plan(Pool("pool", telemetry=telemetry), Replica(name, Address("127.0.0.1", 1), devices=devices))
    assert plan is not None
    return plan


def _vllm(port: int, name: str = "a", timeout: float = 20.0, stale: float = 15.0) -> ScrapePlan:
    return _replica(name, MetricsSource("vllm", f"http://127.0.0.1:{port}/metrics"), timeout=timeout, stale=stale)


async def _first(handler: Handler, timeout: float = 20.0) -> ScrapeReport:
    async with _server(handler) as port, _scraping(_vllm(port, timeout=timeout)) as (reports, _):
        return await reports.until(lambda report: True)


def _reason(handler: Handler, timeout: float = 20.0) -> str:
    report = asyncio.run(_first(handler, timeout))
    assert report.signals.values == {}
    assert not report.sources[0].ok
    assert report.sources[0].message
    return report.sources[0].reason


def test_page_becomes_signals_with_ages() -> None:
    report = asyncio.run(_first(_answering(fixture("vllm_v1"))))
    assert report.signals.get("queue") == 3
    assert report.signals.get("running") == 21
    assert (report.first_tokens, report.prompt_tokens) == (900, 300_000)
    assert report.signals.values["queue"].age(report.at) < 1
    assert report.sources[0].ok
    assert report.sources[0].size == len(fixture("vllm_v1"))
    assert report.reserves_memory


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_page_is_read(encoding: str) -> None:
    packed = gzip.compress(fixture("vllm_v1")) if encoding == "gzip" else zlib.compress(fixture("vllm_v1"))
    report = asyncio.run(_first(_answering(packed, **{"Content-Encoding": encoding})))
    assert report.signals.get("queue") == 3


_BOMB = gzip.compress(b"a" * 20_000_000)


@pytest.mark.parametrize(
    ("reason", "handler"),
    [
        ("status", _answering("vllm:num_requests_waiting 1\n", status="500")),
        ("status", _answering("", status="404")),
        ("redirect", _answering("", status="302", Location="/elsewhere")),
        ("html", _answering("<!doctype html><title>Sign in</title>")),
        ("html", _answering("\n <html>")),
        ("json", _answering('{"vllm:num_requests_waiting": 1}')),
        ("empty", _answering("")),
        ("nothing_known", _answering("up 1\n")),
        ("values", _answering("vllm:num_requests_waiting NaN\n")),
        ("values", _answering("vllm:num_requests_waiting -1\nvllm:num_requests_running +Inf\n")),
        ("values", _answering("vllm:num_requests_waiting ٣\n")),
        ("values", _answering("vllm:num_requests_waiting 1\nvllm:num_requests_waiting 1\n")),
        ("too_large", _answering(b"a 1\n" * 5_000_000)),
        ("too_large", _answering(_BOMB, **{"Content-Encoding": "gzip"})),
        ("long_line", _answering(b'vllm:num_requests_waiting{a="' + b"x" * 100_000 + b'"} 1\n')),
        ("encoding", _answering(b"not gzip", **{"Content-Encoding": "gzip"})),
        ("encoding", _answering(gzip.compress(b"a 1\n" * 999)[:-9], **{"Content-Encoding": "gzip"})),
        ("encoding", _answering(b"x", **{"Content-Encoding": "br"})),
    ],
)
def test_invalid_page_yields_a_reason_and_no_signals(reason: str, handler: Handler) -> None:
    assert _reason(handler) == reason


@pytest.mark.parametrize(
    ("kind", "path", "hint"),
    [
        ("trtllm", "/metrics", "; the metrics page of trtllm-serve is /prometheus/metrics"),
        ("trtllm", "/prometheus/metrics", ""),
        ("vllm", "/metrics", ""),
    ],
)
def test_a_wrong_path_is_followed_by_the_right_one(kind: str, path: str, hint: str) -> None:
    sources = ReplicaSources(_replica("a", MetricsSource(kind, f"http://127.0.0.1:8000{path}")))
    report = sources.failed(0, Fetched(reason="json", message="JSON, not a metrics page"), 0.0, 0.1)
    assert report.sources[0].message == f"JSON, not a metrics page{hint}"


def test_redirect_is_not_followed() -> None:
    paths = []

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        raise web.HTTPFound("/elsewhere")

    assert _reason(handler) == "redirect"
    assert set(paths) == {"/metrics"}


def test_endless_body_is_cut_off() -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 100_000_000:
            await response.write(b"a 1\n" * 1000)
            sent += 4000
        return response

    assert _reason(handler, timeout=20) == "too_large"
    assert sent < 40_000_000


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_page_of_many_engines_is_read(encoding: str) -> None:
    """32 engines with data parallelism write about 1.4 MB."""
    page = fixture("vllm_v1") + b"# HELP other Metrics of further engines.\n" * 40_000
    body = gzip.compress(page) if encoding == "gzip" else page
    report = asyncio.run(_first(_answering(body, **{"Content-Encoding": encoding}), timeout=20))
    assert report.signals.get("queue") == 3
    assert report.sources[0].size == len(page) > 1024 * 1024


@pytest.mark.parametrize(("size", "waits"), [(1_000_000, 0), (3_000_000, 1)])
def test_large_body_waits_once_for_a_place(size: int, waits: int) -> None:
    asked = 0

    async def large() -> None:
        nonlocal asked
        asked += 1

    async def run() -> int:
        async with _server(_answering(b"a 1\n" * (size // 4))) as port, session() as client:
            return (await fetch(client, f"http://127.0.0.1:{port}/", 5, large=large)).size

    assert asyncio.run(run()) == size
    assert asked == waits


def test_slow_response_ends_at_the_timeout() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"#")
            await asyncio.sleep(0.02)

    assert _reason(handler, timeout=0.3) == "timeout"


def test_silent_and_closing_servers_are_reported() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def rude(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert _reason(silent, timeout=0.2) == "timeout"
    assert _reason(rude) == "connection"


@pytest.mark.parametrize(
    ("url", "reasons"),
    [
        ("http://169.254.169.254/latest/meta-data", {"address"}),
        ("http://2852039166/latest/meta-data", {"address", "dns"}),
        ("http://[::ffff:169.254.169.254]/metrics", {"address"}),
        ("http://[fd00:ec2::254]/metrics", {"address"}),
        ("http://[fe80::1]/metrics", {"address"}),
        ("http://100.100.100.200/metrics", {"address"}),
        ("http://0.0.0.0/metrics", {"address"}),
        ("http://no-such-name.invalid/metrics", {"dns", "timeout"}),
        ("http://:0/metrics", {"address"}),
    ],
)
def test_addresses_that_no_replica_can_have_are_not_scraped(url: str, reasons: set[str]) -> None:
    async def run() -> ScrapeReport:
        async with _scraping(_replica("a", MetricsSource("vllm", url), timeout=2)) as (reports, _):
            return await reports.until(lambda report: True)

    assert asyncio.run(run()).sources[0].reason in reasons


def test_noncanonical_ipv4_address_is_reported() -> None:
    async def run() -> ScrapeReport:
        async with _scraping(_replica("a", MetricsSource("vllm", "http://2852039166/"), timeout=2)) as (reports, _):
            return await reports.until(lambda report: True)

    assert asyncio.run(run()).sources[0].message == "2852039166 is not a canonical IPv4 address"


def test_query_values_are_sent_but_never_shown() -> None:
    paths = []

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path_qs)
        return web.Response(body=fixture("vllm_v1"))

    async def run() -> ScrapeReport:
        async with _server(handler) as port:
            url = f"http://127.0.0.1:{port}/metrics?token=SECRET&SECRET#SECRET"
            async with _scraping(_replica("a", MetricsSource("vllm", url))) as (reports, _):
                return await reports.until(lambda report: report.sources[0].ok)

    report = asyncio.run(run())
    assert paths[0] == "/metrics?token=SECRET&SECRET"
    assert report.sources[0].url.endswith("/metrics?token=…&…")


def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert asyncio.run(_first(_answering(fixture("vllm_v1")))).sources[0].ok


def test_cookies_are_not_kept() -> None:
    cookies = []

    async def handler(request: web.Request) -> web.StreamResponse:
        cookies.append(request.headers.get("Cookie"))
        return web.Response(body=fixture("vllm_v1"), headers={"Set-Cookie": "a=b"})

    async def run() -> None:
        async with _server(handler) as port, _scraping(_vllm(port)) as (reports, _):
            await reports.until(lambda report: len(reports) > 2)

    asyncio.run(run())
    assert set(cookies) == {None}


def test_slow_replicas_do_not_delay_others() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def run() -> list[ScrapeReport]:
        async with _server(slow) as stuck, _server(_answering(fixture("vllm_v1"))) as good:
            items = [_vllm(stuck, f"slow-{place}", timeout=60) for place in range(20)]
            items += [_vllm(good, f"good-{place}") for place in range(20)]
            async with _scraping(*items) as (reports, _):
                await reports.until(lambda _: len(reports) >= 20 * 6)
                return list(reports)

    assert all(report.sources[0].ok for report in asyncio.run(run()))


class _Gathering:
    """A server that answers no request until `count` requests wait."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting = asyncio.Condition()
        self._here = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        async with self._waiting:
            self._here += 1
            self._waiting.notify_all()
            try:
                await self._waiting.wait_for(lambda: self._here >= self.count)
            except asyncio.CancelledError:
                self._here -= 1
                raise
        await asyncio.sleep(0.1)
        self._here = 0
        return web.Response(body=fixture("vllm_v1"))


def _picked(port: int, name: str, policy: PickPolicy | None) -> ScrapePlan:
    sources = (MetricsSource("vllm", f"http://127.0.0.1:{port}/{name}"),)
    telemetry = Telemetry(1_000, 400, 15_000, sources)
    pool = Pool("pool", telemetry=telemetry, balance=Balance(pick=policy))
    plan = scrape_plan(pool, Replica(name, Address("127.0.0.1", 1)))
    assert plan is not None
    return plan


async def _scrape_together(policy: PickPolicy | None, patience: float) -> None:
    """Scrape 16 replicas, one of them new. Raise TimeoutError if their requests do not wait simultaneously."""
    server = _Gathering(15)
    async with _server(server.answer) as port:
        plans = [_picked(port, f"r{place}", policy) for place in range(16)]
        async with _scraping(*plans[:15]) as (reports, scraper):
            await reports.until(lambda report: report.sources[0].ok, patience)
            server.count = 16
            scraper.watch(plans)
            await reports.until(lambda report: report.replica == "r15" and report.sources[0].ok, patience)


def _time_out() -> bool:
    """Whether the replicas of a pool without a picker are not scraped simultaneously."""
    try:
        asyncio.run(_scrape_together(None, 1.5))
    except TimeoutError:
        return True
    return False


@pytest.mark.slow
def test_only_picked_pools_are_scraped_simultaneously() -> None:
    asyncio.run(_scrape_together(PickPolicy(()), 60))
    assert any(_time_out() for _ in range(5)), "a stall of the machine may bring them together"


_NO_PROGRESS = b"vllm:num_requests_running 1\nvllm:iteration_tokens_total_count 7\nvllm:generation_tokens_total 7\n"


@pytest.mark.parametrize(
    ("policy", "page", "scrapes"),
    [
        (PickPolicy(()), _NO_PROGRESS, [0, 1, 1.5, 2]),
        (PickPolicy(()), _NO_PROGRESS.replace(b"running 1", b"running 0"), [0, 1, 2, 3]),
        (None, _NO_PROGRESS, [0, 1, 2, 3]),
    ],
    ids=["no-progress", "idle", "not-picked"],
)
def test_page_without_progress_is_fetched_twice_as_often(
    policy: PickPolicy | None, page: bytes, scrapes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times are relative to the first scrape."""

    now, times = 1000.3, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += max(0.0, seconds)

    async def read(*_: object, **__: object) -> Fetched:
        times.append(now)
        if len(times) == len(scrapes):
            raise asyncio.CancelledError
        return Fetched(page)

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now, raising=False)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(scraper, "fetch", read)
        scraping = Scraper(lambda _: None)
        scraping.watch([_picked(1, "a", policy)])
        (target,) = scraping._targets.values()
        scraping._session = cast(Any, object())
        with suppress(asyncio.CancelledError):
            await scraping._scrape_periodically(target)

    with monkeypatch.context() as monkeypatch:
        asyncio.run(run())
    assert [time - times[0] for time in times] == pytest.approx(scrapes)


class _AllAtOnce:
    """A server in a thread that answers `count` requests when `release` is set, and then sets `sent`."""

    def __init__(self, page: bytes, count: int) -> None:
        self._page, self._count = page, count
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.asked, self.release, self.sent = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connections = []
        for _ in range(self._count):
            connection, _ = self._listening.accept()
            connection.recv(65536)
            connections.append(connection)
        self.asked.set()
        self.release.wait(60)
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(self._page)}\r\n\r\n".encode()
        for connection in connections:
            with connection:
                connection.sendall(head + self._page)
        self.sent.set()

    def close(self) -> None:
        self._listening.close()
        self._thread.join(60)


def test_event_loop_runs_between_two_large_pages() -> None:
    count = 8
    page = fixture("vllm_v1") + b"".join(b'other{series="%d"} 1\n' % number for number in range(3000))

    async def run() -> list[int]:
        turns, seen = 0, []

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        server = _AllAtOnce(page, count)
        items = [
            _replica(f"r{n}", MetricsSource("vllm", f"http://127.0.0.1:{server.port}/{n}"), timeout=60)
            for n in range(count)
        ]
        scraper = Scraper(lambda _: seen.append(turns))
        scraper.watch(items)
        tasks = [asyncio.create_task(scraper.run()), asyncio.create_task(others())]
        await asyncio.to_thread(server.asked.wait, 60)
        server.release.set()
        server.sent.wait(60)  # blocks the event loop, so that all pages have arrived when it continues
        async with asyncio.timeout(60):
            while len(seen) < count:
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        return seen[:count]

    seen = asyncio.run(run())
    assert len(set(seen)) == count


def test_counters_become_rates_and_restarts_are_detected() -> None:
    counts = iter([100, 200, 300, 5, 105, 205, *range(305, 100_000, 100)])

    async def handler(request: web.Request) -> web.StreamResponse:
        n = next(counts)
        names = ("generation_tokens_total", "iteration_tokens_total_count", "inter_token_latency_seconds_count")
        lines = [f"vllm:{name} {n}" for name in names] + [f"vllm:inter_token_latency_seconds_sum {n / 50}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def run() -> list[ScrapeReport]:
        async with _server(handler) as port, _scraping(_vllm(port)) as (reports, _):
            await reports.until(lambda report: len(reports) > 5)
            return list(reports)

    looks = asyncio.run(run())
    assert [look.restarted for look in looks[:6]] == [False, False, False, True, False, False]
    assert [look.evidence is not None for look in looks[:6]] == [False, True, True, False, True, True]
    for look in looks[1:6]:
        assert look.signals.get("token_latency") == pytest.approx(0.02)
        assert (look.signals.get("throughput") or 0) > 0
    evidence = looks[1].evidence
    assert isinstance(evidence, TokenEvidence)
    assert (evidence.itl_count, evidence.decode_tokens) == (100, 1)


def test_page_of_a_host_is_fetched_once_for_its_replicas() -> None:
    fetches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal fetches
        fetches += 1
        return web.Response(body=fixture("dcgm"))

    async def run() -> dict[str, float | None]:
        async with _server(handler) as port:
            source = MetricsSource("dcgm", f"http://127.0.0.1:{port}/metrics", match_labels=(("gpu", "{device}"),))
            items = [_replica(name, source, devices=(name,)) for name in ("0", "1", "2")]
            async with _scraping(*items) as (reports, _):
                await reports.until(lambda report: len(reports) >= 3)
                first = reports[:3]
                assert len({look.at for look in first}) == 1
                return {look.replica: look.signals.get("temperature") for look in first}

    assert asyncio.run(run()) == {"0": 61, "1": 88, "2": 35}
    assert fetches <= 2


def test_first_working_source_provides_a_signal() -> None:
    alive = True

    async def first(request: web.Request) -> web.StreamResponse:
        return web.Response(text="vllm:num_requests_waiting 1\n", status=200 if alive else 503)

    async def run() -> None:
        nonlocal alive
        async with _server(first) as one, _server(_answering("other 9\n")) as two:
            item = _replica(
                "a",
                MetricsSource("vllm", f"http://127.0.0.1:{one}/"),
                MetricsSource("custom", f"http://127.0.0.1:{two}/", "queue", "other", unit="requests"),
                stale=0.5,
            )
            async with _scraping(item) as (reports, _):
                await reports.until(
                    lambda report: all(state.ok for state in report.sources) and report.signals.get("queue") == 1
                )
                alive = False
                report = await reports.until(lambda report: report.signals.get("queue") == 9 and len(reports) > 8)
                assert report.sources[1].ok
            alive = True

    asyncio.run(run())


def test_values_of_a_failed_exporter_become_stale() -> None:
    async def dying() -> ScrapeReport:
        up = True

        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(body=fixture("vllm_v1"), status=200 if up else 500)

        async with _server(handler) as port, _scraping(_vllm(port, stale=0.3)) as (reports, _):
            await reports.until(lambda report: report.sources[0].ok)
            up = False
            return await reports.until(lambda report: "queue" in report.signals.stale)

    report = asyncio.run(dying())
    assert report.signals.get("queue") is None
    assert report.signals.stale["queue"].value == 3
    assert report.sources[0].reason == "status"
    assert (report.sources[0].age(report.at) or 0) > 0.3


def test_prometheus_is_queried_and_its_error_is_kept() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path != "/api/v1/query" or "bad" in request.query["query"]:
            return web.json_response({"status": "error", "error": "parse error"}, status=400)
        value = [1, "4"]
        return web.json_response(
            {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": value}]}}
        )

    async def run() -> tuple[ScrapeReport, ScrapeReport]:
        async with _server(handler) as port:
            url = f"http://127.0.0.1:{port}"
            good = _replica("good", MetricsSource("prometheus", url, "queue", query='q{i="{host}:{port}"}'))
            bad = _replica("bad", MetricsSource("prometheus", url, "queue", query="bad"))
            async with _scraping(good, bad) as (reports, _):
                return (
                    await reports.until(lambda report: report.replica == "good"),
                    await reports.until(lambda report: report.replica == "bad"),
                )

    good, bad = asyncio.run(run())
    assert good.signals.get("queue") == 4
    assert (bad.sources[0].reason, bad.sources[0].message) == ("query", "parse error")


def test_changed_fleet_keeps_the_state_of_remaining_replicas() -> None:
    async def run() -> None:
        async with (
            _server(_answering(fixture("vllm_v1"))) as port,
            _server(_answering(fixture("dcgm"))) as other,
            _scraping(_vllm(port, "stays"), _vllm(port, "goes")) as (reports, scraper),
        ):
            await reports.until(lambda report: report.replica == "goes")
            dcgm = MetricsSource("dcgm", f"http://127.0.0.1:{other}/")
            scraper.watch([_replica("stays", MetricsSource("vllm", f"http://127.0.0.1:{port}/metrics"), dcgm)])
            assert scraper.states("pool", "goes") == ()
            assert scraper.states("pool", "stays")[0].ok
            reports.clear()
            report = await reports.until(lambda report: report.signals.get("temperature") is not None)
            assert report.signals.get("queue") == 3
            assert {report.replica for report in reports} == {"stays"}

    asyncio.run(run())


def test_error_in_a_report_consumer_is_counted_and_retried() -> None:
    failures: list[str] = []
    reports: list[ScrapeReport] = []

    def broken_once(report: ScrapeReport) -> None:
        if not failures:
            raise RuntimeError("the consumer failed")
        reports.append(report)

    async def run() -> None:
        async with _server(_answering(fixture("vllm_v1"))) as port:
            scraper = Scraper(broken_once, Guard(failures.append, first_pause=0.01))
            scraper.watch([_vllm(port)])
            running = asyncio.create_task(scraper.run())
            async with asyncio.timeout(30):
                while not reports:
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert failures == ["scrape"]
