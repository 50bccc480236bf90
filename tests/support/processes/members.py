"""Several `lbctl serve` with one store: their files are equal except for names and ports.

`with members(fleet, redis.url, 3) as (a, b, c)` starts them in order, so that the first one leads.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

TOKEN = "a-token-that-all-members-have"
KEY = "a-key-that-all-members-sign-with"
PICKER_KEY = "a-key-that-all-pickers-have-0123456789abcdef"


class MemberPlane:
    """A member: its process, and its API."""

    def __init__(self, name: str, control: ControlPlane) -> None:
        self.name = name
        self.control = control

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> requests.Response:
        """Write through the member's API, whichever member leads."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        return self.control._ask(method, f"/api/v1/{path}", json=dict(body), headers=headers)

    @property
    def version(self) -> str:
        snapshot = self.control.status["snapshot"]
        return str(snapshot["version"]) if snapshot else ""

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Return name → this member's information about the member."""
        return {item["name"]: item for item in self.control.get("members")["members"]}

    @property
    def leads(self) -> bool:
        return self.control.metric("lbctl_ha_leader") == 1

    @property
    def epoch(self) -> float:
        return self.control.metric("lbctl_ha_epoch")


def with_store(fleet: Fleet, url: str, prefix: str, lease: str, *, signed: bool = False) -> Fleet:
    """Return the fleet with this store, the common token, and the key file if members sign."""
    control = {
        **(fleet.get("control") or {}),
        "store": {"url": url, "key_prefix": prefix, "lease": lease, **({"key_file": "keys"} if signed else {})},
        "api": {"token_file": "token"},
    }
    return {**fleet, "control": control}


@contextmanager
def members(
    fleet: Fleet,
    url: str,
    count: int = 2,
    *,
    lease: str = "3s",
    url_of: Callable[[int], str] | None = None,
    start: bool = True,
    signed: bool = False,
    pickers: Sequence[int] = (),
) -> Iterator[tuple[MemberPlane, ...]]:
    """Run `count` members. `url_of` returns the URL by which a member reaches the store, if it is not `url`.

    `signed`: whether they sign stored values. `pickers`: the ports of their pickers, which need `picker-key`.
    """
    prefix = f"test:{secrets.token_hex(4)}"
    with ExitStack() as stack:
        planes = []
        for number in range(count):
            name = f"cp-{number + 1}"
            own = with_store(fleet, url_of(number) if url_of else url, prefix, lease, signed=signed)
            options = ["--member", name]
            if pickers:
                options += ["--picker-bind", f"{HOST}:{pickers[number]}"]
            files = {"token": TOKEN, "keys": KEY, "picker-key": PICKER_KEY}
            control = stack.enter_context(controlling(own, files=files, options=options, start=start))
            planes.append(MemberPlane(name, control))
            if start and number == 0:
                eventually(lambda: planes[0].leads)
        yield tuple(planes)


def leader_of(planes: tuple[MemberPlane, ...]) -> MemberPlane | None:
    """Return the leader; None if there is none now."""
    return next((item for item in planes if item.control.ready() and item.leads), None)


def bootstrap_of_members(planes: Sequence[MemberPlane], node: str) -> dict[str, Any]:
    """Return the output of `lbctl bootstrap` for an Envoy that starts with the first of these members."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["bootstrap", "--xds", f"{HOST}:{planes[0].control.xds}", "--node", node, "-d", directory]
        for plane in planes[1:]:
            command += ["--standby", f"{HOST}:{plane.control.xds}"]
        assert run(command) == 0
        read: dict[str, Any] = yaml.safe_load((Path(directory) / "envoy.yaml").read_text())
    return read
