"""Stored announcements of members are read by a schema: a malformed one is reported with its error, and breaks
nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lbctl.serve.api.status_rows import timestamp
from lbctl.serve.ha.fields import MAX_MEMBERS
from lbctl.serve.ha.presence import MemberInfo, read_info, read_infos, write_info
from lbctl.serve.ha.records import LeaderStatus, read_leader, write_leader
from lbctl.store.interface import Presence
from lbctl.store.records import UNREADABLE

GOOD = MemberInfo(
    "cp-1", "leader", 1_795_900_000_000, "https://cp-1.example:18080", "[2001:db8::1]:18000", "1.2.3", "08b611c8",
    "58c7ae98", 0.5, -2.0, 0.01, "", 1_795_900_000.5, True, ("r/1/20",), ("p1 10.0.0.1:18001 ",), "eJw=",
)  # fmt: skip
ODD: dict[str, Any] = {
    "text": "x",
    "number": 7,
    "list": [1],
    "object": {"a": 1},
    "null": None,
    "true": True,
    "nan": math.nan,
    "infinity": math.inf,
    "huge": 10**400,
    "negative": -1e300,
    "control characters": "\x1b[31mred\x07\n",
    "long": "x" * 1_000_000,
}


def announcement(**changed: Any) -> MemberInfo:
    return read_info(Presence("cp-1", "instance", json.dumps({**json.loads(write_info(GOOD)), **changed})))


def usable(info: MemberInfo) -> bool:
    """Return whether the API can show the member."""
    timestamp(info.at)
    json.dumps([round(info.clock, 3), info.epoch], allow_nan=False)
    texts = (info.role, info.api, info.xds, info.version, info.snapshot, info.digest, info.problem, *info.steps)
    return all(text.isprintable() and len(text) <= 500 for text in texts) and math.isfinite(info.lag or 0.0)


def test_announcement_is_read_as_it_was_written() -> None:
    assert read_info(Presence("cp-1", "instance", write_info(GOOD))) == GOOD


def test_fields_of_other_versions_are_ignored_or_have_defaults() -> None:
    assert announcement(later="x") == GOOD
    row = json.loads(write_info(GOOD))
    del row["steps"], row["shares"]
    info = read_info(Presence("cp-1", "instance", json.dumps(row)))
    assert (info.problem, info.shares, info.steps) == ("", False, ())


@pytest.mark.parametrize("kind", ODD)
def test_odd_value_is_rejected_by_the_name_of_its_field(kind: str) -> None:
    for field in json.loads(write_info(GOOD)).keys() - {"name"}:
        info = announcement(**{field: ODD[kind]})
        assert usable(info), (field, kind)
        if info.problem and field != "problem":
            assert info.problem.startswith(f"its heartbeat is malformed: {field} is not")
            assert (info.role, info.api, info.shares) == ("", "", False)


@pytest.mark.parametrize(
    "api",
    [
        "http://169.254.169.254:80", "http://0xA9FEA9FE:80", "http://h:0", "http://h:70000", "http://h", "http://u@h:1",
        "http://h:1/path", "http://h:1?x", "file:///etc/passwd:1", "ftp://h:1", "//h:1", "http://h h:1", "unix:/s",
    ],
)  # fmt: skip
def test_implausible_address_of_an_api_is_rejected(api: str) -> None:
    assert "api is not an API URL" in announcement(api=api).problem


@pytest.mark.parametrize("api", ["", "http://127.0.0.1:18080", "https://[::1]:1", "https://cp_1.example:65535"])
def test_address_of_an_api_is_accepted(api: str) -> None:
    assert announcement(api=api).api == api


@pytest.mark.parametrize("text", ["", "x", "[1]", "7", "null", "[" * 100_000, '{"at": ' + "9" * 5000 + "}"])
def test_text_that_no_member_writes_leaves_the_name(text: str) -> None:
    info = read_info(Presence("cp-1", "instance", text))
    assert info.name == "cp-1"
    assert "its heartbeat is malformed" in info.problem
    assert usable(info)


def test_names_that_no_member_has_are_left_out() -> None:
    names = ["cp-1", "", "\x1b[31m", "x" * 254, *(f"m{number}" for number in range(2 * MAX_MEMBERS))]
    infos = read_infos(Presence(name, "instance", write_info(GOOD)) for name in names)
    assert [item.name for item in infos][:3] == ["cp-1", "m0", "m1"]
    assert len(infos) == MAX_MEMBERS


def test_problem_of_a_member_is_written_as_one_line() -> None:
    info = read_info(Presence("cp-1", "instance", write_info(MemberInfo("cp-1", problem="a\nb\x1b" + "x" * 1000))))
    assert info.problem.startswith("abxxx")


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("index", range(5))
def test_sign_of_life_with_an_odd_value_is_unreadable(kind: str, index: int) -> None:
    row = json.loads(write_leader(LeaderStatus("cp-1", 12, "http://127.0.0.1:1", 1000.0, "08b6")))
    row[index] = ODD[kind]
    try:
        status = read_leader(json.dumps(row))
    except UNREADABLE:
        return
    assert (kind, index) in {("text", 0), ("text", 4), ("number", 1), ("number", 3)}
    timestamp(status.at)
