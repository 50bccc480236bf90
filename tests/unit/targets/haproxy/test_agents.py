"""Pools with `health.agent`: the check and the agent check of each server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.haproxy import TARGET, desired
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

_API = {"runtime_api": "/run/admin.sock"}
_REPLICAS = (replica("a", "10.0.0.1:8000"), replica("b", "10.0.0.1:8001", agent_port=9502))


def _view(*replicas: dict[str, Any], proxy: dict[str, Any] | None = None, **keys: Any) -> View:
    health = {"agent": {"port": 9500}, **keys.pop("health", {})}
    text = fleet_text(
        pool(*(replicas or _REPLICAS), health=health, **keys), proxies={"edge": {"kind": "haproxy", **(proxy or {})}}
    )
    topology = compiled(text).topology
    return view(Snapshot(topology), topology.proxies[0])


def _lines(*replicas: dict[str, Any], **keys: Any) -> list[str]:
    """Return the lines of the configuration with servers or their checks."""
    text = TARGET.render(_view(*replicas, **keys)).main.text
    return [line.strip() for line in text.splitlines() if re.match(r" +(default-server|server |server-template)", line)]


def test_each_server_asks_its_own_agent() -> None:
    default, a, b = _lines()
    assert default.startswith("default-server check inter 2000ms fall 2 rise 2 port 9500 ")
    agent = "agent-check agent-port {} agent-inter 2000ms agent-send 'full'\"\\n\""
    assert a == f"server a '10.0.0.1:8000' weight 100 {agent.format(9501)}"
    assert b == f"server b '10.0.0.1:8001' weight 100 port 9502 {agent.format(9503)}"


@pytest.mark.parametrize(
    ("keys", "answers"),
    [
        ({}, "full"),
        ({"affinity": {"cookie": "lb"}}, "full maint"),
        ({"affinity": {"header": "mcp-session-id"}}, "full maint"),
        ({"balance": {"algorithm": "pick"}}, "full maint"),
        ({"proxy": _API}, "health"),
        ({"proxy": _API, "affinity": {"cookie": "lb"}}, "health"),
    ],
)
def test_server_asks_for_the_answers_that_it_needs(keys: dict[str, Any], answers: str) -> None:
    servers = [line for line in _lines(**keys) if re.match("server [ab] ", line)]
    assert [line.count(f"agent-send '{answers}'\"\\n\"") for line in servers] == [1, 1]


def test_agent_check_of_serve_takes_precedence() -> None:
    _, *servers = _lines(proxy={"agent_check": {"bind": "127.0.0.1:18600"}})
    assert [line.count("agent-check") for line in servers] == [1, 1]
    assert all("agent-addr 127.0.0.1 agent-port 1860" in line for line in servers)


def test_agent_does_not_end_a_drain_of_the_fleet() -> None:
    _, a, b = _lines(_REPLICAS[0], replica("b", "10.0.0.2:8000", drain=True))
    assert "agent-check" in a
    assert "agent-check" not in b


def test_copies_for_fail_open_are_not_checked() -> None:
    lines = _lines(health={"fail_open": True})
    checked, unchecked = lines[:3], lines[3:]
    assert len(unchecked) == 3
    assert all("check" in line for line in checked)
    assert not any("check" in line or "port" in line for line in unchecked)


def test_servers_of_a_dns_name_ask_the_agents() -> None:
    text = fleet_text(
        {
            "discovery": {"dns": {"name": "llama.ml.svc", "port": 8000, "resolvers": ["10.0.0.53:53"]}},
            "health": {"agent": {"port": 9500}},
        },
        proxies={"edge": {"kind": "haproxy"}},
    )
    topology = compiled(text).topology
    rendered = TARGET.render(view(Snapshot(topology), topology.proxies[0])).main.text
    (line,) = re.findall(r"server-template .*", rendered)
    assert "agent-check agent-port 9501 agent-inter 2000ms agent-send 'full'\"\\n\"" in line


def test_servers_added_at_run_time_have_only_the_health_check() -> None:
    """The word that an agent check sends ends with a line feed, which would end the command."""
    shown = _view(proxy=_API)
    for item in desired.desired(shown).servers:
        assert "check" in item.arguments
        assert item.arguments[item.arguments.index("port") + 1] == "9500"
        assert not any(argument.startswith("agent-") or "\n" in argument for argument in item.arguments)
    by_name = {item.name: item for item in desired.desired(shown).servers}
    assert by_name["b"].arguments[-2:] == ("port", "9502")


def test_a_slot_fits_only_the_common_port() -> None:
    servers = desired.desired(_view(proxy={**_API, "slots": 2}, affinity={"cookie": "lb"})).servers
    assert [(item.name, item.slottable) for item in servers] == [("a", True), ("b", False)]


def test_key_of_the_engines_is_not_sent_to_agents() -> None:
    keys = {"credentials": {"header": "authorization", "file": "key"}}
    text = TARGET.render(_view(**keys)).main.text
    (check,) = re.findall(r"http-check send .*", text)
    assert check == "http-check send meth GET uri '/health' ver HTTP/1.1 hdr host 'localhost'"
