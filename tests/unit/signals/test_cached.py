"""Cached prompt tokens on pages of engines."""

from __future__ import annotations

import pytest

from lbctl.signals.cached import CachedTokens, cached_tokens
from tests.support.paths import DATA
from tests.support.signals import needs_real_data, reading

_VLLM_0_33 = b"""\
vllm:prefix_cache_hits_total{engine="0"} 1500
vllm:prefix_cache_hits_total{engine="1"} 500
vllm:external_prefix_cache_hits_total{engine="0"} 1300
vllm:external_prefix_cache_hits_total{engine="1"} 0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="device"} 1500
vllm:prompt_tokens_cached_by_source_total{engine="1",source="device"} 500
vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 900
vllm:prompt_tokens_cached_by_source_total{engine="0",source="p2p"} 60
vllm:prompt_tokens_cached_by_source_total{engine="0",source="disk"} 300
vllm:prompt_tokens_cached_by_source_total{engine="0",source="external_unspecified"} 40
"""
_SGLANG = b"""\
sglang:uncached_prompt_tokens_histogram_count{engine_type="unified",model_name="m"} 7.0
# HELP sglang:cached_tokens_total Number of cached prompt tokens by source (device/host/storage).
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="m"} 4000.0
sglang:cached_tokens_total{cache_source="host",engine_type="unified",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="storage_MooncakeStore",engine_type="unified",model_name="m"} 90.0
sglang:cached_tokens_total{cache_source="storage_unknown",engine_type="unified",model_name="m"} 10.0
"""
_SGLANG_TOTAL = b'sglang:cached_tokens_total{cache_source="total",engine_type="unified",model_name="m"} 9.0\n'


def _counts(kind: str, page: bytes) -> CachedTokens | None:
    """Return the counts without their origin."""
    found = cached_tokens(reading(kind, page), 0)
    return None if found is None else found._replace(origin=())


def test_vllm_reports_cached_tokens_by_source() -> None:
    sources = {"device": 2000.0, "host": 900.0, "disk": 300.0, "external": 100.0}
    assert _counts("vllm", _VLLM_0_33) == CachedTokens(3300.0, sources)
    assert _counts("ray", _VLLM_0_33.replace(b"vllm:", b"ray_vllm_")) == CachedTokens(3300.0, sources)


def test_origin_is_the_page_and_the_number_of_lines() -> None:
    found = cached_tokens(reading("vllm", _VLLM_0_33), 2)
    fewer = cached_tokens(reading("vllm", b"vllm:prefix_cache_hits_total 70\n"), 0)
    assert found is not None
    assert fewer is not None
    assert (found.origin, fewer.origin) == ((2, 6), (0, 1))


def test_vllm_counts_the_total_with_its_sources() -> None:
    page = _VLLM_0_33.replace(b'prefix_cache_hits_total{engine="0"} 1500', b'prefix_cache_hits_total{engine="0"} 9500')
    page += b'vllm:prompt_tokens_cached_by_source_total{engine="0",source="tape"} 7\n'
    assert reading("vllm", page).quantities["cache_found"] == 11_300, "it includes requests without output"
    found = _counts("vllm", page)
    assert found is not None
    assert (found.total, sum(found.by_source.values())) == (3307, 3300)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            b"vllm:prefix_cache_hits_total 70\nvllm:external_prefix_cache_hits_total 5\n",
            CachedTokens(75, {"device": 70, "external": 5}),
        ),
        (b"vllm:prefix_cache_hits_total 70\n", CachedTokens(70, {"device": 70})),
        (b"vllm:gpu_prefix_cache_hits_total 70\n", CachedTokens(70, {"device": 70})),
        (b"vllm:gpu_prefix_cache_hit_rate 0.7\n", None),
    ],
)
def test_older_vllm_reports_fewer_sources(page: bytes, expected: CachedTokens | None) -> None:
    assert _counts("vllm", page) == expected


def test_sglang_reports_cached_tokens_by_source() -> None:
    assert _counts("sglang", _SGLANG) == CachedTokens(4400.0, {"device": 4000.0, "host": 300.0, "external": 100.0})
    assert _counts("sglang", _SGLANG_TOTAL) == CachedTokens(9.0, {})
    assert _counts("sglang", b'sglang:cached_tokens_total{model_name="m"} 9\n') == CachedTokens(9.0, {})


def test_sglang_without_a_hit_has_found_nothing() -> None:
    assert _counts("sglang", _SGLANG.splitlines(keepends=True)[0]) == CachedTokens(0.0, {})
    assert _counts("sglang", b'sglang:num_running_reqs{model_name="m"} 1\n') is None


def test_trtllm_reports_one_count() -> None:
    assert _counts("trtllm", b"trtllm_prompt_cached_tokens_total 12\n") == CachedTokens(12.0, {})


@needs_real_data
@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("vllm", "vllm/datadog-vllm-v1-EXCERPT.prom", CachedTokens(64.0, {"device": 64.0, "external": 0.0})),
        ("vllm", "vllm/kubeai-vllm-v0-full.prom", None),
        ("sglang", "sglang/sglang-production_metrics-block1.prom", None),
        ("trtllm", "trtllm/dynamo-tensorrt-llm-observability-block1.prom", None),
    ],
)
def test_pages_of_real_engines(kind: str, path: str, expected: CachedTokens | None) -> None:
    assert _counts(kind, (DATA / "metrics" / path).read_bytes()) == expected
