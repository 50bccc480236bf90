"""The picker's SPOP interface, which HAProxy queries on the same port as the HTTP interface that other proxies use.

Each NOTIFY frame is one query. Its arguments are configured by `lbctl.targets.haproxy.pick`:

- the picker's `key`, and the `proxy` name
- `target`: path and query string of the equivalent HTTP query
- `id`: the pick ID
- `headers`: names of session headers, separated by spaces, followed by a `value` for each, which may be empty
- the `tenant`, the `client` address, the beginning of the `body`, and the `length` of the entire body

The ACK sets the `replica` variable. If HAProxy should fall back to `otherwise`, the ACK sets no variables. If the
request has to wait in its pool's queue, the ACK is sent later. If the queue rejects the request, the ACK sets `refused`
to the number of seconds after which the client should retry. HAProxy reports the end of a request in a datagram
(`http_api.RequestEnds`).

HAProxy's health check sends a HELLO, which the picker accepts once it has tables. Only a SPOP agent can pass this
check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lbctl.picker import spop_frames
from lbctl.picker.admission import QuestionKey
from lbctl.picker.connection import Later, MalformedError, Reply
from lbctl.picker.messages import PickerAnswer, PickerQuestion
from lbctl.picker.query_fields import body_length, caller, pick_id
from lbctl.picker.service import PickService
from lbctl.picker.spop_frames import Value

MAX_FRAME_BYTES = 1 << 20
"""Maximum size of a frame without its length field, in bytes."""
FIRST_BYTE = 0
"""First byte of each frame, which is the high byte of its length."""
_VERSION, _MIN_FRAME_BYTES = b"2.0", 256
_NORMAL, _INVALID, _NOT_READY = 0, 4, 99
"""SPOP status codes."""


class SpopApi:
    """Handles queries, which must contain the `key`."""

    def __init__(self, service: PickService, key: QuestionKey) -> None:
        self._service = service
        self._key = key

    @property
    def is_ready(self) -> bool:
        """Whether replicas can be picked."""
        return self._service.is_ready

    def question(self, arguments: Sequence[tuple[bytes, Value]]) -> PickerQuestion | None:
        """Return the query with these arguments; None if it does not contain the key."""
        fields = {name: value for name, value in arguments if name != b"value"}
        values = [value for name, value in arguments if name == b"value"]
        names = _text(fields.get(b"headers")).split()
        headers = {name: [_text(value)] for name, value in zip(names, values, strict=False) if value}
        proxy = _text(fields.get(b"proxy"))
        is_admitted = self._key.admits(_text(fields.get(b"key")), proxy)
        return _query(fields, headers, proxy) if is_admitted else None

    def pick(self, question: PickerQuestion) -> PickerAnswer:
        """Return the response to a query."""
        return self._service.pick(question)

    def wait(self, question: PickerQuestion, respond: Callable[[PickerAnswer], None]) -> Callable[[], None]:
        """Queue a request and return a function that withdraws it. `respond` is called with the response later."""
        return partial(self._service.finished, self._service.wait(question, respond))


class SpopProtocol:
    """SPOP on one connection."""

    def __init__(self, api: SpopApi) -> None:
        self._api = api
        self._is_accepted = False

    def respond(self, received: bytearray) -> Reply | Later | int:
        """Return the response to the first frame in the buffer.

        If the frame is incomplete, return its minimum length in bytes. Raises MalformedError.
        """
        if len(received) < spop_frames.LENGTH_BYTES:
            return spop_frames.LENGTH_BYTES
        size = spop_frames.length(received)
        if size > MAX_FRAME_BYTES:
            raise MalformedError("the frame is too long")
        end = spop_frames.LENGTH_BYTES + size
        if len(received) < end:
            return end
        frame = spop_frames.read(bytes(received[spop_frames.LENGTH_BYTES : end]))
        if frame.kind == spop_frames.NOTIFY and self._is_accepted:
            return self._answer(frame, end)
        if frame.kind == spop_frames.HAPROXY_HELLO and not self._is_accepted:
            return self._accept(frame.payload, end)
        if frame.kind == spop_frames.HAPROXY_DISCONNECT:
            return Reply(spop_frames.disconnect(_NORMAL, "bye"), end, keep=False)
        raise MalformedError("this frame is not expected here")

    def rejection(self, error: MalformedError) -> bytes:
        """Return the frame that closes the connection."""
        return spop_frames.disconnect(_INVALID, str(error))

    def _answer(self, frame: spop_frames.Frame, end: int) -> Reply | Later:
        question = self._api.question(spop_frames.arguments(frame.payload))
        answer = PickerAnswer() if question is None else self._api.pick(question)
        if question is None or not answer.must_wait:
            return Reply(spop_frames.ack(frame, _variables(answer)), end)
        frame = frame._replace(payload=b"")  # it may have to wait for a long time
        later = Later(end, blocks=False)
        later.withdraw = self._api.wait(
            question, lambda answer: later.send(Reply(spop_frames.ack(frame, _variables(answer)), end))
        )
        return later

    def _accept(self, payload: bytes, end: int) -> Reply:
        values = spop_frames.values(payload)
        versions, size = values.get(b"supported-versions"), values.get(b"max-frame-size")
        if not isinstance(versions, bytes) or _VERSION not in [item.strip() for item in versions.split(b",")]:
            raise MalformedError("only version 2.0 is supported")
        if not isinstance(size, int) or size < _MIN_FRAME_BYTES:
            raise MalformedError("max-frame-size is missing or too small")
        is_check = values.get(b"healthcheck") is True
        if is_check and not self._api.is_ready:
            return Reply(spop_frames.disconnect(_NOT_READY, "no pool can be picked"), end, keep=False)
        self._is_accepted = True
        return Reply(spop_frames.hello(min(size, MAX_FRAME_BYTES)), end, keep=not is_check)


def _query(fields: Mapping[bytes, Value], headers: Mapping[str, list[str]], proxy: str) -> PickerQuestion:
    body = fields.get(b"body")
    beginning = body if isinstance(body, bytes) else b""
    return PickerQuestion(
        caller(_text(fields.get(b"target")), proxy, _text(fields.get(b"tenant"))),
        headers,
        beginning,
        body_length(_text(fields.get(b"length")), beginning),
        id=pick_id(_text(fields.get(b"id"))),
        client=_client(fields.get(b"client")),
    )


def _variables(answer: PickerAnswer) -> tuple[tuple[bytes, bytes], ...]:
    if answer.refused:
        refused = b"refused", str(answer.refused).encode()
        return (refused, (b"full", b"1")) if answer.full else (refused,)
    return ((b"replica", answer.names[0].encode()),) if answer.names else ()


def _client(value: Value) -> str:
    """Return the client's name based on its address, which HAProxy sends as text or as the bytes of an IP address."""
    return value.decode("latin-1") if isinstance(value, bytes) else ""


def _text(value: Value) -> str:
    """Return the value if it is a string; otherwise return an empty string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
