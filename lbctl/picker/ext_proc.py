"""One Envoy external-processing stream: maps the messages for one HTTP request to responses, without any I/O.

Kubernetes gateways use this protocol to query the picker. They send the whole body as a stream that the picker must
send back in pieces (`FULL_DUPLEX_STREAMED`), its buffered beginning, or no body at all. They do not specify a pool, and
they expect the responses defined by the endpoint picker protocol: 503 if no replica is ready, and 429 if all replicas
are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import HttpBody, ProcessingRequest, ProcessingResponse
from google.protobuf.struct_pb2 import Struct

from lbctl.picker.messages import MAX_BODY_BYTES, Caller, PickerAnswer, PickerQuestion, ResponseStart

DESTINATION = "x-gateway-destination-endpoint"
"""Name of both the header and the metadata key that contain the addresses of the chosen replicas."""
_SERVED = "x-gateway-destination-endpoint-served"
_SUBSET = "x-gateway-destination-endpoint-subset"
_NAMESPACE, _SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
_CHUNK = 62_000
"""Maximum number of body bytes in one response, so that each message stays below the gateways' 64 KiB limit."""
_HELD = (ProcessingMode.BUFFERED, ProcessingMode.BUFFERED_PARTIAL)
_DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED
_CONTINUE = {
    kind: bytes(ProcessingResponse(**{kind: {}}).SerializeToString())
    for kind in (
        "request_headers", "response_headers", "request_body", "response_body", "request_trailers", "response_trailers",
    )
}  # fmt: skip


class Picking(Protocol):
    """The part of the picker that streams use."""

    def pick(self, question: PickerQuestion) -> PickerAnswer:
        """Return the replicas for a request, in the order in which a proxy should try them."""

    def answered(self, pick: str, answer: ResponseStart) -> None:
        """Record that the response to a request has started."""

    def finished(self, pick: str) -> None:
        """Record that a request has ended."""


class ProcessorStream:
    """One stream's state."""

    def __init__(self, picking: Picking) -> None:
        self._picking = picking
        self._mode = ProcessingMode.NONE
        self._response_mode = ProcessingMode.NONE
        self._headers: dict[str, list[str]] = {}
        self._subset: frozenset[str] | None = None
        self._held: list[bytes] | None = None
        """Pieces of the body that are held until the replica is chosen; None if nothing is held."""
        self._held_bytes = 0
        self._pick = ""

    @property
    def is_asking(self) -> bool:
        """Whether the stream is waiting for the body before choosing the replica."""
        return self._held is not None

    def receive(self, request: ProcessingRequest) -> Sequence[bytes]:
        """Return the encoded responses to the message."""
        match request.WhichOneof("request"):
            case "request_headers":
                return self._request_headers(request)
            case "request_body":
                return self._request_body(request.request_body)
            case "request_trailers":
                return [*self._release(end=False), _CONTINUE["request_trailers"]]
            case "response_headers":
                self._response_headers(request)
                return [_CONTINUE["response_headers"]]
            case "response_body":
                return self._response_body(request.response_body)
            case "response_trailers":
                return [_CONTINUE["response_trailers"]]
            case _:
                return []

    def end(self) -> None:
        """Record that the stream and its request have ended."""
        if self._pick:
            self._picking.finished(self._pick)
            self._pick = ""

    # ── The request ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _request_headers(self, request: ProcessingRequest) -> Sequence[bytes]:
        message = request.request_headers
        if request.HasField("protocol_config"):
            self._mode = request.protocol_config.request_body_mode
            self._response_mode = request.protocol_config.response_body_mode
        for item in message.headers.headers:
            value = item.raw_value.decode("utf-8", "replace") if item.raw_value else item.value
            self._headers.setdefault(item.key, []).append(value)
        self._subset = _subset_of(request)
        if message.end_of_stream or self._mode not in (*_HELD, _DUPLEX):
            return [self._choose("request_headers", b"", whole=message.end_of_stream)]
        self._held = []
        return [] if self._mode == _DUPLEX else [_CONTINUE["request_headers"]]

    def _request_body(self, message: HttpBody) -> Sequence[bytes]:
        if self._mode == _DUPLEX:
            return self._duplex_body(message)
        if self._mode not in _HELD or self._held is None:
            return [_CONTINUE["request_body"]]
        self._held = None
        return [self._choose("request_body", message.body, whole=message.end_of_stream)]

    def _duplex_body(self, message: HttpBody) -> Sequence[bytes]:
        end = message.end_of_stream
        if self._held is None:
            return list(_chunks("request_body", message.body, end=end))
        self._held.append(message.body)
        self._held_bytes += len(message.body)
        return self._release(end=end) if end or self._held_bytes >= MAX_BODY_BYTES else []

    def _release(self, *, end: bool) -> Sequence[bytes]:
        """Choose the replica and send back the part of the body that was held.

        `end`: whether this is the whole body.
        """
        if self._held is None:
            return []
        body, self._held = b"".join(self._held), None
        chosen = self._choose("request_headers", body, whole=end)
        return [chosen, *(_chunks("request_body", body, end=end) if body or end else ())]

    def _choose(self, kind: str, body: bytes, *, whole: bool) -> bytes:
        length = len(body) if whole and body else max(len(body), _content_length(self._headers))
        question = PickerQuestion(Caller(None), self._headers, body, length, self._subset)
        picked = self._picking.pick(question)
        self.end()  # only the last pick in a stream counts
        self._pick, self._headers = picked.id, {}
        if picked.addresses:
            return _chosen(kind, ",".join(picked.addresses))
        return _refused(429 if picked.full else 503)

    # ── The response ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _response_headers(self, request: ProcessingRequest) -> None:
        if self._pick:
            self._picking.answered(self._pick, _answer(request))

    def _response_body(self, message: HttpBody) -> Sequence[bytes]:
        if self._response_mode == _DUPLEX:
            return list(_chunks("response_body", message.body, end=message.end_of_stream))
        return [_CONTINUE["response_body"]]


def _subset_of(request: ProcessingRequest) -> frozenset[str] | None:
    """Return the addresses that the gateway allows; None if the gateway does not send this hint."""
    metadata = request.metadata_context.filter_metadata
    if _SUBSET_NAMESPACE not in metadata:
        return None
    fields = metadata[_SUBSET_NAMESPACE].fields
    if _SUBSET not in fields:
        return None
    value = fields[_SUBSET]
    texts = [item.string_value for item in value.list_value.values] if value.HasField("list_value") else []
    texts += [value.string_value]
    return frozenset(part.strip() for text in texts for part in text.split(",") if part.strip())


def _answer(request: ProcessingRequest) -> ResponseStart:
    """Return the replica that sent the response, as given in the gateway's metadata."""
    metadata = request.metadata_context.filter_metadata
    fields = metadata[_NAMESPACE].fields if _NAMESPACE in metadata else {}
    return ResponseStart(fields[_SERVED].string_value if _SERVED in fields else "")


def _content_length(headers: dict[str, list[str]]) -> int:
    text = headers.get("content-length", ["0"])[0]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _chosen(kind: str, destination: str) -> bytes:
    """Return the response that names the replicas both in the metadata and in a header, because gateways use either."""
    option = {
        "header": {"key": DESTINATION, "raw_value": destination.encode()},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    answer = ProcessingResponse(**{kind: {"response": {"header_mutation": {"set_headers": [option]}}}})
    inner = Struct()
    inner.fields[DESTINATION].string_value = destination
    answer.dynamic_metadata.fields[_NAMESPACE].struct_value.CopyFrom(inner)
    return bytes(answer.SerializeToString())


def _refused(status: int) -> bytes:
    reason = "every ready replica is full" if status == 429 else "no replica is ready"
    answer = ProcessingResponse(
        immediate_response={"status": {"code": status}, "body": reason.encode(), "details": "lbctl_picker"}
    )
    return bytes(answer.SerializeToString())


def _chunks(kind: str, body: bytes, *, end: bool) -> Iterator[bytes]:
    """Yield a body as bidirectional-stream responses.

    If only the end of the body is new, yield one response without any bytes.
    """
    starts = range(0, len(body), _CHUNK) if body else range(1)
    for start in starts:
        piece = {"body": body[start : start + _CHUNK], "end_of_stream": end and start + _CHUNK >= len(body)}
        mutation = {"body_mutation": {"streamed_response": piece}}
        yield bytes(ProcessingResponse(**{kind: {"response": mutation}}).SerializeToString())
