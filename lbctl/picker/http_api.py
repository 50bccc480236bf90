"""The picker's HTTP interface, and the datagrams in which HAProxy and nginx report that a request has ended.

nginx sends `POST /pick/POOL` with the beginning of the client's body, or `GET /pick/POOL`. Both queries contain the
client's headers and `?regions=EU,US&region=EU&zone=a`, with the regions that the route allows and the proxy's location.
The response is 200 with a replica's name and the pick ID, or 204 if there is no replica. If the request has to wait in
its pool's queue, the response is 401. nginx then queries again with `wait=1` and gets the response later. If the
request is rejected, the response is 403, with the number of seconds after which the client should retry in
`x-lbctl-refused`. If the request has left another pool for its fallback, `x-lbctl-left` is the ID of its pick in that
pool, whose charge for the prompt is then refunded. A datagram that contains the ID ends the pick. HAProxy 2.6 and later
use SPOP instead (`spop`). Configurations from earlier lbctl versions also send the ID (`x-lbctl-pick-id`, a UUID).

Queries require the picker's key (`x-lbctl-pick-key`) unless TLS authenticates the proxy. If the key is missing, the
response is 403, or 503 for an Envoy.

Envoys query `/envoy` with the client's method and with headers that contain the pool and the other fields. The response
is 200, either with the addresses of the replicas to try and the pick ID, or with neither. Envoy would forward any other
response below 500 to its client. The response is 429 if the request is rejected. If the request has to wait, the
response contains its ID and `x-lbctl-must-wait`, and Envoy then queries `/envoy/wait` with this ID. The response to
this second query is sent later. Envoys configured by lbctl 1.0 do not send `x-lbctl-asks-again`, so the response to
their only query is delayed instead. Envoy's access log reports when the request ends (`envoy_access_log`). If the
client disconnects or Envoy stops waiting, Envoy closes the query's connection, which withdraws the pick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

from lbctl.ir.address import Address
from lbctl.ir.locality import Place
from lbctl.picker.admission import HEADER, QuestionKey, is_of_web_page
from lbctl.picker.http_protocol import HttpAnswer, HttpRequest, HttpWait
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion, ResponseStart
from lbctl.picker.query_fields import MAX_CALLERS, PICK_PATH, body_length, caller, pick_id, priority_named
from lbctl.picker.service import PickService

_ID = "x-lbctl-pick-id"
_ENVOY, _ENVOY_WAIT, _FIRST_BYTE, _READY = "/envoy", "/envoy/wait", "/first", "/ready"
_ASKS_AGAIN, _MUST_WAIT = "x-lbctl-asks-again", "x-lbctl-must-wait"
_MAX_DATAGRAM_BYTES = 8 << 10
_NOTHING = HttpAnswer(204)
_TENANT, _CLIENT, _LEFT = "x-lbctl-tenant", "x-lbctl-client", "x-lbctl-left"
_REFUSED, _FULL = "x-lbctl-refused", "x-lbctl-full"
_ENVOY_HEADERS = (
    "x-lbctl-pool", "x-lbctl-proxy", "x-lbctl-regions", "x-lbctl-region", "x-lbctl-zone", "x-lbctl-busy", _TENANT,
    "x-lbctl-priority", "x-lbctl-route",
)  # fmt: skip
"""Headers that describe the querying Envoy and its route."""
_STRUCTURED = re.compile(
    rb'<[0-9]{1,3}>1 (?:[!-~]{1,255} ){5}\[lbctl@0 [^\]]{1,400}? end="([^"]{2})"[^\]]{0,500}?'
    rb' retries="(\+?)[0-9]{1,10}" pick="([0-9a-z-]{0,48})"\]'
)
_LATE = "late-"
"""Prefix of a pick ID when the proxy did not wait for the pick."""
_NO_CONNECTION = (b"SC", b"sC")
"""Termination states that HAProxy reports for a request that no replica accepted."""
_UNREACHED, _MOVED = ResponseStart(by_replica=False), ResponseStart(moved=True)


class HttpApi:
    """Handles the HTTP requests. `metrics` returns the page with the picker's own metrics.

    `local` maps additional paths, served only to clients on this machine, to functions that take a body and return a
    response. These paths require `POST`. `bind` is the address of the listener that serves them. It is None if TLS with
    client certificates already excludes requests from web pages.

    Queries and `local` paths require the `key`. It is None if TLS or the caller authenticates the clients.

    Envoy's health check requests `/ready`, and its cluster configuration expects the text that this class returns.
    """

    def __init__(
        self,
        service: PickService,
        metrics: Callable[[], bytes],
        local: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
        bind: Address | None = None,
        key: QuestionKey | None = None,
    ) -> None:
        self._key = key
        self._service = service
        self._metrics = metrics
        self._posted = {_FIRST_BYTE: self._note_first_byte, **local}
        self._bind = bind

    def handle(self, request: HttpRequest) -> HttpAnswer | HttpWait:
        """Return the response to a request."""
        path = request.target.partition("?")[0]
        by_envoy = path in (_ENVOY, _ENVOY_WAIT)
        by_proxy = by_envoy or path in (_FIRST_BYTE, _READY) or path.startswith(PICK_PATH)
        if self._bind is not None and is_of_web_page(request.headers, self._bind, by_proxy=by_proxy):
            return HttpAnswer(500 if by_envoy else 403)  # Envoy forwards responses below 500
        if by_envoy:
            answer = self._answer_envoy if path == _ENVOY else self._answer_envoy_later
            return answer(request) if self._is_admitted(request) else HttpAnswer(503)
        if path.startswith(PICK_PATH) and request.method in ("GET", "POST"):
            if not self._is_admitted(request):
                return HttpAnswer(403)
            return self._pick(request)
        if path in self._posted:
            return self._answer_posted(path, request) if self._is_admitted(request) else HttpAnswer(403)
        if request.method not in ("GET", "HEAD"):
            return HttpAnswer(405)
        if path == "/health":
            return HttpAnswer(200, b"ok\n")
        if path == _READY:
            return HttpAnswer(200, b"lbctl picker ready\n") if self._service.is_ready else HttpAnswer(503)
        if path == "/metrics":
            return HttpAnswer(200, self._metrics(), {"content-type": "text/plain; version=0.0.4; charset=utf-8"})
        return HttpAnswer(404)

    def _is_admitted(self, request: HttpRequest) -> bool:
        """Return whether a request contains the required key."""
        if self._key is None:
            return True
        return self._key.admits(_header(request, HEADER), _header(request, "x-lbctl-proxy"))

    def _note_first_byte(self, body: bytes) -> bytes:
        self._service.first_byte(body.decode("ascii", "replace"))
        return b""

    def _answer_posted(self, path: str, request: HttpRequest) -> HttpAnswer:
        if request.method != "POST":
            return HttpAnswer(405, headers={"allow": "POST"})
        return HttpAnswer(200, self._posted[path](request.body), {"content-type": "application/json"})

    def _pick(self, request: HttpRequest) -> HttpAnswer | HttpWait:
        asking = caller(request.target, _header(request, "x-lbctl-proxy"), _header(request, _TENANT))
        question = PickerQuestion(
            asking, request.headers, request.body, _body_length(request), id=pick_id(_header(request, _ID)),
            client=_header(request, _CLIENT), left=_header(request, _LEFT),
        )  # fmt: skip
        picked = self._service.pick(question)
        if not asking.waits:
            return _nginx_answer(picked)
        return self._wait(question, self._waited_answer) if picked.must_wait else self._waited_answer(picked)

    def _answer_envoy(self, request: HttpRequest) -> HttpAnswer | HttpWait:
        asking = _envoy_caller(*[_header(request, name) for name in _ENVOY_HEADERS])
        question = PickerQuestion(
            asking, request.headers, request.body, _body_length(request), client=_header(request, _CLIENT)
        )
        picked = self._service.pick(question)
        if not picked.must_wait:
            return self._envoy_answer(picked)
        if not _header(request, _ASKS_AGAIN):
            return self._wait(question, self._envoy_answer)
        pick = self._service.issue_ticket(question)
        return HttpAnswer(200, headers={_ID: pick, _MUST_WAIT: "1"}, withdraw=partial(self._service.drop_ticket, pick))

    def _answer_envoy_later(self, request: HttpRequest) -> HttpAnswer | HttpWait:
        """Return the response to a second query, during which the request waits."""
        pick = _header(request, _ID)
        ticket = self._service.claim_ticket(pick)
        if ticket.answer is not None:
            return self._envoy_answer(ticket.answer)

        def begin(respond: Callable[[HttpAnswer], None]) -> Callable[[], None]:
            ticket.send = lambda answer: respond(self._envoy_answer(answer))
            return partial(self._service.finished, pick)

        return HttpWait(begin)

    def _wait(self, question: PickerQuestion, encode: Callable[[PickerAnswer], HttpAnswer]) -> HttpWait:
        def begin(respond: Callable[[HttpAnswer], None]) -> Callable[[], None]:
            pick = self._service.wait(question, lambda answer: respond(encode(answer)))
            return partial(self._service.finished, pick)

        return HttpWait(begin)

    def _waited_answer(self, picked: PickerAnswer) -> HttpAnswer:
        """Return nginx's response to a query with `wait=1`. nginx closes the connection if the client disconnects."""
        return _nginx_answer(picked)._replace(withdraw=partial(self._service.finished, picked.id))

    def _envoy_answer(self, picked: PickerAnswer) -> HttpAnswer:
        if picked.refused:
            return HttpAnswer(429, headers={"retry-after": str(picked.refused), **_rejection(picked)})
        if not picked.addresses:
            return HttpAnswer(200)
        headers = {"x-lbctl-replicas": ",".join(picked.addresses), _ID: picked.id}
        return HttpAnswer(200, b"", headers, partial(self._service.finished, picked.id))


def _nginx_answer(picked: PickerAnswer) -> HttpAnswer:
    if picked.refused:
        return HttpAnswer(403, headers=_rejection(picked))
    if not picked.names:
        return HttpAnswer(401) if picked.must_wait else _NOTHING
    headers = {"x-lbctl-pick": picked.names[0], _ID: picked.id}
    return HttpAnswer(200, b"", headers)  # nginx closes the connection of an `auth_request` whose response has a body


def _rejection(picked: PickerAnswer) -> dict[str, str]:
    """Return the headers for the proxy if the request is rejected by its pool's queue or by a limit."""
    full = {_FULL: "1"} if picked.full else {}
    return {_REFUSED: str(picked.refused), **full}


class RequestEnds:
    """Parses the log lines that report the end of a pick. Lines that cannot be parsed are counted."""

    def __init__(self, service: PickService) -> None:
        self._service = service
        self.malformed = 0
        """Number of datagrams that could not be parsed."""

    def received(self, data: bytes) -> None:
        """End the pick whose ID is in the datagram."""
        end = _end(data) if len(data) <= _MAX_DATAGRAM_BYTES else None
        if end is None:
            self.malformed += 1
            return
        if end.left:
            self._service.answered(end.left, _UNREACHED)
            self._service.finished(end.left)
        if end.pick.startswith(_LATE):
            self._service.finished(end.pick.removeprefix(_LATE))
            return
        if end.unreached:
            self._service.answered(end.pick, _UNREACHED)
        elif end.moved:
            self._service.answered(end.pick, _MOVED)
        self._service.finished(end.pick)


class _End(NamedTuple):
    """The end of a request.

    `pick` is the ID of its pick; empty if it had none. `unreached`: whether the proxy could not reach the picked
    replica. `left` is the ID of its pick in the pool that it left for the fallback because none of the pool's replicas
    could be reached; empty if it did not leave a pool.
    """

    pick: str
    unreached: bool
    left: str = ""
    moved: bool = False
    """Whether the request went to another replica because the picked replica was busy or could not be reached."""


def _end(data: bytes) -> _End | None:
    """Return the request end reported in a syslog line; None if the line cannot be parsed.

    HAProxy reports the end in the structured data before the access log entry, and nginx in a JSON object. HAProxy adds
    a plus sign to its retry count if the request went to a server other than the first.
    """
    if match := _STRUCTURED.match(data):
        state, redispatched, pick = match.groups()
        return _End(pick.decode().strip("-"), state in _NO_CONNECTION, moved=bool(redispatched))
    start = data.find(b"{")
    try:
        line = json.loads(data[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("pick"), str):
        return None
    left = line.get("left", "")
    moved = line.get("moved") is True
    return _End(line["pick"], line.get("unreached") is True, left if isinstance(left, str) else "", moved)


@lru_cache(MAX_CALLERS)
def _envoy_caller(
    pool: str, proxy: str, regions: str, region: str, zone: str, busy: str, tenant: str, priority: str,
    route: str,
) -> Caller:  # fmt: skip
    """Return the caller for an Envoy's query, from the values of `_ENVOY_HEADERS`."""
    allowed, place = frozenset(item for item in regions.split(",") if item), Place(region or None, zone or None)
    return Caller(
        pool, proxy, allowed, place, leaves_busy=busy == "1", tenant=tenant, priority=priority_named(priority),
        route=route,
    )  # fmt: skip


def _header(request: HttpRequest, name: str) -> str:
    """Return the first value of a header; empty if the request does not contain it."""
    return request.headers.get(name, [""])[0]


def _body_length(request: HttpRequest) -> int:
    """Return the length of the client's entire body, if the proxy knows it."""
    return body_length(_header(request, "x-lbctl-body-length"), request.body)
