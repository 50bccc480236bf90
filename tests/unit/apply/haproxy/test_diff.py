"""Commands to a running HAProxy: only for differences, in a safe order, and without injected commands."""

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

DESIRED_SERVER = DesiredServer("pool_p", "a", Address("10.0.0.1", 8000), 100, "ready", ("check", "weight", "100"))
RUNNING_SERVER = running.RunningServer("10.0.0.1", 8000, 100, False, False, False, False, False)
FORBIDDEN = (";", "\n", " ", "\\", "<<")


def desired_of(*servers: DesiredServer, limits: tuple[tuple[str, int], ...] = ()) -> Desired:
    return Desired(frozenset({"pool_p", *(item.backend for item in servers)}), servers, limits)


def running_with(**servers: running.RunningServer) -> Running:
    return Running(7, "2.6.12", "lbctl-0", {("pool_p", name): item for name, item in servers.items()})


def test_no_difference_needs_no_command() -> None:
    assert plan(desired_of(DESIRED_SERVER), running_with(a=RUNNING_SERVER)).commands == ()


def test_changed_weight_is_one_command() -> None:
    assert plan(desired_of(DESIRED_SERVER), running_with(a=replace(RUNNING_SERVER, weight=50))).commands == (
        "set server pool_p/a weight 100",
    )


def test_new_server_is_added_before_the_old_one_leaves() -> None:
    planned_commands = plan(desired_of(replace(DESIRED_SERVER, name="n")), running_with(old=RUNNING_SERVER)).commands
    assert planned_commands[0].startswith("add server pool_p/n 10.0.0.1:8000 check weight 100")
    assert planned_commands[-1] == "set server pool_p/old state maint"


def test_checked_server_is_down_until_it_has_weight() -> None:
    planned_commands = plan(desired_of(replace(DESIRED_SERVER, checked=True)), running_with()).commands
    assert planned_commands == (
        "add server pool_p/a 10.0.0.1:8000 check weight 0",
        "enable health pool_p/a",
        "enable server pool_p/a",
        "set server pool_p/a health down",
        "set server pool_p/a weight 100",
    )


def test_leaving_replica_is_deleted_only_when_it_is_idle() -> None:
    busy = replace(RUNNING_SERVER, maint=True, own_maint=True, sessions=2)
    assert plan(desired_of(), running_with(old=busy)).commands == ()
    assert plan(desired_of(), running_with(old=busy)).leaving == (("pool_p", "old"),)
    assert plan(desired_of(), running_with(old=replace(busy, sessions=0))).commands == ("del server pool_p/old",)
    assert (
        plan(desired_of(), running_with(old=replace(busy, sessions=0)), undeletable={("pool_p", "old")}).commands == ()
    )


def test_drained_server_gets_its_weight_before_requests() -> None:
    drained = replace(RUNNING_SERVER, drain=True, own_drain=True, weight=3)
    assert plan(desired_of(DESIRED_SERVER), running_with(a=drained)).commands == (
        "set server pool_p/a weight 100",
        "set server pool_p/a state ready",
    )


def test_weight_zero_of_the_file_drains_except_for_cookies() -> None:
    desired, in_file = desired_of(replace(DESIRED_SERVER, state="maint")), replace(RUNNING_SERVER, weight=0)
    assert plan(desired, running_with(a=in_file)).commands == ()
    assert plan(desired, running_with(a=replace(in_file, cookie=True))).commands == ("set server pool_p/a state maint",)


def test_only_leaving_or_drained_servers_are_cut() -> None:
    busy = replace(RUNNING_SERVER, sessions=1)
    assert plan(desired_of(DESIRED_SERVER), running_with(a=busy), cut={("p", "a")}).commands == ()
    drained = desired_of(replace(DESIRED_SERVER, state="drain"))
    assert plan(drained, running_with(a=replace(busy, drain=True)), cut={("p", "a")}).commands == (
        "shutdown sessions server pool_p/a",
    )
    assert plan(drained, running_with(a=replace(busy, drain=True)), cut={("other", "a")}).commands == ()


def test_host_name_keeps_a_still_valid_address() -> None:
    named = desired_of(replace(DESIRED_SERVER, address=Address("r.example", 8000)))
    resolved = {"r.example": ("10.0.0.9", "10.0.0.1")}
    assert plan(named, running_with(a=RUNNING_SERVER), addresses=resolved).commands == ()
    assert plan(named, running_with(a=RUNNING_SERVER), addresses={"r.example": ("10.0.0.9",)}).commands == (
        "set server pool_p/a addr 10.0.0.9 port 8000",
    )
    assert plan(named, running_with()).reload == ("pool_p/a is new, and the Runtime API cannot resolve names",)


def test_change_without_a_command_needs_a_reload() -> None:
    assert plan(desired_of(replace(DESIRED_SERVER, backup=True)), running_with(a=RUNNING_SERVER)).reload
    assert plan(desired_of(replace(DESIRED_SERVER, cookie=True)), running_with(a=RUNNING_SERVER)).reload
    assert plan(
        desired_of(replace(DESIRED_SERVER, arguments=("ca-file", "/a b", "weight", "1"))), running_with()
    ).reload


def test_servers_of_foreign_backends_are_ignored() -> None:
    foreign = Running(7, "2.6.12", "", {("stats", "x"): RUNNING_SERVER, ("pool_gone", "y"): RUNNING_SERVER})
    assert plan(desired_of(), foreign).commands == ()


def test_limit_with_a_variable_is_changed_by_command() -> None:
    name = "proc.most_0123456789ab"
    desired, current = desired_of(limits=((name, 1024),)), running_with()
    assert plan(desired, current).commands == ()
    assert plan(desired, replace(current, limits={name: 512})).commands == (
        "experimental-mode on",
        f"set var {name} int(1024)",
    )


@given(st.text(min_size=1), st.sampled_from(FORBIDDEN), st.text())
def test_name_cannot_inject_a_second_command(before: str, forbidden: str, after: str) -> None:
    name = before + forbidden + after
    for build in (commands.cut, commands.delete):
        with pytest.raises(commands.UnsafeError):
            build("pool_p", name)
        with pytest.raises(commands.UnsafeError):
            build(name, "a")
    with pytest.raises(commands.UnsafeError):
        commands.add("pool_p", "a", "10.0.0.1", 80, [name])


@pytest.mark.parametrize("host", ["10.0.0.1 weight 1", "localhost", "10.0.0.1;quit", ""])
def test_only_an_ip_address_is_accepted(host: str) -> None:
    with pytest.raises(commands.UnsafeError):
        commands.address("pool_p", "a", host, 80)


@pytest.mark.parametrize("value", [-1, 257])
def test_only_a_valid_weight_is_accepted(value: int) -> None:
    with pytest.raises(commands.UnsafeError):
        commands.weight("pool_p", "a", value)


@pytest.mark.parametrize("info", ["", "Permission denied\n", "Pid: x\nUptime_sec: 1\nVersion: 2\n"])
def test_invalid_answer_is_an_error(info: str) -> None:
    with pytest.raises(UnreadableAnswerError):
        running.read(info, "", "")


STICKY_SERVER = replace(DESIRED_SERVER, cookie=True, needs_slot=True, slottable=True, checked=True)
FREE_SLOT = replace(RUNNING_SERVER, host="127.0.0.1", port=1, weight=1, maint=True, own_maint=True, cookie=True)


def running_with_slots(slots: dict[str, str], **servers: running.RunningServer) -> Running:
    places = {("pool_p", slot): replica for slot, replica in slots.items()}
    return replace(running_with(**servers), slots=places)


def test_replica_with_cookie_is_down_until_it_has_weight() -> None:
    slots = {"SLOT.p.2": "SLOT.p.2", "SLOT.p.10": "SLOT.p.10"}
    current = running_with_slots(slots, **{"SLOT.p.10": FREE_SLOT, "SLOT.p.2": FREE_SLOT})
    planned = plan(desired_of(STICKY_SERVER), current)
    assert planned.commands == (
        "set map slots.map SLOT.p.2 a",
        "set server pool_p/SLOT.p.2 addr 10.0.0.1 port 8000",
        "set server pool_p/SLOT.p.2 weight 0",
        "set server pool_p/SLOT.p.2 state ready",
        "set server pool_p/SLOT.p.2 health down",
        "set server pool_p/SLOT.p.2 weight 100",
    )
    assert planned.reload == ()


def test_replica_with_a_slot_keeps_it() -> None:
    current = running_with_slots({"SLOT.p.1": "a"}, **{"SLOT.p.1": replace(RUNNING_SERVER, cookie=True)})
    assert plan(desired_of(STICKY_SERVER), current).commands == ()
    assert plan(desired_of(replace(STICKY_SERVER, weight=50)), current).commands == (
        "set server pool_p/SLOT.p.1 weight 50",
    )


def test_left_slot_is_free_without_requests_and_connections() -> None:
    left = replace(RUNNING_SERVER, cookie=True)
    current = running_with_slots({"SLOT.p.1": "old"}, **{"SLOT.p.1": left})
    assert plan(desired_of(), current).commands == ("set server pool_p/SLOT.p.1 state maint",)
    for busy in (replace(FREE_SLOT, sessions=1), replace(FREE_SLOT, connections=1)):
        planned = plan(desired_of(STICKY_SERVER), replace(current, servers={("pool_p", "SLOT.p.1"): busy}))
        assert not any("addr" in command for command in planned.commands)
        assert planned.reload == ("pool_p/a is new, has a cookie, and no spare slot is suitable",)
    busy = replace(FREE_SLOT, sessions=1)
    in_maintenance = replace(current, servers={("pool_p", "SLOT.p.1"): busy})
    assert plan(desired_of(), in_maintenance).leaving == (("pool_p", "old"),)
    assert plan(desired_of(), in_maintenance, cut={("p", "old")}).commands == (
        "shutdown sessions server pool_p/SLOT.p.1",
    )
    empty = replace(current, servers={("pool_p", "SLOT.p.1"): FREE_SLOT})
    assert plan(desired_of(), empty).commands == ("set map slots.map SLOT.p.1 SLOT.p.1",)


def test_server_that_cannot_be_added_takes_a_slot() -> None:
    desired, current = (
        replace(DESIRED_SERVER, slottable=True),
        running_with_slots({"SLOT.p.1": "SLOT.p.1"}, **{"SLOT.p.1": FREE_SLOT}),
    )
    assert plan(desired_of(desired), current).commands[0].startswith("add server pool_p/a ")
    assert plan(desired_of(desired), current, unaddable={("pool_p", "a")}).commands[0] == "set map slots.map SLOT.p.1 a"


def test_different_slot_cannot_hold_the_replica() -> None:
    current = running_with_slots({"SLOT.p.1": "SLOT.p.1"}, **{"SLOT.p.1": FREE_SLOT})
    assert plan(desired_of(replace(STICKY_SERVER, slottable=False)), current).reload
