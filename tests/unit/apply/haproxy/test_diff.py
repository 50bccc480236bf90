"""What is said to a running HAProxy: differences alone, in a safe order, and nothing that is not one command."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.apply.haproxy import commands, running
from lbctl.apply.haproxy.diff import plan
from lbctl.apply.haproxy.running import Running, UnreadableAnswerError
from lbctl.ir.address import Address
from lbctl.targets.haproxy.desired import Desired, DesiredServer

_WANTED = DesiredServer("pool_p", "a", Address("10.0.0.1", 8000), 100, "ready", ("check", "weight", "100"))
_HAS = running.RunningServer("10.0.0.1", 8000, 100, False, False, False, False, False)
_FORBIDDEN = (";", "\n", " ", "\\", "<<")


def _desired(*servers: DesiredServer, limits: tuple[tuple[str, int], ...] = ()) -> Desired:
    return Desired(frozenset({"pool_p", *(item.backend for item in servers)}), servers, limits)


def _running(**servers: running.RunningServer) -> Running:
    return Running(7, "2.6.12", "lbctl-0", {("pool_p", name): item for name, item in servers.items()})


def test_nothing_is_said_where_nothing_differs() -> None:
    assert plan(_desired(_WANTED), _running(a=_HAS)).commands == ()


def test_a_weight_alone_is_one_command() -> None:
    assert plan(_desired(_WANTED), _running(a=replace(_HAS, weight=50))).commands == ("set server pool_p/a weight 100",)


def test_a_new_server_comes_before_the_old_one_goes() -> None:
    said = plan(_desired(replace(_WANTED, name="n")), _running(old=_HAS)).commands
    assert said[0].startswith("add server pool_p/n 10.0.0.1:8000 check weight 100")
    assert said[-1] == "set server pool_p/old state maint"


def test_a_server_with_checks_is_down_before_it_has_weight() -> None:
    said = plan(_desired(replace(_WANTED, checked=True)), _running()).commands
    assert said == (
        "add server pool_p/a 10.0.0.1:8000 check weight 0",
        "enable health pool_p/a",
        "enable server pool_p/a",
        "set server pool_p/a health down",
        "set server pool_p/a weight 100",
    )


def test_leaving_replica_is_deleted_only_when_it_is_idle() -> None:
    busy = replace(_HAS, maint=True, own_maint=True, sessions=2)
    assert plan(_desired(), _running(old=busy)).commands == ()
    assert plan(_desired(), _running(old=busy)).leaving == (("pool_p", "old"),)
    assert plan(_desired(), _running(old=replace(busy, sessions=0))).commands == ("del server pool_p/old",)
    assert plan(_desired(), _running(old=replace(busy, sessions=0)), undeletable={("pool_p", "old")}).commands == ()


def test_a_drained_server_comes_back_with_its_weight_first() -> None:
    drained = replace(_HAS, drain=True, own_drain=True, weight=3)
    assert plan(_desired(_WANTED), _running(a=drained)).commands == (
        "set server pool_p/a weight 100",
        "set server pool_p/a state ready",
    )


def test_weight_zero_of_the_file_drains_except_for_cookies() -> None:
    wanted, filed = _desired(replace(_WANTED, state="maint")), replace(_HAS, weight=0)
    assert plan(wanted, _running(a=filed)).commands == ()
    assert plan(wanted, _running(a=replace(filed, cookie=True))).commands == ("set server pool_p/a state maint",)


def test_only_what_leaves_or_is_drained_is_cut() -> None:
    busy = replace(_HAS, sessions=1)
    assert plan(_desired(_WANTED), _running(a=busy), cut={("p", "a")}).commands == ()
    drained = _desired(replace(_WANTED, state="drain"))
    assert plan(drained, _running(a=replace(busy, drain=True)), cut={("p", "a")}).commands == (
        "shutdown sessions server pool_p/a",
    )
    assert plan(drained, _running(a=replace(busy, drain=True)), cut={("other", "a")}).commands == ()


def test_a_name_with_several_addresses_stays_where_it_is() -> None:
    named = _desired(replace(_WANTED, address=Address("r.example", 8000)))
    there = {"r.example": ("10.0.0.9", "10.0.0.1")}
    assert plan(named, _running(a=_HAS), addresses=there).commands == ()
    assert plan(named, _running(a=_HAS), addresses={"r.example": ("10.0.0.9",)}).commands == (
        "set server pool_p/a addr 10.0.0.9 port 8000",
    )
    assert plan(named, _running()).reload == ("pool_p/a is new, and the Runtime API resolves no names",)


def test_what_no_command_changes_is_a_reason_to_reload() -> None:
    assert plan(_desired(replace(_WANTED, backup=True)), _running(a=_HAS)).reload
    assert plan(_desired(replace(_WANTED, cookie=True)), _running(a=_HAS)).reload
    assert plan(_desired(replace(_WANTED, arguments=("ca-file", "/a b", "weight", "1"))), _running()).reload


def test_servers_of_backends_that_are_not_ours_are_left_alone() -> None:
    stranger = Running(7, "2.6.12", "", {("stats", "x"): _HAS, ("pool_gone", "y"): _HAS})
    assert plan(_desired(), stranger).commands == ()


def test_a_limit_moves_where_the_file_has_it_as_a_variable() -> None:
    name = "proc.most_0123456789ab"
    wanted, now = _desired(limits=((name, 1024),)), _running()
    assert plan(wanted, now).commands == ()
    assert plan(wanted, replace(now, limits={name: 512})).commands == (
        "experimental-mode on",
        f"set var {name} int(1024)",
    )


@given(st.text(min_size=1), st.sampled_from(_FORBIDDEN), st.text())
def test_no_name_becomes_a_second_command(before: str, bad: str, after: str) -> None:
    name = before + bad + after
    for make in (commands.cut, commands.delete):
        with pytest.raises(commands.UnsafeError):
            make("pool_p", name)
        with pytest.raises(commands.UnsafeError):
            make(name, "a")
    with pytest.raises(commands.UnsafeError):
        commands.add("pool_p", "a", "10.0.0.1", 80, [name])


@pytest.mark.parametrize("host", ["10.0.0.1 weight 1", "localhost", "10.0.0.1;quit", ""])
def test_only_an_ip_address_reaches_the_socket(host: str) -> None:
    with pytest.raises(commands.UnsafeError):
        commands.address("pool_p", "a", host, 80)


@pytest.mark.parametrize("value", [-1, 257])
def test_only_a_weight_of_haproxy_reaches_the_socket(value: int) -> None:
    with pytest.raises(commands.UnsafeError):
        commands.weight("pool_p", "a", value)


@pytest.mark.parametrize("info", ["", "Permission denied\n", "Pid: x\nUptime_sec: 1\nVersion: 2\n"])
def test_an_answer_that_is_none_is_said_to_be_none(info: str) -> None:
    with pytest.raises(UnreadableAnswerError):
        running.read(info, "", "")


_STICKY = replace(_WANTED, cookie=True, needs_slot=True, slottable=True, checked=True)
_FREE = replace(_HAS, host="127.0.0.1", port=1, weight=1, maint=True, own_maint=True, cookie=True)


def _with_slots(slots: dict[str, str], **servers: running.RunningServer) -> Running:
    places = {("pool_p", slot): replica for slot, replica in slots.items()}
    return replace(_running(**servers), slots=places)


def test_replica_with_cookie_is_down_until_it_has_weight() -> None:
    slots = {"SLOT.p.2": "SLOT.p.2", "SLOT.p.10": "SLOT.p.10"}
    now = _with_slots(slots, **{"SLOT.p.10": _FREE, "SLOT.p.2": _FREE})
    planned = plan(_desired(_STICKY), now)
    assert planned.commands == (
        "set map slots.map SLOT.p.2 a",
        "set server pool_p/SLOT.p.2 addr 10.0.0.1 port 8000",
        "set server pool_p/SLOT.p.2 weight 0",
        "set server pool_p/SLOT.p.2 state ready",
        "set server pool_p/SLOT.p.2 health down",
        "set server pool_p/SLOT.p.2 weight 100",
    )
    assert planned.reload == ()


def test_a_replica_that_has_a_slot_keeps_it() -> None:
    now = _with_slots({"SLOT.p.1": "a"}, **{"SLOT.p.1": replace(_HAS, cookie=True)})
    assert plan(_desired(_STICKY), now).commands == ()
    assert plan(_desired(replace(_STICKY, weight=50)), now).commands == ("set server pool_p/SLOT.p.1 weight 50",)


def test_left_slot_is_free_without_requests_and_connections() -> None:
    left = replace(_HAS, cookie=True)
    now = _with_slots({"SLOT.p.1": "old"}, **{"SLOT.p.1": left})
    assert plan(_desired(), now).commands == ("set server pool_p/SLOT.p.1 state maint",)
    for busy in (replace(_FREE, sessions=1), replace(_FREE, connections=1)):
        planned = plan(_desired(_STICKY), replace(now, servers={("pool_p", "SLOT.p.1"): busy}))
        assert not any("addr" in command for command in planned.commands)
        assert planned.reload == ("pool_p/a is new, has a cookie, and no spare slot can hold it",)
    busy = replace(_FREE, sessions=1)
    in_maintenance = replace(now, servers={("pool_p", "SLOT.p.1"): busy})
    assert plan(_desired(), in_maintenance).leaving == (("pool_p", "old"),)
    assert plan(_desired(), in_maintenance, cut={("p", "old")}).commands == (
        "shutdown sessions server pool_p/SLOT.p.1",
    )
    empty = replace(now, servers={("pool_p", "SLOT.p.1"): _FREE})
    assert plan(_desired(), empty).commands == ("set map slots.map SLOT.p.1 SLOT.p.1",)


def test_what_haproxy_refuses_to_add_takes_a_slot() -> None:
    wanted, now = replace(_WANTED, slottable=True), _with_slots({"SLOT.p.1": "SLOT.p.1"}, **{"SLOT.p.1": _FREE})
    assert plan(_desired(wanted), now).commands[0].startswith("add server pool_p/a ")
    assert plan(_desired(wanted), now, unaddable={("pool_p", "a")}).commands[0] == "set map slots.map SLOT.p.1 a"


def test_a_slot_that_differs_from_the_replica_is_none_for_it() -> None:
    now = _with_slots({"SLOT.p.1": "SLOT.p.1"}, **{"SLOT.p.1": _FREE})
    assert plan(_desired(replace(_STICKY, slottable=False)), now).reload
