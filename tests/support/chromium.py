"""A real headless Chromium, controlled by its DevTools protocol over one websocket.

Exceptions, console errors and violations of the page's content security policy are collected, so that a test can assert
that there are none.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-proxy-server", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--remote-debugging-port=0", "--remote-allow-origins=*", "--window-size=1440,900",
)  # fmt: skip

_CLICKABLE = """async selector => {
  const element = document.querySelector(selector);
  element?.scrollIntoView({block: 'nearest'});
  const before = element?.getBoundingClientRect();
  await new Promise(requestAnimationFrame);
  const now = element?.getBoundingClientRect();
  if (!element?.isConnected || before.x !== now.x || before.y !== now.y) return false;
  return element.contains(document.elementFromPoint(now.x + now.width / 2, now.y + now.height / 2));
}"""
"""Checks whether an element keeps its position for one frame, and a click on its middle reaches it."""


class Page:
    """The only tab of a Chromium. Every method waits for its effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        """Exceptions, console errors and violations of the policy, in order."""
        self.requested: list[str] = []
        """URLs that the page has requested."""
        self._loop = loop
        self._socket = socket
        self._numbers = itertools.count(1)

    def open(self, url: str) -> None:
        """Load the page, and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, timeout: float = _TIMEOUT) -> Any:
        """Wait until the expression is true, and return its value."""
        end = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"not within {timeout:g} s: {expression}; {self.problems}"
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """Return the text of the first element that matches."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Wait until the element stops moving and nothing covers it, and click it with the mouse."""
        self._await_element(selector)
        self.wait(f"({_CLICKABLE})({json.dumps(selector)})")
        box = self.evaluate(
            f"(() => {{const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def fill(self, selector: str, text: str) -> None:
        """Type the text into a field, replacing its content."""
        self._await_element(selector)
        self.evaluate(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.focus(); e.value = ''}})()"
        )
        self.call("Input.insertText", text=text)

    def _await_element(self, selector: str) -> None:
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "End": 35}.get(key, ord(key[0]))
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def prefer(self, scheme: str) -> None:
        """Set the system's colour scheme to `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), _TIMEOUT))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, data: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = data["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
        elif event == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(item.get("value", item.get("description"))) for item in data["args"]))
        elif event == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{data['entry']['text']} {data['entry'].get('url', '')}".strip())
        elif event == "Network.requestWillBeSent":
            self.requested.append(data["request"]["url"])


@contextmanager
def browsing() -> Iterator[Page]:
    """Run a Chromium with one empty page until the block ends."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium; in CI that is a failure: .ci/need chromium")
        pytest.skip("no Chromium on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        loop = asyncio.new_event_loop()
        try:
            assert process.stderr is not None
            lines = (line.decode(errors="replace") for line in process.stderr)
            address = next(found[1] for line in lines if (found := re.search(r"ws://(127\.0\.0\.1:\d+)/", line)))
            page, session = loop.run_until_complete(_connect(loop, address))
            try:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.call(f"{domain}.enable")
                yield page
            finally:
                loop.run_until_complete(session.close())
        finally:
            process.kill()
            process.communicate()
            loop.close()


async def _connect(loop: asyncio.AbstractEventLoop, address: str) -> tuple[Page, aiohttp.ClientSession]:
    async with AsyncExitStack() as failing:
        session = await failing.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://{address}/json/list") as answer:
            tabs = await answer.json(content_type=None)
        url = next(item["webSocketDebuggerUrl"] for item in tabs if item["type"] == "page")
        page = Page(loop, await session.ws_connect(url, max_msg_size=0))
        failing.pop_all()
    return page, session
