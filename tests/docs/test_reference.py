"""The pages about the fleet file and the schema explain every key."""

from __future__ import annotations

import re
from typing import Any

from lbctl.cli.schema import described, schema
from tests.docs.reference_page import texts

UNSHOWN = {"HeaderKey", "Nothing"}
"""Objects without a table: `{header: NAME}` and `{}` are explained where they are used."""


def sections() -> dict[str, dict[str, Any]]:
    """Return every object of the schema by its name, without the partial ones for defaults."""
    root = described()
    definitions = {
        name: definition for name, definition in root["definitions"].items() if not name.startswith("Partial")
    }
    return {"": root} | definitions


def tables() -> dict[str, list[str]]:
    """Return the rows of each table by its title."""
    parts = re.split(r"^###? ", "\n".join(texts().values()), flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: re.findall(r"^\| (?:\*\*)?`\w+`.+$", part, re.MULTILINE) for part in parts}


def test_every_key_has_a_description() -> None:
    undescribed = [
        f"{name}.{key}"
        for name, section in sections().items()
        for key, description in section.get("properties", {}).items()
        if not re.fullmatch(r"[A-Z`0-9].{4,220}\.", description.get("description", ""))
    ]
    assert undescribed == []


def test_description_for_editors_includes_the_grammar() -> None:
    active = schema()["definitions"]["Active"]["properties"]
    assert active["interval"]["description"] == (
        "Time between checks of a replica. A duration: for example 250ms, 5s, 10m, 1h."
    )
    assert "grammar" not in active["interval"]
    assert schema()["definitions"]["PartialActive"]["properties"]["interval"] == active["interval"]


def test_every_key_has_a_row() -> None:
    shown = {tuple(sorted(re.findall(r"`(\w+)`", row)[0] for row in rows)) for rows in tables().values() if rows}
    keys_by_name = {name: tuple(sorted(section.get("properties", ()))) for name, section in sections().items()}
    assert {name for name, keys in keys_by_name.items() if keys not in shown} <= UNSHOWN


def test_row_has_value_default_meaning_and_proxies() -> None:
    rows = {re.findall(r"`(\w+)`", row)[0]: row for row in tables()["`pools.*.health.active`"]}
    assert (
        rows["interval"] == "| `interval` | a duration | `10s` | Time between checks of a replica. | "
        "nginx (by `serve`), HAProxy, Envoy |"
    )
    (window, *_) = [row for row in tables()["`pools.*.slow_start`"] if "`window`" in row]
    assert window.endswith("| nginx (by `serve`), HAProxy, Envoy |")
    (rate, *_) = [row for row in tables()["`pools.*.affinity`"] if "`cookie`" in row]
    assert rate.endswith("| nginx 1.29.6 or later, HAProxy, Envoy |")
    assert all(row.count(" | ") == 4 for rows in tables().values() for row in rows)
