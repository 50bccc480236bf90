"""The files of the dashboard: safe headers, no other origins, no HTML built from text."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest

from lbctl.serve.api.dashboard.pages import STATIC, pages
from tests.support.api import Fleet
from tests.support.dashboard import serving

OURS = sorted(file for file in STATIC.iterdir() if "uPlot" not in file.name)
HTML_OF_TEXT = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\.srcdoc")


def test_every_file_has_a_strict_content_security_policy() -> None:
    async def ask() -> None:
        async with serving(Fleet()) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path in ("/", *(f"/dashboard/{name}" for name in pages())):
                async with session.get(path) as answer:
                    assert answer.status == 200
                    policy = answer.headers["content-security-policy"]
                    for each in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"):
                        assert each in policy
                    assert "frame-ancestors 'none'" in policy
                    assert "unsafe" not in policy
                    assert answer.headers["x-content-type-options"] == "nosniff"
                    assert answer.headers["referrer-policy"] == "no-referrer"
                    etag = answer.headers["etag"]
                async with session.get(path, headers={"if-none-match": etag}) as answer:
                    assert (answer.status, await answer.read()) == (304, b"")
            async with session.get("/", headers={"host": "rebound.example"}) as answer:
                assert answer.status == 403

    asyncio.run(ask())


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.name))
def test_no_file_loads_from_elsewhere_sets_html_or_stores_tokens(file) -> None:  # type: ignore[no-untyped-def]
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text
    assert not HTML_OF_TEXT.search(text)
    assert not re.search(r"\sstyle=|\son[a-z]+=\"", text)
    assert "sessionStorage" not in text
    assert [name for name in re.findall(r"localStorage\.\w+\(([^,)]*)", text) if "lbctl-theme" not in name] == []


def test_every_import_and_link_of_the_page_exists() -> None:
    linked = {name for file in OURS for name in re.findall(r'"/dashboard/([\w.]+)"', file.read_text(encoding="utf-8"))}
    assert linked - pages().keys() == set()
    assert {"main.js", "uPlot.iife.min.js", "app.css"} <= linked


def test_chart_library_is_shipped_with_licence_and_version() -> None:
    assert "MIT License" in (STATIC / "uPlot.LICENSE.txt").read_text()
    assert "(v1.6.32)" in (STATIC / "uPlot.iife.min.js").read_text(encoding="utf-8")
