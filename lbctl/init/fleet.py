"""From URLs to the text of a fleet that `lint` has nothing against; or to what is wrong, all of it.

The text goes through lint before anybody gets it. Two findings are the user's to decide (a single server, servers that
share a host's GPUs): they get a comment with the reason. Any other one means that a server said something that makes no
fleet: then there is no text.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.init.ask import PATIENCE, Answers, ask
from lbctl.init.place import Place, places
from lbctl.init.pools import joined, pools_of
from lbctl.init.routes import routes_of
from lbctl.init.tell import Beside, Server, told
from lbctl.init.write import text
from lbctl.lint.run import Choice, lint
from lbctl.model.load import Text

SILENT, UNSOUND = "LB960", "LB963"
FIRST_PORT = 8080
_MOST = 64
"""URLs of one call."""
_REASONS = {
    "LB218": "init was given one server of this model: add another, or keep this",
    "LB617": 'which GPU is whose is yours to say: devices: ["0"]',
}
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True, slots=True)
class Drawn:
    """`text`: the file, or "" where something is wrong. `said`: of each URL what it is, for people."""

    text: str
    said: tuple[str, ...] = ()


def blank() -> str:
    """An annotated fleet of nobody's: addresses of this machine, to be replaced."""
    return files("lbctl.init").joinpath("blank.yaml").read_text(encoding="utf-8")


def draw(urls: Sequence[str], diagnostics: Diagnostics, patience: float = PATIENCE) -> Drawn:
    """Asks every URL once. What is wrong goes to `diagnostics`; wrong URLs are told before anybody is asked."""
    asked = places(urls[:_MOST], diagnostics)
    if len(urls) > _MOST:
        diagnostics.add(Diagnostic("LB962", f"{len(urls)} URLs: init asks {_MOST} at most"))
    if diagnostics.failed:
        return Drawn("")
    servers, besides = _sorted(asyncio.run(ask(asked, patience)), diagnostics)
    if len(diagnostics):
        return Drawn("")
    said = (*map(_server_said, servers), *map(_beside_said, besides))
    return Drawn(_judged(_text(servers, besides, asked), diagnostics), said)


def _sorted(found: Sequence[Answers], diagnostics: Diagnostics) -> tuple[list[Server], list[Beside]]:
    """Servers with all that is known of them, and what stands beside them."""
    servers: list[Server] = []
    besides: list[Beside] = []
    for answers in found:
        match answers.trouble or told(answers):
            case Server() as server:
                servers.append(server)
            case Beside() as beside:
                besides.append(beside)
            case words:
                _silent(diagnostics, answers.place, words)
    hosts = {item.place.host for item in servers}
    for lonely in besides if not len(diagnostics) else ():
        if lonely.place.host not in hosts:
            _silent(diagnostics, lonely.place, f"{lonely.title}, and none of the URLs is a server on that host")
    return joined(servers, besides), besides


def _silent(diagnostics: Diagnostics, place: Place, words: str) -> None:
    diagnostics.add(Diagnostic(SILENT, words, Position(place.url), hint="nothing was written"))


def _text(servers: Sequence[Server], besides: Sequence[Beside], asked: Sequence[Place]) -> str:
    pools = pools_of(servers, besides)
    used = {item.port for item in asked}
    port = next(item for item in range(FIRST_PORT, 65536) if item not in used)
    return text(pools, routes_of(pools), port, _authority())


def _authority() -> str:
    """Where this system keeps the certificates that it believes, and by which the servers were judged."""
    paths = ssl.get_default_verify_paths()
    return next((item for item in (paths.cafile, *_AUTHORITIES) if item and Path(item).is_file()), _AUTHORITIES[0])


def _judged(drawn: str, diagnostics: Diagnostics) -> str:
    """The text, with a comment on each line whose finding is the user's to decide; "" where there is another one."""
    lines = drawn.splitlines()
    codes: dict[int, list[str]] = {}
    for item in lint([Text("fleet.yaml", drawn.encode(), ".")], Diagnostics(), Choice(), None).findings:
        if item.code in _REASONS and item.position is not None:
            codes.setdefault(item.position.line - 1, []).append(item.code)
        else:
            words = f"what the servers say makes no sound fleet: {item.code}, {item.message}"
            diagnostics.add(Diagnostic(UNSOUND, words, hint=f"lbctl rule {item.code}"))
    for line, found in codes.items():
        reasons = "; ".join(_REASONS[item] for item in found)
        lines[line] += f"   # lbctl: ignore {', '.join(found)} ({reasons})"
    return "" if diagnostics.failed else "\n".join(lines) + "\n"


def _beside_said(item: Beside) -> str:
    return f"{item.place.url}: {item.title}" + (f", {_counted(len(item.gpus), 'GPU')}" if item.gpus else "")


def _server_said(item: Server) -> str:
    count = len(item.models.raw)
    return f"{item.place.url}: {item.kind.title}, {_counted(count, 'model') if count else 'models unknown'}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
