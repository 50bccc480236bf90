"""The reports about one replica, from scrapes of its sources."""

from __future__ import annotations

from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.runtime.net.fetch import Fetched
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.signals.cached import CachedTokens
from lbctl.signals.plan import scrape_plan

_POOL = Pool(
    "chat",
    (Replica("a", Address("10.0.0.1", 80)),),
    telemetry=Telemetry(
        sources=(MetricsSource("dcgm", "http://{host}:9400/metrics"), MetricsSource("vllm", "http://{address}/metrics"))
    ),
)


class _Sources:
    def __init__(self) -> None:
        self.plan = scrape_plan(_POOL, _POOL.replicas[0])
        assert self.plan is not None
        self._sources = ReplicaSources(self.plan)

    def scrape(self, index: int, text: bytes, at: float) -> ScrapeReport:
        assert self.plan is not None
        table = self.plan.sources[index].table
        assert table is not None
        return self._sources.page(index, Fetched(text), table.reader().read(text), at, at)


def test_cached_tokens_are_unknown_once_their_page_is_stale() -> None:
    sources = _Sources()
    assert sources.plan is not None
    stale_after, gpu = sources.plan.stale_after, b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n'
    assert sources.scrape(0, gpu, 0.0).cached is None
    sources.scrape(1, b"vllm:prefix_cache_hits_total 70\n", 1.0)
    assert sources.scrape(0, gpu, stale_after).cached == CachedTokens(70.0, {"device": 70.0}, (1, 1))
    assert sources.scrape(0, gpu, stale_after + 2.0).cached is None
