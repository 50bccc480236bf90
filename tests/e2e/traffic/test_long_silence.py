"""A model may think for a long time, before its first token and between two, and the stream continues."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.processes.binaries import KINDS
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("silence", [16, pytest.param(70, marks=pytest.mark.nightly)])
def test_stream_outlives_silence_by_default(silence: int) -> None:
    """Without its own setting Envoy ends a request after 15 s, and nginx a silence of 60 s."""
    with replicas("a") as pool, ExitStack() as stack:
        gateways = {kind: stack.enter_context(running(kind, fleet_of(pool))) for kind in KINDS}
        between = {kind: each.send("GET", f"/sse?n=2&gap={silence}", timeout=100) for kind, each in gateways.items()}
        before = {
            kind: each.send("POST", f"/sse?n=1&first={silence}", body=b"{}", timeout=100)
            for kind, each in gateways.items()
        }
        streams = {(kind, "between"): each.result(110) for kind, each in between.items()}
        streams |= {(kind, "before"): each.result(110) for kind, each in before.items()}
    assert {name: str(stream) for name, stream in streams.items() if not stream.ok} == {}
    assert {name: len(stream.events()) for name, stream in streams.items()} == {
        name: 2 if name[1] == "between" else 1 for name in streams
    }
    assert min(stream.seconds for stream in streams.values()) > silence - 1
