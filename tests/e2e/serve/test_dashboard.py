"""The dashboard of a running `serve` in a real Chromium."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chromium import Page, browsing
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST

pytestmark = pytest.mark.e2e
READER = "bob-only-reads-this"
HTML = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script><b id="made">&amp;</b>'
VIEWS = ("fleet", "heat", "rollouts", "proxies", "history", "log")


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    with controlling(fleet(4)) as running:
        token = (running.state / "api-token").read_text().strip()
        (running.state / "api-token").write_text(f"alice:operate:{token}\nbob:read:{READER}\n")
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture
def page(browser: Page, control: ControlPlane) -> Iterator[Page]:
    """Return the live dashboard in a window of usual size; it must not report any problem."""
    browser.open("about:blank")
    browser.problems.clear()
    browser.requested.clear()
    browser.resize(1440, 900)
    show(browser, control)
    yield browser
    assert browser.problems == []
    assert [url for url in browser.requested if not url.startswith((control.url, "about:", "data:"))] == []


def fleet(replicas: int, port: int | None = None):  # type: ignore[no-untyped-def]
    """Return a fleet with replicas that do not listen, or that are all on one port."""
    members = [{"name": f"r{number}", "address": f"{HOST}:{port or 1 + number}"} for number in range(replicas)]
    return fleet_of({"replicas": members})


def show(page: Page, control: ControlPlane, view: str = "fleet") -> None:
    page.open(f"{control.url}/#{view}")
    page.wait("document.querySelector('#link').dataset.link === 'live'")


def leave(page: Page) -> None:
    """Leave the page of a control plane that has ended, which reports problems until then."""
    page.open("about:blank")
    page.problems.clear()
    page.requested.clear()


def state_of(replica: str) -> str:
    """Return JavaScript for the state in the row of this replica."""
    return (
        "[...document.querySelectorAll('.rows .tr:not([hidden])')]"
        f".find((row) => row.querySelector('.name .text').textContent === {json.dumps(replica)})?.dataset.state"
    )


def drain(control: ControlPlane, replica: str, reason: str = "a test") -> None:
    body = {"kind": "drain", "pool": "pool", "replica": replica, "reason": reason}
    assert control._ask("POST", "/api/v1/overrides", json=body, headers=operator(control)).status_code == 200


def undrain(control: ControlPlane, replica: str) -> None:
    body = {"kind": "drain", "pool": "pool", "replica": replica}
    assert control._ask("DELETE", "/api/v1/overrides", json=body, headers=operator(control)).status_code == 200


def operator(control: ControlPlane) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(control)}"}


def token_of(control: ControlPlane) -> str:
    return (control.state / "api-token").read_text().split()[0].rpartition(":")[2]


def test_change_of_a_replica_is_shown_live(page: Page, control: ControlPlane) -> None:
    page.wait(f"{state_of('r1')} === 'down'")  # no process listens at its address
    drain(control, "r1")
    page.wait(f"['drained', 'draining'].includes({state_of('r1')})")
    undrain(control, "r1")
    page.wait(f"{state_of('r1')} === 'down'")


def test_drain_dialog_needs_a_reason_and_a_token(page: Page, control: ControlPlane) -> None:
    page.click(".rows .tr:nth-child(1)")
    page.click(".panel .buttons button")
    assert "gets no new requests and finishes its current ones" in page.text("#dialog")
    page.click("#dialog button[type=submit]")
    assert "enter a short reason" in page.text("#dialog")
    page.fill("#dialog input[name=reason]", "a broken fan")
    reads_only = "bob's token allows read access only"
    for wrong, words in (("not-a-token", "this operation needs the token"), (READER, reads_only)):
        page.fill("#dialog input[name=token]", wrong)
        page.click("#dialog button[type=submit]")
        page.wait(f"document.querySelector('#dialog .problem[role=alert]').textContent.includes({json.dumps(words)})")
        assert control.get("overrides")["overrides"] == []
        page.problems = [each for each in page.problems if "status of 40" not in each]
        if wrong == READER:
            page.press("Escape")
            page.click("#access")
            page.click(".panel .buttons button")
            page.fill("#dialog input[name=reason]", "a broken fan")
    page.fill("#dialog input[name=token]", token_of(control))
    page.click("#dialog button[type=submit]")
    page.wait("!document.querySelector('dialog[open]')")
    (override,) = control.get("overrides")["overrides"]
    assert (override["author"], override["reason"]) == ("alice", "a broken fan")
    page.wait("document.querySelector('.panel .buttons').innerText.includes('Undrain')")
    assert token_of(control) not in page.evaluate("JSON.stringify([localStorage, sessionStorage, location.href])")
    page.click(".panel .buttons button")
    page.click("#dialog button[type=submit]")
    page.wait("document.querySelector('.panel .buttons').innerText.startsWith('Drain')")
    assert control.get("overrides")["overrides"] == []
    show_log = "document.querySelector('.log')?.innerText ?? ''"
    page.evaluate("location.hash = 'log'")
    page.wait(f"({show_log}).includes('a broken fan') && ({show_log}).includes('alice')")
    page.wait(f"({show_log}).split('a broken fan').length === 2")  # one line for one action


def test_dialogs_set_a_share_a_split_and_an_earlier_fleet(page: Page) -> None:
    steps = {"to": "new", "mode": "manual", "steps": [{"percent": "5%"}, {"percent": "100%"}]}
    chat = {"match": {"path_prefix": "/"}, "split": {"old": 100, "new": 0}, "rollout": steps}
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        pools = {"old": fleet(1, port)["pools"]["pool"], "new": fleet(1, port)["pools"]["pool"]}
        _set_a_share_a_split_and_an_earlier_fleet(page, {**fleet(1), "routes": {"chat": chat}, "pools": pools})


def _set_a_share_a_split_and_an_earlier_fleet(page: Page, files: dict[str, Any]) -> None:
    with controlling(files) as other:
        show(page, other, "rollouts")
        press_button(page, "Start")
        submit(page, reason="it is time", token=token_of(other))
        press_button(page, "Set share")
        assert "pauses there until an operator resumes" in page.text("#dialog")
        submit(page, reason="half of it", percent="40")
        (rollout,) = other.get("rollouts")["rollouts"]
        assert (rollout["phase"], rollout["percent"], rollout["reason"]) == ("paused", 40.0, "half of it")

        press_button(page, "Override split")
        page.fill("#dialog input[name='share old']", "0")
        page.fill("#dialog input[name='share new']", "0")
        page.click("#dialog button[type=submit]")
        assert "at least one share must be above 0" in page.text("#dialog")
        submit(page, **{"reason": "a look at both", "share old": "3", "share new": "1", "ttl": "1h"})
        (held,) = other.get("overrides")["overrides"]
        assert (held["kind"], held["route"], held["shares"]) == ("split", "chat", {"new": 1, "old": 3})
        page.wait("document.querySelector('#view-rollouts').innerText.includes('“a look at both”')")
        press_button(page, "Release split")
        submit(page)
        assert other.get("overrides")["overrides"] == []

        before = other.get("history")["entries"][-1]["digest"]
        files["pools"]["old"] = fleet(3)["pools"]["pool"]
        other.write(files)
        page.evaluate("location.hash = 'history'")
        press_button(page, "Roll back")
        page.fill("#dialog input[name=reason]", "it was better before")
        page.click("#dialog button[type=submit]")
        refused = (
            "document.querySelector('#dialog [role=alert]')?.textContent.startsWith('Nothing has changed: refused')"
        )
        page.wait(refused)
        page.click("#dialog input[name=allow]")
        submit(page)
        assert page.text("#dialog [role=alert]") == f"{before[:8]} is published."
        press_button(page, "Close", "#dialog")
        assert other.status["served"]["digest"] == before
        assert other.status["served"]["rollback"]["reason"] == "it was better before"
        page.wait(f"document.querySelector('tr[aria-current]')?.innerText.includes('{before[:12]}')")
        page.evaluate("location.hash = 'fleet'")
        page.wait("document.querySelector('.tiles').innerText.includes('rolled back until the files change')")
        assert page.evaluate("document.querySelector('.alerts [data-tone=bad]')") is None
    leave(page)


def press_button(page: Page, label: str, within: str = "main") -> None:
    """Click the first visible button with this text."""
    buttons = f"[...document.querySelectorAll({json.dumps(f'{within} button')})]"
    page.wait(
        f"{buttons}.some((each) => each.classList.toggle('pressed', each.checkVisibility() && each.textContent === "
        f"{json.dumps(label)}))"
    )
    page.click(f"{within} button.pressed")


def submit(page: Page, **fields: str) -> None:
    """Submit the dialog with these values, and wait until its action is complete."""
    for name, text in fields.items():
        page.fill(f"#dialog input[name='{name}']", text)
    page.click("#dialog button[type=submit]")
    page.wait("document.querySelector('#dialog .problem.fine, dialog:not([open])') !== null")


def test_html_in_names_and_reasons_is_text(page: Page, control: ControlPlane) -> None:
    wrong = fleet(4)
    wrong["pools"]["pool"]["balance"] = {"algorithm": HTML}
    control.write(wrong)
    page.wait("document.querySelector('.alerts').textContent.includes('<img')")
    drain(control, "r2", HTML)
    page.wait("[...document.querySelectorAll('.why .text')].some((cell) => cell.textContent.includes('<script>'))")
    for view in VIEWS:
        page.evaluate(f"location.hash = '{view}'")
        time.sleep(0.3)
    page.wait("document.querySelector('.log').textContent.includes('onerror')")
    assert page.evaluate("[window.hurt ?? null, document.querySelector('#made')]") == [None, None]
    undrain(control, "r2")
    control.write(fleet(4))
    page.evaluate("location.hash = 'fleet'")
    page.wait("!document.querySelector('.alerts').textContent.includes('<img')")


def test_light_and_dark_follow_the_system_and_the_switch(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    light = page.evaluate(colour)
    page.prefer("dark")
    dark = page.evaluate(colour)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(colour) == light
    page.click("#theme")
    assert page.evaluate(colour) == dark
    page.prefer("light")
    assert page.evaluate(colour) == dark
    page.click("#theme")
    assert page.evaluate(colour) == light


def test_dashboard_works_without_local_storage(page: Page, control: ControlPlane) -> None:
    denied = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source=denied)
    try:
        page.open("about:blank")
        show(page, control)
        page.wait(state_of("r3"))
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_no_view_scrolls_sideways(page: Page, width: int) -> None:
    page.resize(width, 800, mobile=width < 500)
    for view in VIEWS:
        page.evaluate(f"location.hash = '{view}'")
        page.wait(f"document.querySelector('#view-{view}:not([hidden])') !== null")
        for element in ("document.documentElement", "document.querySelector('main')"):
            assert page.evaluate(f"{element}.scrollWidth - {element}.clientWidth") == 0, (view, element)


def test_keyboard_reaches_everything(page: Page) -> None:
    page.wait(state_of("r3"))
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.call("Input.insertText", text="r3")
    page.wait("document.querySelector('.grid').getAttribute('aria-rowcount') === '2'")
    page.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "grid"
    assert page.evaluate("document.activeElement.getAttribute('aria-activedescendant')") == "row-0"
    page.press("Enter")
    page.wait("document.querySelector('.panel h2')?.textContent === 'r3 in pool'")
    page.press("Escape")
    page.wait("document.querySelector('.panel').hidden")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "grid"
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    for _ in range(4):
        page.press("Tab")
        assert page.evaluate(ring) != "none"
    page.fill("#query", "")


def test_views_say_that_they_load_before_data_arrives(page: Page, control: ControlPlane) -> None:
    page.call("Network.enable")
    page.call("Network.setBlockedURLs", urls=["*/api/v1/live*"])
    page.open("about:blank")
    page.open(f"{control.url}/#fleet")
    for view in ("fleet", "rollouts", "proxies"):
        page.evaluate(f"location.hash = '{view}'")
        page.wait(f"document.querySelector('#view-{view} .empty')?.innerText === 'Loading…'")
    page.call("Network.setBlockedURLs", urls=[])
    page.wait("document.querySelector('#link').dataset.link === 'live'")
    page.wait("document.querySelector('#view-proxies .empty').innerText === 'No proxy is connected or managed.'")
    page.problems.clear()


def test_lost_connection_is_shown_until_it_is_back(page: Page) -> None:
    with controlling(fleet(2)) as other:
        show(page, other)
        other.stop()
        page.wait("document.querySelector('#banner').textContent.startsWith('Disconnected since')")
        assert page.evaluate("document.documentElement.classList.contains('stale')")
        assert page.evaluate("document.querySelector('#banner').checkVisibility()")
        other.start()
        page.wait("document.querySelector('#link').dataset.link === 'live'")
        assert not page.evaluate("document.querySelector('#banner').checkVisibility()")
        assert not page.evaluate("document.documentElement.classList.contains('stale')")
    leave(page)


def test_hanging_serve_is_shown_after_some_seconds(page: Page) -> None:
    with controlling(fleet(2)) as other:
        show(page, other)
        other.signal(signal.SIGSTOP)
        page.wait("document.querySelector('#banner').textContent.includes('no data for')")
        other.signal(signal.SIGCONT)
    leave(page)


def test_thousand_replicas_scroll_without_a_long_task(page: Page) -> None:
    with controlling(fleet(1_000)) as other:
        show(page, other)
        page.wait("document.querySelector('.grid').getAttribute('aria-rowcount') === '1001'")
        assert page.evaluate("document.querySelectorAll('.rows .tr').length") < 60
        page.evaluate("document.querySelector('.grid').scrollTop = 1e9")
        page.wait(state_of("r999"))
        drain(other, "r999")
        page.wait(f"['drained', 'draining'].includes({state_of('r999')})")
        page.call("Performance.enable", timeDomain="threadTicks")
        before, started = busy(page), time.monotonic()
        page.evaluate(
            "(async () => {const grid = document.querySelector('.grid'); for (let step = 0; step < 90; step += 1) "
            "{grid.scrollTop = step * 400; await new Promise(requestAnimationFrame)}})()"
        )
        share = (busy(page) - before) / (time.monotonic() - started)
        assert 0 < share < 0.8
    leave(page)


def busy(page: Page) -> float:
    """Return the processor time of the page's main thread in seconds."""
    metrics = {item["name"]: item["value"] for item in page.call("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])
