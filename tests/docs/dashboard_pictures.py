"""`python -m tests.docs.dashboard_pictures`: take the screenshots for docs/how-to/dashboard.md, with a made-up
fleet."""

from __future__ import annotations

import asyncio

from tests.support.chromium import Page, browsing
from tests.support.dashboard import MovingFleet, remember, serving
from tests.support.paths import ROOT

IMAGES = ROOT / "docs" / "images"


def take(url: str) -> None:
    """Open the page in a browser, and write both screenshots."""
    with browsing() as page:
        _take(page, url)


def _take(page: Page, url: str) -> None:
    page.resize(1360, 860)
    page.prefer("light")
    page.open(url)
    page.wait("document.querySelectorAll('.rows .tr').length > 5")
    page.click(".rows .tr:nth-child(4)")
    page.wait("document.querySelectorAll('.panel canvas').length === 4")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 2500))")
    page.screenshot(IMAGES / "dashboard-fleet.png")
    page.press("Escape")
    page.prefer("dark")
    page.resize(1360, 620)
    page.evaluate("location.hash = 'heat'")
    page.evaluate("document.querySelectorAll('.controls select')[1].value = 'gpu_utilisation'")
    page.evaluate("document.querySelectorAll('.controls select')[1].dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('.legend').textContent.includes('100 %')")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 500))")
    page.screenshot(IMAGES / "dashboard-heat.png")


async def main() -> None:
    """Serve the fleet, and take the screenshots in a thread."""
    fleet = MovingFleet(72)
    remember(fleet)
    async with serving(fleet) as port:
        await asyncio.to_thread(take, f"http://127.0.0.1:{port}/")


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    asyncio.run(main())
