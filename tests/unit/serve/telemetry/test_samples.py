"""Samples of a member, as another member reads them."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import replace

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.telemetry.samples import MemberSamples, write_samples
from lbctl.signals.cached import CachedTokens
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.signals.plan import scrape_plan
from lbctl.signals.signal import SIGNALS
from lbctl.store.records import UNREADABLE

POOL = Pool(
    "chat",
    (Replica("a", Address("10.0.0.1", 80)),),
    telemetry=Telemetry(sources=(MetricsSource("vllm", "http://{address}/metrics"),)),
)
PLAN = scrape_plan(POOL, POOL.replicas[0])
assert PLAN is not None
KEY = ("chat", "a")
PLANS = {KEY: PLAN}
OTHER_CLOCK = 5_000_000.0
"""Seconds by which the clock of the scraping member is ahead."""
REPORT = ScrapeReport(
    "chat", "a", OTHER_CLOCK + 9.5, 0,
    Signals(
        {"queue": Signal(3.0, OTHER_CLOCK + 9.0, 0)}, {"gpu": Signal(0.123456, OTHER_CLOCK + 1.0, 0)},
        TokenEvidence(OTHER_CLOCK + 9.0, 12.0, 0.25, 3.5, 0.5), (("0", 79),), True,
    ),
    (SourceState("vllm", "http://10.0.0.1:80/metrics", OTHER_CLOCK + 9.5, OTHER_CLOCK + 9.0, size=3000, seconds=0.5),),
    True, None, True, 123_456_789.0, 234_567_890.0,
    CachedTokens(987_654_321.0, {"device": 987_000_000.0, "disk": 654_321.0}, (0, 6)),
)  # fmt: skip


def text_of(report: ScrapeReport, at: float) -> str:
    return write_samples({KEY: report}, OTHER_CLOCK + at)


def test_ages_survive_different_clocks() -> None:
    (read,) = MemberSamples("cp-2").read(text_of(REPORT, 10.0), 50.0, PLANS)
    assert read.member == "cp-2"
    assert read.at == pytest.approx(49.5)
    assert read.signals.values["queue"] == Signal(3.0, pytest.approx(49.0), 0)
    assert read.signals.stale["gpu"].value == pytest.approx(0.123456, rel=1e-4)
    assert read.signals.evidence == TokenEvidence(pytest.approx(49.0), 12.0, 0.25, 3.5, 0.5)
    assert (read.signals.xids, read.signals.by_steps) == ((("0", 79),), True)
    assert (read.reserves_memory, read.restarted) == (True, True)
    assert (read.first_tokens, read.prompt_tokens) == (123_456_789.0, 234_567_890.0)
    assert read.cached == REPORT.cached
    (state,) = read.sources
    assert state == replace(REPORT.sources[0], scraped_at=pytest.approx(49.5), good_at=pytest.approx(49.0)), (
        "kind and address are from the reader's own fleet"
    )


def test_sample_counts_once_and_its_evidence_keeps_its_age() -> None:
    samples = MemberSamples("cp-2")
    (first,) = samples.read(text_of(REPORT, 10.0), 50.0, PLANS)
    assert samples.read(text_of(REPORT, 11.0), 51.2, PLANS) == []
    newer = replace(REPORT, at=OTHER_CLOCK + 11.5)
    (second,) = samples.read(text_of(newer, 12.0), 52.4, PLANS)
    assert second.signals.evidence == first.signals.evidence
    (faster,) = samples.read(text_of(replace(REPORT, at=OTHER_CLOCK + 12.5), 13.0), 52.9, PLANS)
    assert faster.signals.evidence.at <= first.signals.evidence.at  # type: ignore[union-attr]
    assert faster.at <= 52.9


def test_restarted_member_is_read_with_its_new_clock() -> None:
    samples = MemberSamples("cp-2")
    samples.read(text_of(REPORT, 10.0), 50.0, PLANS)
    (read,) = samples.read(write_samples({KEY: replace(REPORT, at=1.0)}, 2.0), 60.0, PLANS)
    assert read.at == pytest.approx(59.0)


def test_text_of_the_previous_version_is_read() -> None:
    row = [9.5, 0, 0, [3, [7, 20]], 1, [], None, [], 1, 12.0, [[0, 0, 3000, 0.5]]]
    body = json.dumps([2, 10.0, [[["queue", 0], ["of_a_later_version", 0]], []], {"chat": {"a": row}}]).encode()
    (read,) = MemberSamples("cp-2").read(base64.b64encode(zlib.compress(body)).decode(), 50.0, PLANS)
    assert read.signals.values == {"queue": Signal(3.0, pytest.approx(49.0), 0)}
    assert (read.first_tokens, read.prompt_tokens, read.cached) == (12.0, None, None)


def test_the_previous_version_can_read_the_text() -> None:
    """It reads rows of 11 values, and ignores names that are not signals."""
    form, _, shapes, pools = json.loads(zlib.decompress(base64.b64decode(text_of(REPORT, 10.0))))
    row = pools["chat"]["a"]
    assert (form, len(row)) == (2, 11)
    assert [name for name, _ in shapes[row[2]]] == [
        "queue", "prompt_tokens", "cached_total", "cached_device", "cached_disk", "cached_page", "cached_lines",
    ]  # fmt: skip
    assert [name for name, _ in shapes[row[2]] if name in SIGNALS] == ["queue"]


def test_failed_scrape_keeps_its_reason() -> None:
    failed = replace(REPORT.sources[0], reason="timeout", message="no answer", refused=(("x", "is no number"),))
    (read,) = MemberSamples("cp-2").read(text_of(replace(REPORT, sources=(failed,)), 10.0), 50.0, PLANS)
    assert (read.sources[0].reason, read.sources[0].message) == ("timeout", "no answer")
    assert read.sources[0].refused == (("x", "is no number"),)


def test_replica_with_another_scrape_plan_is_ignored() -> None:
    assert MemberSamples("cp-2").read(text_of(REPORT, 10.0), 50.0, {}) == []
    two = replace(REPORT, sources=REPORT.sources * 2)
    assert MemberSamples("cp-2").read(text_of(two, 10.0), 50.0, PLANS) == []


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, at=float("nan")),
        replace(REPORT, source=7),
        replace(REPORT, first_tokens=float("inf")),
        replace(REPORT, cached=CachedTokens(float("inf"), {})),
        replace(REPORT, prompt_tokens=float("inf")),
        replace(REPORT, sources=(replace(REPORT.sources[0], reason="because"),)),  # type: ignore[arg-type]
    ],
)
def test_invalid_values_are_rejected(report: ScrapeReport) -> None:
    with pytest.raises(UNREADABLE):
        MemberSamples("cp-2").read(text_of(report, 10.0), 50.0, PLANS)


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: "", lambda text: "AAAA", lambda text: text[4:]]
)
def test_damaged_text_is_rejected(damage) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UNREADABLE):
        MemberSamples("cp-2").read(damage(text_of(REPORT, 10.0)), 50.0, PLANS)


@pytest.mark.parametrize("row", [[], [10**400, 0, 0, [], 0, [], None, [], 0, None, [[0, 0, 1, 0.1]]]])
def test_row_of_wrong_length_is_rejected(row: list[object]) -> None:
    body = json.dumps([2, 10.0, [], {"chat": {"a": row}}]).encode()
    with pytest.raises(UNREADABLE):
        MemberSamples("cp-2").read(base64.b64encode(zlib.compress(body)).decode(), 50.0, PLANS)


def test_unknown_shape_number_is_rejected() -> None:
    form, now, _, pools = json.loads(zlib.decompress(base64.b64decode(text_of(REPORT, 10.0))))
    body = json.dumps([form, now, [], pools]).encode()
    with pytest.raises(UNREADABLE):
        MemberSamples("cp-2").read(base64.b64encode(zlib.compress(body)).decode(), 50.0, PLANS)


@pytest.mark.slow
def test_samples_of_10000_replicas_fit_into_any_store() -> None:
    numbers = random.Random(1)

    def measured() -> ScrapeReport:
        at, seconds = OTHER_CLOCK + numbers.random(), numbers.random() / 20
        values = {name: numbers.random() for name in ("itl", "ttft", "cache")} | {"queue": 7.0, "running": 31.0}
        signals = {name: Signal(value, at - seconds, 0) for name, value in values.items()}
        evidence = TokenEvidence(at - seconds, *(numbers.uniform(1, 1000) for _ in range(4)))
        state = SourceState("vllm", "", at, at - seconds, size=numbers.randrange(20_000, 30_000), seconds=seconds)
        return replace(REPORT, at=at, signals=Signals(signals, {}, evidence), sources=(state,), restarted=False)

    reports = {(f"pool-{number % 50}", f"replica-{number}"): measured() for number in range(10_000)}
    assert len(write_samples(reports, OTHER_CLOCK + 1)) < 900_000
