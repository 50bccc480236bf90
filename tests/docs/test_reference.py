"""docs/reference.md and the schema explain every key."""

from __future__ import annotations

import re
from typing import Any

from lbctl.cli.schema import described, schema
from tests.docs.reference_page import page

UNSHOWN = {"HeaderKey", "Nothing"}
"""Objects without a table: `{header: NAME}` and `{}` stand where they are used."""


def sections() -> dict[str, dict[str, Any]]:
    """Every object of the schema as it is written in full."""
    found = described()
    whole = {name: held for name, held in found["definitions"].items() if not name.startswith("Partial")}
    return {"": found} | whole


def tables() -> dict[str, list[str]]:
    """Title → its rows."""
    parts = re.split(r"^###? ", page(), flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: re.findall(r"^\| (?:\*\*)?`\w+`.+$", part, re.MULTILINE) for part in parts}


def test_every_key_says_what_it_is() -> None:
    silent = [
        f"{name}.{key}"
        for name, section in sections().items()
        for key, told in section.get("properties", {}).items()
        if not re.fullmatch(r"[A-Z`0-9].{4,220}\.", told.get("description", ""))
    ]
    assert silent == []


def test_editors_show_the_meaning_and_the_grammar_together() -> None:
    active = schema()["definitions"]["Active"]["properties"]
    assert active["interval"]["description"] == (
        "The time between two checks of a replica. A duration: as 250ms, 5s, 10m, 1h."
    )
    assert "grammar" not in active["interval"]
    assert schema()["definitions"]["PartialActive"]["properties"]["interval"] == active["interval"]


def test_every_key_has_its_row() -> None:
    shown = {tuple(sorted(re.findall(r"`(\w+)`", row)[0] for row in rows)) for rows in tables().values() if rows}
    there = {name: tuple(sorted(held.get("properties", ()))) for name, held in sections().items()}
    assert {name for name, keys in there.items() if keys not in shown} <= UNSHOWN


def test_a_row_has_value_default_meaning_and_who_does_it() -> None:
    rows = {re.findall(r"`(\w+)`", row)[0]: row for row in tables()["`pools.*.health.active`"]}
    assert (
        rows["interval"] == "| `interval` | a duration | `10s` | The time between two checks of a replica. | "
        "nginx by `serve`, HAProxy, Envoy |"
    )
    (window, *_) = [row for row in tables()["`pools.*.slow_start`"] if "`window`" in row]
    assert window.endswith("| nginx by `serve`, HAProxy, Envoy |")
    (rate, *_) = [row for row in tables()["`pools.*.affinity`"] if "`cookie`" in row]
    assert rate.endswith("| nginx from 1.29.6, HAProxy, Envoy |")
    assert all(row.count(" | ") == 4 for rows in tables().values() for row in rows)
