"""Other lbctl processes: the leader, and a picker that another user has started."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from unittest.mock import patch

from aiohttp import ClientTimeout
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.test_utils import make_mocked_request

from lbctl.api.tokens import ApiToken, Principal
from lbctl.base import foreign_json
from lbctl.ir.address import Address
from lbctl.picker.statistics import BOUNDS
from lbctl.serve.api import forwarding
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.picker import standalone
from lbctl.serve.telemetry import samples
from lbctl.store.records import UNREADABLE
from lbctl.store.signing import Keyring
from tests.support.bounds import Case, Reader, against, inputs, json_peers, mib, sends, trickles

_SECONDS = 0.8
_OK = b"HTTP/1.1 200 OK\r\n\r\n"
_CALLER = ApiToken(Principal("anna", "operate"), b"secret")
_KEYS = Keyring("lbctl", (b"0123456789abcdef" * 2,), accepts_unsigned=False)


async def _forward(port: int) -> bool:
    requests = MemberRequests("cp-2", _KEYS, lambda: 1000.0)
    leader = forwarding.LeaderAddress("cp-2", "cp-1", f"http://127.0.0.1:{port}", None, requests)
    request = make_mocked_request("POST", "/api/v1/reload", payload=EMPTY_PAYLOAD)
    try:
        return (await forwarding.forward(request, leader, _CALLER)).body == b"fine"
    except forwarding.NoLeaderError:
        return False


_LEADERS = {
    "endless body": sends(_OK, b"x"),
    "endless headers": sends(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "slow": trickles(_OK + b"x", pause=0.02),
    "malformed": sends(b"\0\r\n\r\n"),
    "malformed length": sends(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
}
_REPORT = {
    "kind": "report",
    "reasons": [["llama", "least", 3]],
    "times": {"llama": [[0] * (len(BOUNDS) + 1), 0]},
    "finished": {"llama": 3},
    "lost": {},
    "open": 0,
    "open_by_pool": {},
    "expected_cached": {},
    "sampled": 0,
    "samples": [],
}


async def _report(port: int) -> bool:
    return await standalone.PickerAlone().look(Address("127.0.0.1", port), 1, "")


_WRONG = {
    "reasons": [["llama", 3]],
    "times": {"llama": [[0], 0]},
    "finished": {"llama": "3"},
    "lost": [1],
    "open": "1",
    "expected_cached": {"llama": {"a": "1"}},
    "sampled": [0],
    "samples": [{"at": 1}],
}
_PICKERS = {
    f"malformed {key}": sends(_OK + json.dumps({**_REPORT, key: item}).encode()) for key, item in _WRONG.items()
}


def _samples(body: bytes) -> Case:
    async def case() -> bool:
        text = base64.b64encode(zlib.compress(body)).decode()
        try:
            return (await asyncio.to_thread(samples.MemberSamples("cp-2").read, text, 1.0, {})) == []
        except UNREADABLE:
            return False

    return case


_READ = b'[2,1.0,[],{"llama":{"a":[1.0]}}]'
READERS = (
    Reader(
        "leader's response to a forwarded write",
        f"{mib(forwarding.MAX_ANSWER_BYTES)}, {forwarding.TIMEOUT.total:g} s in total",
        against(sends(_OK + b"fine"), _forward),
        inputs(_forward, _LEADERS),
        _SECONDS,
        patched=lambda: patch.object(forwarding, "TIMEOUT", ClientTimeout(total=_SECONDS)),
    ),
    Reader(
        "report from a picker that serve did not start",
        f"{mib(standalone.MAX_ANSWER_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{standalone.TIMEOUT:g} s in total",
        against(sends(_OK + json.dumps(_REPORT).encode()), _report),
        inputs(_report, json_peers(b'{"kind":"report","finished":') | _PICKERS),
        _SECONDS,
        patched=lambda: patch.multiple(standalone, TIMEOUT=_SECONDS, picker_http=lambda bind: bind),
    ),
    Reader(
        "another member's samples",
        f"{mib(samples.MAX_BYTES)} after decompression, {samples.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels",
        _samples(_READ),
        {
            "endless": _samples(bytes(16 << 20)),
            "endless values": _samples(b"[2,1.0,[" + b"0," * 700_000 + b"0],{}]"),
            "deep": _samples(b"[" * 200_000),
            "malformed form": _samples(b"[2]"),
            "malformed types": _samples(b'[2,"a",{},[1]]'),
        },
        5.0,
    ),
)
