"""`python -m tests.docs.demo_picture`: make docs/images/demo.svg, which shows moments of a real run of the demo."""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lbctl.demo.session import DemoSession, demo
from lbctl.demo.totals import Totals
from lbctl.demo.view import tables
from lbctl.up.proxy_choice import installed
from tests.support.paths import ROOT

PICTURE = ROOT / "docs" / "images" / "demo.svg"
_DURATION = 60.0
_MOMENTS = (0.08, 0.26, 0.42, 0.66, 0.93)
"""Parts of the run, each a few seconds after a fault or a canary began."""
_COLUMNS = 138
_SHOWN = 4
"""Seconds for which each moment is shown."""


def picture(moments: Sequence[str]) -> str:
    """Return an SVG that shows other SVGs one after another, or the last one if the reader prefers no motion."""
    sizes = [re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', moment) for moment in moments]
    width, height = (max(float(size[axis]) for size in sizes if size) for axis in (1, 2))
    frames = (
        f'<g class="moment" style="animation-delay:{_SHOWN * number}s">{_sized(moment, height)}</g>'
        for number, moment in enumerate(moments)
    )
    style = f"""\
.moment {{ visibility: hidden; animation: moment {_SHOWN * len(moments)}s step-end infinite }}
@keyframes moment {{ 0% {{ visibility: visible }} {100 / len(moments):g}% {{ visibility: hidden }} }}
@media (prefers-reduced-motion) {{ .moment {{ animation: none }} .moment:last-child {{ visibility: visible }} }}"""
    body = "\n".join(frames)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">\n'
        f"<style>\n{style}\n</style>\n{body}\n</svg>\n"
    )


def _sized(moment: str, height: float) -> str:
    """Return the SVG with its size in pixels and without the fonts that Rich loads from a server.

    The terminal of a short moment is as high as the terminal of the longest one.
    """
    moment = re.sub(r"@font-face \{.*?\}\n", "", moment, flags=re.DOTALL)
    moment = re.sub(r'(<rect fill="[^>]* width="[0-9.]+" height=")[0-9.]+', rf"\g<1>{height - 2:g}", moment, count=1)
    return re.sub(
        r'viewBox="0 0 ([0-9.]+) [0-9.]+"',
        rf'width="\1" height="{height:g}" viewBox="0 0 \1 {height:g}"',
        moment,
        count=1,
    )


async def _record(session: DemoSession, moments: list[str]) -> None:
    script = asyncio.create_task(session.run_script())
    totals = {name: Totals(load) for name, load in session.loads.items()}
    for number, part in enumerate(_MOMENTS):
        await asyncio.sleep(max(0.0, session.began + part * _DURATION - time.monotonic()))
        console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(tables(session, totals, roomy=True))
        moments.append(console.export_svg(title="lbctl demo", unique_id=f"moment-{number}"))
    await script


def main() -> None:
    """Run the demo with an Envoy, and write the picture."""
    moments: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(
            demo(next(installed(("envoy",))), Path(place), _DURATION, lambda session: _record(session, moments))
        )
    PICTURE.write_text(picture(moments), encoding="utf-8")


if __name__ == "__main__":
    main()
