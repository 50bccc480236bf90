"""A single request on its own HTTP/2 connection, for checking replicas that support only HTTP/2.

The replica is not trusted. Flow control limits the body to `MAX_BODY_BYTES`, because the window is never increased. All
other data from the replica (headers, trailers, padding and ignored frames) is limited to `MAX_OTHER_BYTES` in total.
The caller must limit the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

MAX_BODY_BYTES = 65_535
"""Maximum body size in bytes, which is the initial flow-control window."""
MAX_OTHER_BYTES = 32 * 1024
"""Maximum total number of bytes received in addition to the body."""
_MAX_HEADER_BYTES = 16 * 1024
"""Maximum size of the decompressed headers in bytes, calculated as in HTTP/2."""
_PIECE = 4096
"""Number of bytes parsed per event-loop turn, which is enough for about 400 of the smallest frames."""
_STREAM = 1


class BrokenAnswerError(Exception):
    """The replica's response is not HTTP/2. The message states the reason."""


@dataclass(frozen=True, slots=True)
class Http2Response:
    """The response to a request."""

    status: int
    body: bytes
    """The body, or its first `MAX_BODY_BYTES`."""


async def send_request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    headers: Iterable[tuple[str, str]],
    body: bytes | None = None,
) -> Http2Response:
    """Send one request and return the response. `headers` must begin with the pseudo-headers.

    Raises BrokenAnswerError, OSError and asyncio.IncompleteReadError.
    """
    try:
        connection = _started(headers, body)
        writer.write(connection.data_to_send())
        return await _read_response(connection, reader, writer)
    except ProtocolError as error:
        raise BrokenAnswerError(f"its response is not valid HTTP/2: {str(error).partition(':')[0]}") from None


def _started(headers: Iterable[tuple[str, str]], body: bytes | None) -> H2Connection:
    """Return a connection on which the request has been sent."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None, validate_inbound_headers=False))
    limits = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES}
    connection.local_settings = Settings(client=True, initial_values=limits)
    connection.decoder.max_header_list_size = _MAX_HEADER_BYTES
    connection.initiate_connection()
    connection.send_headers(_STREAM, list(headers), end_stream=body is None)
    if body is not None:
        connection.send_data(_STREAM, body, end_stream=True)
    return connection


async def _read_response(
    connection: H2Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Http2Response:
    answer = _Answer()
    received = 0
    while not answer.is_complete:
        piece = await reader.read(_PIECE)
        if not piece:
            raise asyncio.IncompleteReadError(b"", None)
        if not received and piece.startswith(b"HTTP/"):
            raise BrokenAnswerError("it supports only HTTP/1.1")
        received += len(piece)
        for event in connection.receive_data(piece):
            answer.add(event)
        if received - len(answer.body) > MAX_OTHER_BYTES and not answer.is_complete:
            raise BrokenAnswerError(f"it sent more than {MAX_OTHER_BYTES >> 10} KiB in addition to a body")
        writer.write(connection.data_to_send())
        await asyncio.sleep(0)
    return Http2Response(answer.status, bytes(answer.body))


class _Answer:
    """The part of a response that has been received so far."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self._ended = False

    @property
    def is_complete(self) -> bool:
        """Whether the rest of the response can be ignored."""
        return self.status > 0 and (self._ended or len(self.body) >= MAX_BODY_BYTES)

    def add(self, event: Event) -> None:
        """Add an event. Raises BrokenAnswerError if a response can no longer follow."""
        if isinstance(event, ResponseReceived):
            self.status = _status(dict(event.headers or ()))
        elif isinstance(event, DataReceived):
            self.body += event.data or b""
        elif isinstance(event, StreamEnded):
            self._ended = True
        elif isinstance(event, StreamReset | ConnectionTerminated) and not self.is_complete:
            raise BrokenAnswerError("it aborted the request")


def _status(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b":status", b"")
    if len(text) != 3 or not text.isdigit():
        raise BrokenAnswerError("its response has no status")
    return int(text)
