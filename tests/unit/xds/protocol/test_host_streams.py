"""At the limit of a host, a stream of its busiest connection ends; streams of other connections continue."""

from __future__ import annotations

from lbctl.xds.protocol.host_streams import HostStreams


class _Stream:
    def __init__(self, peer: str, *, is_proven: bool = False) -> None:
        self.peer = peer
        self.is_proven = is_proven
        self.ended = False

    def end(self, *_: object) -> None:
        self.ended = True


def test_stream_of_the_largest_connection_ends() -> None:
    streams = HostStreams(4)
    envoy = _Stream("envoy", is_proven=True)
    proven, *others = [_Stream("many", is_proven=number == 0) for number in range(3)]
    for stream in (envoy, proven, *others):
        streams.enter("10.0.0.1", stream)
    again = _Stream("envoy-2")
    streams.enter("10.0.0.1", again)
    assert [stream.ended for stream in (envoy, proven, *others, again)] == [False, False, True, False, False]


def test_hosts_and_ended_streams_do_not_count() -> None:
    streams = HostStreams(1)
    first, second, third = (_Stream(name) for name in ("a", "b", "c"))
    streams.enter("10.0.0.1", first)
    streams.enter("10.0.0.2", second)
    streams.leave("10.0.0.1", first)
    streams.enter("10.0.0.1", third)
    assert not any(stream.ended for stream in (first, second, third))
