"""The views of the dashboard in a real Chromium, with a fake fleet that contains all displayed features."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from tests.support import dashboard
from tests.support.chromium import Page, browsing
from tests.support.dashboard import MovingFleet, remember, serving

pytestmark = pytest.mark.e2e
TOKEN = "alice-operates-this"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page


@contextmanager
def answering(fleet: MovingFleet, token: Path) -> Iterator[str]:
    """Yield the URL of this fleet's dashboard, which a loop in a thread serves."""
    loop, started, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def answer() -> None:
        async with serving(fleet, token) as port:
            urls.append(f"http://127.0.0.1:{port}")
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(answer(),))
    thread.start()
    try:
        assert started.wait(30)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()


@pytest.fixture
def fleet(browser: Page, tmp_path: Path) -> Iterator[MovingFleet]:
    """Yield a fake fleet whose dashboard is open; the page must not report any problem."""
    token = tmp_path / "token"
    token.write_text(f"alice:operate:{TOKEN}\n")
    fake = MovingFleet()
    remember(fake)
    with answering(fake, token) as url:
        browser.problems.clear()
        browser.resize(1440, 900)
        browser.open(f"{url}/#fleet")
        browser.wait("document.querySelector('#link').dataset.link === 'live'")
        yield fake
        assert browser.problems == []
        browser.open("about:blank")


def show(page: Page, view: str) -> None:
    page.evaluate(f"location.hash = '{view}'")
    page.wait(f"document.querySelector('#view-{view}:not([hidden])') !== null")


def test_rollout_shows_steps_and_verdict_and_can_be_aborted(fleet: MovingFleet, browser: Page) -> None:
    show(browser, "rollouts")
    card = "document.querySelector('#view-rollouts .card')"
    browser.wait(f"{card}?.querySelector('.phase').textContent === 'progressing'")
    steps = browser.evaluate(f"[...{card}.querySelectorAll('.steps li')].map((step) => step.dataset.step)")
    assert steps == ["done", "now", "ahead", "ahead"]
    assert "5 %\nhold 5 min" in browser.text("#view-rollouts .steps")
    rows = browser.evaluate(f"[...{card}.querySelectorAll('.analysis tbody tr')].map((row) => row.innerText)")
    assert len(rows) == 3
    assert all(text in rows[0] for text in ("bad", "5.1 % (21 of 410)", "worse beyond chance", "first_byte p95"))
    assert "It waits for one good evaluation." in browser.text(".analysis")
    browser.click("#view-rollouts .card .buttons .danger")
    assert "returns to the split in the files at once" in browser.text("#dialog")
    browser.fill("#dialog input[name=reason]", "too many errors")
    browser.fill("#dialog input[name=token]", TOKEN)
    browser.click("#dialog button[type=submit]")
    browser.wait(f"{card}.querySelector('.phase').textContent === 'aborted'")
    assert fleet.asked == [("alice", schema.RolloutRequest("chat", "abort", reason="too many errors"))]
    assert browser.text("#view-rollouts .card .buttons") == "Start"


def test_heat_map_shows_the_history_of_each_replica(fleet: MovingFleet, browser: Page) -> None:
    show(browser, "heat")
    rows = len([row for pool, of_pool in fleet.live() for row in of_pool if pool.name == "llama-70b"])
    browser.wait("document.querySelector('.heat').getAttribute('aria-label')?.startsWith('Observed share of')")
    assert browser.text(".heat-names").split() == [f"llama-{number:02d}" for number in range(rows)]
    colours = (
        "(() => {const canvas = document.querySelector('.heat'), context = canvas.getContext('2d');"
        "const column = context.getImageData(canvas.width / 2, 0, 1, canvas.height).data;"
        f"const start = (row) => 4 * Math.floor((row + 0.5) * canvas.height / {rows});"
        "return [0, 3, 11].map((row) => [...column.slice(start(row), start(row) + 4)])})()"
    )
    fair, slow, drained = browser.evaluate(colours)
    assert [colour[3] for colour in (fair, slow, drained)] == [255, 255, 255]
    assert drained[:3] == [68, 1, 84]
    assert len({tuple(fair), tuple(slow), tuple(drained)}) == 3


def test_proxy_row_shows_state_and_reason(fleet: MovingFleet, browser: Page) -> None:
    show(browser, "proxies")
    row = "[...document.querySelectorAll('#view-proxies tbody tr')].find((row) => row.innerText.startsWith('edge-3'))"
    text = browser.wait(f"({row})?.innerText")
    assert all(part in text for part in ("envoy", "STALE", "77aa0011", "older than the published version", "eds sent"))
    assert browser.text("#proxy-count") == "4"
    browser.resize(390, 844, mobile=True)
    assert 0 < browser.evaluate(f"({row}).lastChild.getBoundingClientRect().right") <= 390


def test_files_still_being_read_raise_no_alarm(
    fleet: MovingFleet, browser: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = fleet.status()
    starting = replace(status, ready=False, fleet=replace(status.fleet, valid=False, read=None, diagnostics=()))
    monkeypatch.setattr(fleet, "status", lambda: starting)
    browser.wait("document.querySelector('.tiles').innerText.toLowerCase().includes('being read')")
    assert "refused" not in browser.text("#view-fleet").lower()


def test_picker_has_a_tile_and_raises_an_alarm_if_it_ends(
    fleet: MovingFleet, browser: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, tiles = fleet.status(), "document.querySelector('.tiles').innerText"
    assert "PICKER" not in browser.evaluate(tiles).upper()
    picker = schema.PickerStatus("127.0.0.1:18001", True, False, status.since, 2, None, 7, 1)
    monkeypatch.setattr(fleet, "status", lambda: replace(status, picker=picker))
    browser.wait(f"{tiles}.includes('started 2 times')")
    assert "127.0.0.1:18001" not in browser.text(".alerts")
    gone = replace(picker, running=False, since=None, reason="process 7 has 127.0.0.1:18001")
    monkeypatch.setattr(fleet, "status", lambda: replace(status, picker=gone))
    browser.wait(f"{tiles}.includes('process 7 has')")
    alarm = browser.text(".alerts [data-tone=bad]")
    assert "The picker at 127.0.0.1:18001 is not running: process 7 has 127.0.0.1:18001." in alarm


def test_panel_of_a_pool_shows_expected_and_found_cached_tokens(
    fleet: MovingFleet, browser: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(browser, "fleet")
    browser.click(".pool .quiet")
    panel = "document.querySelector('.panel').innerText"
    browser.wait(f"{panel}.includes('1.44M in 5 min')")
    text = browser.text(".panel")
    assert "20 %" in text
    assert "device 83 %, host 17 %" in text
    assert "Few of the expected cached tokens were found: the engines evict" in text
    monkeypatch.setattr(dashboard, "CACHED", replace(dashboard.CACHED, found=0, sources={"device": 5}))
    browser.wait(f"{panel}.includes('device 100 %')")
    browser.press("Escape")


def test_panel_and_card_of_a_pool_show_its_queue(
    fleet: MovingFleet, browser: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(browser, "fleet")
    browser.click(".pool .quiet")
    panel = "document.querySelector('.panel').innerText"
    assert "Waiting at the picker" not in browser.evaluate(panel)
    queue = schema.PoolQueue(
        500, 10.0, 12, {"high": 0, "normal": 12, "low": 0}, {"acme": 9, "zeta": 3}, 40, 0.41, {},
        refused_full=4, refused_late=2, left=1,
    )  # fmt: skip
    live = fleet.live
    monkeypatch.setattr(fleet, "live", lambda: ((replace(pool, queue=queue), rows) for pool, rows in live()))
    browser.wait(f"{panel}.includes('acme 9, zeta 3')")
    text = browser.text(".panel")
    assert all(part in text for part in ("Waiting at the picker", "410 ms", "Rejected, queue full"))
    assert "12 waiting" in browser.text(".pool-line")
    browser.press("Escape")
