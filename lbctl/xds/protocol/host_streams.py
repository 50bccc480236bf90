"""Limits the streams of clients that are identified only by their host.

Any user on the control plane's machine can be such a client, for example. At the limit, each new stream ends another
stream from the same host: on the connection with the most streams, the oldest stream without an ACK. A client that
opens many streams therefore cannot lock out an Envoy, which can always reconnect.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import grpc

from lbctl.xds.protocol.shares import Shares


class HostStream(Hashable, Protocol):
    """A stream that counts towards its host's limit."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    @property
    def is_proven(self) -> bool:
        """Whether the client has accepted a response."""

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream."""


class HostStreams:
    """The streams of each host."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams: dict[str, Shares[HostStream]] = {}

    def enter(self, host: str, stream: HostStream) -> None:
        """Count a stream, and end another one if the limit is exceeded."""
        streams = self._streams.setdefault(host, Shares())
        if len(streams) >= self._most:
            client = streams.largest()
            of_client = streams.items(client)
            chosen = next((item for item in of_client if not item.is_proven), of_client[0])
            streams.discard(client, chosen)
            chosen.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{host} has more than {self._most} streams")
        streams.add(stream.peer, stream)

    def leave(self, host: str, stream: HostStream) -> None:
        """Stop counting a stream."""
        streams = self._streams[host]
        streams.discard(stream.peer, stream)
        if not streams:
            del self._streams[host]
