"""HAProxy's own checker: its command, and the parser of its output."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.targets.haproxy import locality_tiers, sections
from lbctl.targets.target import Bundle, Complaint

_ALERT = re.compile(r"^\[ALERT\]\s+\(\d+\)\s*:\s*(?:config\s*:\s*)?(?P<text>.*)$")
_PLACE = re.compile(r"^(?:parsing )?\[(?P<file>[^\]]*):(?P<line>\d+)\]\s*:?\s*(?P<text>.*)")
_SERVER = re.compile(r"'server (?:lbctl_)?pool_(?P<pool>[A-Za-z0-9._-]+)/(?P<server>[A-Za-z0-9._-]+)'")
_NAMED = re.compile(r"(?P<kind>[Ff]rontend|[Bb]ackend|[Pp]roxy) '(?P<name>[A-Za-z0-9._-]+)'")
_OWN = re.compile(r"server '(?:[A-Za-z0-9._-]+/)?(?P<server>[A-Za-z0-9._-]+)'")
_SUMMARY = re.compile(r"^(Error\(s\) found in configuration file|Fatal errors found in configuration)")


def command(binary: str, main: str) -> list[str]:
    """Return the command that checks the configuration `main`."""
    return [binary, "-c", "-f", main]


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """Yield one complaint per alert, except for HAProxy's closing summary."""
    for line in output.splitlines():
        alert = _ALERT.match(line)
        if alert and not _SUMMARY.match(alert["text"]):
            yield _complaint(alert["text"], bundle)


def _complaint(text: str, bundle: Bundle) -> Complaint:
    place = _PLACE.match(text)
    if place is None:
        return Complaint(text, bundle.main.name, None, _path(text))
    number = int(place["line"])
    return Complaint(place["text"], bundle.main.name, number, bundle.main.sources.get(number) or _path(place["text"]))


def _path(text: str) -> Path:
    """Return the YAML path of the value that an alert refers to, as precisely as possible."""
    qualified_match = _SERVER.search(text)
    if qualified_match:
        return ("pools", locality_tiers.pool_name(qualified_match["pool"]), "replicas", qualified_match["server"])
    section_match, server_match = _NAMED.search(text), _OWN.search(text)
    if section_match is None:
        return ()
    kind, _, name = section_match["name"].removeprefix(sections.OWN).partition("_")
    section = {"pool": "pools", "listener": "listeners"}.get(kind)
    if section is None:
        return ()
    name = locality_tiers.pool_name(name)
    return (
        (section, name, "replicas", server_match["server"]) if server_match and section == "pools" else (section, name)
    )
