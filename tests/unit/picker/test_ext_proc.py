"""One stream of external processing, message by message, in every mode that gateways use."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from lbctl.picker.ext_proc import ProcessorStream
from lbctl.picker.messages import PickerAnswer, PickerQuestion, ResponseStart

NONE, BUFFERED, PARTIAL, DUPLEX = 0, 2, 3, 4
KEY = "x-gateway-destination-endpoint"
TWO = PickerAnswer("1", ("a", "b"), ("10.0.0.1:80", "[2001:db8::1]:80"))
DESTINATION = "10.0.0.1:80,[2001:db8::1]:80"


class _Picking:
    """Answers every question with `picked`, and records the calls."""

    def __init__(self, picked: PickerAnswer = TWO) -> None:
        self.picked = picked
        self.questions: list[PickerQuestion] = []
        self.answers: list[ResponseStart] = []
        self.ended: list[str] = []

    def pick(self, question: PickerQuestion) -> PickerAnswer:
        self.questions.append(question)
        return self.picked

    def answered(self, pick: str, answer: ResponseStart) -> None:
        self.answers.append(answer)

    def finished(self, pick: str) -> None:
        self.ended.append(pick)


class _Stream:
    def __init__(self, picking: _Picking, mode: int = NONE) -> None:
        self.stream = ProcessorStream(picking)
        self.mode = mode

    def send(self, **message: Any) -> list[ProcessingResponse]:
        answers = self.stream.receive(ProcessingRequest(**message))
        return [ProcessingResponse.FromString(item) for item in answers]

    def headers(self, *, end: bool = False, hint: object = None, **headers: str) -> list[ProcessingResponse]:
        values = [{"key": key.replace("_", "-"), "raw_value": value.encode()} for key, value in headers.items()]
        message: dict[str, Any] = {
            "request_headers": {"headers": {"headers": values}, "end_of_stream": end},
            "protocol_config": {"request_body_mode": self.mode, "response_body_mode": self.mode},
        }
        request = ProcessingRequest(**message)
        if hint is not None:
            subset = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            subset.update({f"{KEY}-subset": hint})
        return [ProcessingResponse.FromString(item) for item in self.stream.receive(request)]


def _destination(answer: ProcessingResponse) -> tuple[str, str]:
    """Return the replicas in the headers and in the metadata of an answer."""
    options = getattr(answer, answer.WhichOneof("response")).response.header_mutation.set_headers
    assert all(option.header.key == KEY for option in options)
    metadata = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields[KEY].string_value
    return "".join(option.header.raw_value.decode() for option in options), metadata


def _echo(answers: list[ProcessingResponse]) -> tuple[bytes, list[bool]]:
    pieces = [getattr(item, item.WhichOneof("response")).response.body_mutation.streamed_response for item in answers]
    assert all(len(piece.body) <= 62_000 for piece in pieces)
    return b"".join(piece.body for piece in pieces), [piece.end_of_stream for piece in pieces]


def test_replicas_are_in_metadata_and_in_a_header() -> None:
    picking = _Picking()
    (answer,) = _Stream(picking).headers(x_session_id="s1", content_length="400")
    assert _destination(answer) == (DESTINATION, DESTINATION)
    (question,) = picking.questions
    assert (question.headers["x-session-id"], question.body, question.body_length) == (["s1"], b"", 400)


@pytest.mark.parametrize("mode", [BUFFERED, PARTIAL])
def test_buffered_body_is_awaited_before_the_pick(mode: int) -> None:
    picking = _Picking()
    stream = _Stream(picking, mode=mode)
    (first,) = stream.headers(content_length="5000")
    assert first.WhichOneof("response") == "request_headers"
    assert not first.HasField("dynamic_metadata")
    (answer,) = stream.send(request_body={"body": b"{}", "end_of_stream": False})
    assert _destination(answer) == (DESTINATION, DESTINATION)
    assert (picking.questions[0].body, picking.questions[0].body_length) == (b"{}", 5000)


def test_request_without_a_body_is_picked_at_once() -> None:
    (answer,) = _Stream(_Picking(), mode=PARTIAL).headers(end=True)
    assert _destination(answer) == (DESTINATION, DESTINATION)


def test_streamed_body_is_returned_after_the_pick() -> None:
    picking = _Picking()
    stream = _Stream(picking, DUPLEX)
    assert stream.headers() == []
    pieces = [bytes([number]) * 50_000 for number in range(3)]
    assert stream.send(request_body={"body": pieces[0]}) == []
    answers = [
        *stream.send(request_body={"body": pieces[1]}),
        *stream.send(request_body={"body": pieces[2], "end_of_stream": True}),
    ]
    assert _destination(answers[0]) == (DESTINATION, DESTINATION)
    body, ends = _echo(answers[1:])
    assert body == b"".join(pieces)
    assert ends == [False] * (len(ends) - 1) + [True]
    assert picking.questions[0].body_length == 150_000


def test_long_streamed_body_is_passed_on_after_the_pick() -> None:
    stream = _Stream(_Picking(), DUPLEX)
    stream.headers()
    first = stream.send(request_body={"body": b"x" * 300_000})
    assert _destination(first[0]) == (DESTINATION, DESTINATION)
    assert _echo(stream.send(request_body={"body": b"y", "end_of_stream": True})) == (b"y", [True])


def test_trailers_end_a_streamed_body_and_are_returned() -> None:
    stream = _Stream(_Picking(), DUPLEX)
    stream.headers()
    stream.send(request_body={"body": b"abc"})
    chosen, body, trailers = stream.send(request_trailers={})
    assert _destination(chosen) == (DESTINATION, DESTINATION)
    assert _echo([body]) == (b"abc", [False])
    assert trailers.WhichOneof("response") == "request_trailers"


def test_response_body_and_trailers_are_returned() -> None:
    stream = _Stream(_Picking(), DUPLEX)
    stream.headers(end=True)
    assert stream.send(response_headers={})[0].WhichOneof("response") == "response_headers"
    answers = stream.send(response_body={"body": b"z" * 130_000, "end_of_stream": True})
    assert _echo(answers) == (b"z" * 130_000, [False, False, True])
    assert stream.send(response_trailers={})[0].WhichOneof("response") == "response_trailers"


@pytest.mark.parametrize(
    ("hint", "subset"),
    [
        (["10.0.0.1:80", "10.0.0.2:80"], {"10.0.0.1:80", "10.0.0.2:80"}),
        ("10.0.0.1:80, 10.0.0.2:80", {"10.0.0.1:80", "10.0.0.2:80"}),
        ("", set()),
        ([], set()),
        (None, None),
    ],
)
def test_subset_hint_of_a_gateway_is_read(hint: object, subset: set[str] | None) -> None:
    picking = _Picking()
    _Stream(picking).headers(hint=hint)
    assert picking.questions[0].subset == (None if subset is None else frozenset(subset))


def test_gateway_gets_503_without_replicas_and_429_if_all_full() -> None:
    for picked, status in ((PickerAnswer(), 503), (PickerAnswer(full=True), 429)):
        (answer,) = _Stream(_Picking(picked)).headers()
        assert answer.immediate_response.status.code == status


def test_end_of_the_stream_ends_the_pick_once() -> None:
    picking = _Picking()
    stream = _Stream(picking)
    stream.headers()
    stream.stream.end()
    stream.stream.end()
    assert picking.ended == ["1"]


def test_stream_with_repeated_headers_ends_every_pick() -> None:
    picking = _Picking()
    stream = _Stream(picking)
    for _ in range(3):
        stream.headers()
    stream.stream.end()
    assert len(picking.questions) == len(picking.ended) == 3


def test_gateway_metadata_reports_the_replica_that_answered() -> None:
    picking = _Picking()
    stream = _Stream(picking)
    stream.headers()
    request = ProcessingRequest(response_headers={})
    request.metadata_context.filter_metadata["envoy.lb"].update({f"{KEY}-served": "10.0.0.1:80"})
    stream.stream.receive(request)
    assert picking.answers == [ResponseStart("10.0.0.1:80")]


@pytest.mark.parametrize("length", ["", "-1", "x", "9" * 400, "\uff11"])
def test_malformed_length_counts_as_zero(length: str) -> None:
    picking = _Picking()
    _Stream(picking).headers(content_length=length)
    assert picking.questions[0].body_length == 0
