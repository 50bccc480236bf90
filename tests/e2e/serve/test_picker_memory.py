"""Pickers send sessions and prompts to the replicas that had them before: after a restart, and with another picker."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
from contextlib import closing
from pathlib import Path

import requests

from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.members import PICKER_KEY, members
from tests.support.processes.picker import alone, is_ready, key_of, picker_section, pid_of
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually
from tests.support.stores import RedisServer

SESSIONS = 150
PROMPTS = 12


class _Proxy:
    """Queries the picker as a proxy does, and reports the end of each request at once."""

    def __init__(self, control: ControlPlane, port: int, key: str = "") -> None:
        self._control = control
        self._key = key
        self._place = HOST, port + 1

    def metric(self, name: str) -> float:
        """Return the value of a metric of the picker."""
        lines = requests.get("http://{}:{}/metrics".format(*self._place), timeout=30).text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def remembered(self) -> float:
        """Return the number of entries in the picker's memory."""
        return self.metric("lbctl_picker_memory_entries")

    def homes(self, name: str = "s") -> list[str]:
        """Return the replica of each prompt, and then of each session. `name` distinguishes groups of them."""
        address, key = "http://{}:{}".format(*self._place), self._headers()
        with closing(requests.Session()) as http, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ends:
            ends.connect(self._place)

            def replica(headers: dict[str, str], body: bytes = b"") -> str:
                answer = http.post(f"{address}/pick/pool", data=body, headers={**key, **headers}, timeout=30)
                assert answer.status_code == 200, answer.text
                pick = answer.headers["x-lbctl-pick-id"]
                ends.send(b'<190>Nov 23 19:00:00 lbctl: {"pick":"%s"}' % pick.encode())
                return answer.headers["x-lbctl-pick"]

            def has_none_open() -> bool:
                return "lbctl_pick_open 0\n" in http.get(f"{address}/metrics", timeout=30).text

            def replica_for(prompt: bytes) -> str:
                """Return the replica of a prompt once the picker has read its end, so that its load moves no other."""
                home = replica({}, prompt)
                eventually(has_none_open, pause=0.002)
                return home

            prompts = [json.dumps({"prompt": f"{number} is in {name}. " * 200}).encode() for number in range(PROMPTS)]
            homes = [replica_for(prompt) for prompt in prompts]
            return homes + [replica({"x-session-id": f"{name}{number}"}) for number in range(SESSIONS)]

    def _headers(self) -> dict[str, str]:
        return {"x-lbctl-pick-key": self._key} if self._key else key_of(self._control)

    def is_ready(self) -> bool:
        return is_ready(self._place[1] - 1)


def _saved_sessions(directory: Path) -> int:
    """Return the number of sessions in the files; entries are in the order in which they were learned."""
    keys: set[int] = set()
    for file in directory.glob("*"):
        for line in file.read_bytes().splitlines()[1:]:
            entries = json.loads(line)["entries"]
            keys.update(key for key, tokens in zip(entries[::3], entries[2::3], strict=True) if tokens >= 0)
    return len(keys)


def _kept(before: list[str], after: list[str]) -> float:
    return sum(map(str.__eq__, before, after)) / len(before)


def test_restarted_picker_knows_sessions_and_prompts() -> None:
    with replicas("a", "b", "c", "d") as pool:
        section = picker_section()
        port = int(section["control"]["picker"]["bind"].rpartition(":")[2])
        fleet = fleet_of({"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick"}}, **section)
        with controlling(fleet) as control:
            proxy = _Proxy(control, port)
            eventually(proxy.is_ready)
            before = proxy.homes()
            assert len(set(before)) == 4
            memory = control.state / "picker-memory"
            eventually(lambda: _saved_sessions(memory) == SESSIONS)
            picker = pid_of(control)
            os.kill(picker, signal.SIGKILL)
            eventually(lambda: proxy.is_ready() and pid_of(control) != picker)
            assert _kept(before, proxy.homes()) >= 0.95, "the picker was killed"
            control.kill()
            control.start()
            eventually(proxy.is_ready)
            assert _kept(before, proxy.homes()) >= 0.95, "serve was killed"
            control.stop()
            control.start()
            eventually(proxy.is_ready)
            assert _kept(before, proxy.homes()) >= 0.99, "serve was stopped"
            assert [item.stat().st_mode & 0o777 for item in (memory, *memory.iterdir())] == [0o700, 0o600]
            for file in memory.iterdir():
                file.unlink()
                file.mkdir()
            proxy.homes("new")
            eventually(lambda: "is a directory" in str(control.status["picker"]["unsaved"]).lower())


def test_picks_continue_while_a_write_of_the_memory_hangs() -> None:
    with replicas("a", "b") as pool:
        section = picker_section()
        port = int(section["control"]["picker"]["bind"].rpartition(":")[2])
        fleet = fleet_of({"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick"}}, **section)
        with controlling(fleet) as control:
            proxy, memory = _Proxy(control, port), control.state / "picker-memory"
            eventually(proxy.is_ready)
            proxy.homes("first")
            eventually(lambda: _saved_sessions(memory) == SESSIONS)
            (file,) = memory.iterdir()
            os.mkfifo(control.state / "fifo")  # without a reader, it blocks like a disk that hangs
            (control.state / "fifo").replace(file)
            proxy.homes("second")
            eventually(lambda: control.status["picker"]["unsaved"] == "the disk is not responding")
            assert proxy.metric("lbctl_picker_memory_unsaved") == 1
            proxy.homes("third")
            with file.open("rb") as fifo:
                file.unlink()
                assert fifo.read(), "the write continues"
            eventually(lambda: control.status["picker"]["unsaved"] is None)
            assert proxy.metric("lbctl_picker_memory_unsaved") == 0
            log = control.log_file.read_text()
            assert (
                log.count("the picker cannot save its memory") == log.count("the picker can save its memory again") == 1
            )


def test_two_pickers_share_their_memories() -> None:
    with replicas("a", "b", "c", "d") as pool:
        section = picker_section()
        port = int(section["control"]["picker"]["bind"].rpartition(":")[2])
        fleet = fleet_of({"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick"}}, **section)
        with controlling(fleet) as control:
            first = _Proxy(control, port)
            eventually(first.is_ready)
            before = first.homes("before")
            with alone(control, other := free_pair()):
                second = _Proxy(control, other)
                eventually(second.is_ready)
                assert second.homes("before") == before, "the second picker has copied the memory of the first one"
                _share(first, second)


def test_pickers_of_two_members_share_their_memories(redis: RedisServer) -> None:
    url, ports = f"redis://127.0.0.1:{redis.port}/0", (free_pair(), free_pair())
    with replicas("a", "b", "c", "d") as pool:
        section = {"control": {"picker": {"key_file": "picker-key"}}}
        fleet = fleet_of({"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick"}}, **section)
        with members(fleet, url, lease="10s", pickers=ports) as planes:
            first, second = (_Proxy(plane.control, port, PICKER_KEY) for plane, port in zip(planes, ports, strict=True))
            eventually(lambda: first.is_ready() and second.is_ready())
            eventually(lambda: first.metric("lbctl_picker_peers") == second.metric("lbctl_picker_peers") == 1)
            _share(second, first)
            _share(first, second)


def _share(first: _Proxy, second: _Proxy) -> None:
    """Assert that the first picker knows where the second one has sent new sessions and prompts."""
    name = secrets.token_hex(4)
    known = first.remembered()
    homes = second.homes(name)
    eventually(lambda: first.remembered() > known and first.remembered() == second.remembered())
    assert first.homes(name) == homes
