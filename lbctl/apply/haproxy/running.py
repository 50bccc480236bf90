"""Parses a running HAProxy's responses about its process, configuration digest and servers.

Responses can be several megabytes in size, so they are parsed line by line, and lines and rows are not kept.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lbctl.base.errors import reason_of
from lbctl.targets.haproxy import config_digest, slots

QUESTIONS = ("show info", "show servers state", "show stat -1 4 -1")
"""Commands whose responses are parsed by `read`, in this order. The argument 4 selects only servers."""
SLOTS = f"show map {slots.MAP}"
"""Command that shows the replica in each slot. The command fails if the configuration defines no slots."""
COUNTERS = f"{QUESTIONS[0]};{SLOTS};show stat -1 6 -1"
"""Commands sent together to one worker. `counters` parses the response. The argument 6 selects backends and servers."""
_BACKEND = "BACKEND"
"""Name of the row that describes the backend as a whole."""
_OWN_MAINT, _MAINT = 0x01, 0x01 | 0x02
_OWN_DRAIN, _DRAIN = 0x08, 0x08 | 0x10
_UNRESOLVED = 0x20
_VALUE = re.compile(r"type=sint value=<(-?[0-9]{1,19})>")
_COLUMNS = ("be_name", "srv_name", "srv_addr", "srv_port", "srv_admin_state", "srv_uweight")

_STAT_HEAD = "# pxname,"
_LINE = re.compile(r"[^\n]*+\n?")
MAX_LINE_CHARACTERS = 64 * 1024
"""Maximum length of a line. HAProxy's lines are a few hundred characters long."""
_MAX_ROW_LINES = 16
"""Maximum number of lines in a statistics row. A check's report may span several lines."""
_CONNECTIONS = ("used_conn_cur", "idle_conn_cur", "safe_conn_cur")
_STATE = ("scur", "qcur", "bck", "cookie", *_CONNECTIONS)
"""Statistics columns needed to determine a server's state."""
_FAILURES = ("hrsp_5xx", "econ", "eresp")
_ANSWERS = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_other")
_OTHER_ENDS = (*_ANSWERS, "cli_abrt")
"""Counters for requests that end without a server failure."""

_MALFORMED = (KeyError, ValueError, IndexError, TypeError, csv.Error)
"""Exceptions raised when the parsed text is not a response from HAProxy."""

Place = tuple[str, str]
"""A backend's name and the name of one of its servers."""


class UnreadableAnswerError(ValueError):
    """The text is not a response from HAProxy to the command."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server in a running HAProxy."""

    host: str
    """The server's IP address, or an empty string while its name does not resolve."""
    port: int
    weight: int
    """The current weight, from 0 to 256."""
    maint: bool
    """Whether the server is in maintenance for any reason, so that it gets no requests."""
    own_maint: bool
    """Whether maintenance was set on this server, not on the server that it tracks."""
    drain: bool
    """Whether the server gets no new requests for any reason."""
    own_drain: bool
    """Whether draining was set on this server, not on the server that it tracks."""
    unresolved: bool
    """Whether the server is in maintenance because its name has no address."""
    sessions: int = 0
    """Number of current requests, including queued requests."""
    backup: bool = False
    cookie: bool = False
    """Whether the server has a cookie value for session affinity."""
    connections: int = 0
    """Number of open connections to the server, including idle connections."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """One worker's counters for a server, counted since the worker started or the server was added."""

    ended: int
    """Number of requests sent to the server that have ended, regardless of the result."""
    failed: int
    """Number of 5xx responses, failed connections, incomplete responses and `repeated` requests."""
    sessions: int
    """Number of requests in progress."""
    status: str
    """Status in HAProxy's format, such as `UP`, `UP 1/3`, `DOWN`, `MAINT`, `DRAIN`, `NOLB` or `no check`."""
    check: str
    """Result of the last check, such as `L4CON`, or `HANA` if the server was ejected because of failed requests."""
    last_check: str
    """HAProxy's description of the last check."""
    queued: int = 0
    """Number of requests queued for the server."""
    unreached: int = 0
    """Number of requests for which no connection could be established."""
    repeated: int = 0
    """Number of retries after a failure, on this server or another one."""
    answered: int = 0
    """Number of responses that began with a status below 500."""
    agent: str = ""
    """HAProxy's description of the last agent check."""


@dataclass(frozen=True, slots=True)
class BackendCounters:
    """One worker's counters for a backend, counted since the worker started."""

    errors: int
    """Number of 5xx responses sent to clients by a server or by HAProxy itself."""
    unreached: int
    """Number of requests that could not be connected to a server, including requests for which no server was
    available."""


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """One worker's counters."""

    pid: int
    """Process ID of the worker. A new worker's counters start at 0."""
    servers: Mapping[Place, ServerCounters]
    slots: Mapping[Place, str] = field(default_factory=dict)
    """Maps each slot to the replica that uses it, or to the slot's own name if it is free."""
    backends: Mapping[str, BackendCounters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """The state of a running HAProxy."""

    pid: int
    """Process ID of the worker."""
    version: str
    """Version in HAProxy's format."""
    digest: str
    """Configuration digest reported by HAProxy, or an empty string if it reports none."""
    servers: Mapping[Place, RunningServer]
    """Maps each (backend, server) to the server's state."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Maps each variable to its value."""
    slots: Mapping[Place, str] = field(default_factory=dict)
    """Maps each slot to the replica that uses it, or to the slot's own name if it is free."""


def limits(answers: Mapping[str, str]) -> dict[str, int]:
    """Map each variable that HAProxy defines to its value. `answers` maps each variable to HAProxy's response."""
    matches = ((name, _VALUE.search(answer)) for name, answer in answers.items())
    return {name: int(value[1]) for name, value in matches if value}


def read(info: str, state: str, stat: str) -> Running:
    """Parse the responses to `QUESTIONS`. Raises UnreadableAnswerError."""
    try:
        fields = _info(info)
        stats = {place: {name: row.get(name, "") for name in _STATE} for place, row in _stat_rows(stat)}
        servers = dict(_servers(state, stats))
        digest = _digest(fields, servers)
        return Running(int(fields["Pid"]), fields["Version"], digest, servers)
    except _MALFORMED as error:
        raise UnreadableAnswerError(f"invalid response from HAProxy: {reason_of(error)}") from None


def pid_and_digest(info: str, state: str) -> tuple[int, str]:
    """Return the process ID and the digest from the responses to the first two `QUESTIONS`.

    Raises UnreadableAnswerError.
    """
    try:
        fields = _info(info)
        return int(fields["Pid"]), _digest(fields, dict(_servers(state, {})))
    except _MALFORMED as error:
        raise UnreadableAnswerError(f"invalid response from HAProxy: {reason_of(error)}") from None


def _digest(fields: Mapping[str, str], servers: Iterable[Place]) -> str:
    """Return the configuration digest.

    In a fragment, the digest is a server name. Otherwise, it is in the description.
    """
    own = (name for section, name in servers if section == config_digest.SECTION)
    return next(own, fields.get("description", ""))


def counters(text: str) -> WorkerCounters:
    """Parse the response to `COUNTERS`. Raises UnreadableAnswerError."""
    start = text.find(_STAT_HEAD)
    info = text[: start if start >= 0 else len(text)]
    servers: dict[Place, ServerCounters] = {}
    backends: dict[str, BackendCounters] = {}
    try:
        for place, row in _stat_rows(text, len(info)):
            if place[1] == _BACKEND:
                backends[place[0]] = _of_backend(row)
            else:
                servers[place] = _counters(row)
        return WorkerCounters(int(_info(info)["Pid"]), servers, occupants(servers, info), backends)
    except _MALFORMED as error:
        raise UnreadableAnswerError(f"invalid response from HAProxy: {reason_of(error)}") from None


def occupants(servers: Iterable[Place], text: str) -> dict[Place, str]:
    """Map each slot in `servers` to its replica, or to its own name. `text` is the response to `SLOTS`."""
    replicas = {cells[1]: cells[2] for row in _lines(text) if len(cells := row.split()) == 3}
    return {place: replicas.get(place[1], place[1]) for place in servers if slots.is_slot(place[1])}


def _counters(row: Mapping[str, str]) -> ServerCounters:
    """Return the counters of a server.

    HAProxy counts a retry as `wretr` if it goes to the same server, and as `wredis` if it goes to another server after
    a failed connection. After a failed response, it counts as both (observed with HAProxy 2.6). The number of retries
    is therefore at least the larger of the two. Before a retry, the request waits up to one second, during which it
    counts as sent but not as in progress.
    """
    sent, sessions = int(row["stot"] or 0), int(row["scur"] or 0)
    repeated = max(int(row["wretr"] or 0), int(row["wredis"] or 0))
    failed = repeated + sum(int(row[name] or 0) for name in _FAILURES)
    others = sum(int(row[name] or 0) for name in _OTHER_ENDS)
    return ServerCounters(
        ended=max(0, min(sent - sessions, failed + others)),
        failed=failed,
        sessions=sessions,
        status=row["status"],
        check=row["check_status"].removeprefix("* "),
        last_check=row["last_chk"],
        queued=int(row["qcur"] or 0),
        unreached=int(row["econ"] or 0),
        repeated=repeated,
        answered=sum(int(row[name] or 0) for name in _ANSWERS),
        agent=row.get("last_agt") or "",
    )


def _of_backend(row: Mapping[str, str]) -> BackendCounters:
    return BackendCounters(errors=int(row["hrsp_5xx"] or 0), unreached=int(row["econ"] or 0))


def _info(text: str) -> dict[str, str]:
    rows = (row.strip("\r\n").partition(": ") for row in _lines(text))
    return {key: value for key, colon, value in rows if colon}


def _stat_rows(text: str, start: int = 0) -> Iterator[tuple[Place, dict[str, str]]]:
    """Yield the statistics rows in `text`, starting at `start`."""
    rows = _Rows(text, start + len("# ") * text.startswith("# ", start))
    for row in csv.DictReader(rows):
        rows.lines = 0
        yield (row["pxname"], row["svname"]), row


class _Rows:
    """Yields the lines of the statistics. Raises UnreadableAnswerError if a row is incomplete."""

    def __init__(self, text: str, start: int) -> None:
        self._lines = _lines(text, start)
        self.lines = 0
        """Number of lines since the last row."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.lines += 1
        if self.lines > _MAX_ROW_LINES:
            raise UnreadableAnswerError("a row is incomplete")
        return next(self._lines)


def _lines(text: str, start: int = 0) -> Iterator[str]:
    """Yield each line with its line ending. Raises UnreadableAnswerError if a line is too long."""
    for match in _LINE.finditer(text, start):
        if match.end() - match.start() > MAX_LINE_CHARACTERS:
            raise UnreadableAnswerError(f"a line of more than {MAX_LINE_CHARACTERS:,} characters")
        yield match[0]


def _servers(text: str, stats: Mapping[Place, Mapping[str, str]]) -> Iterator[tuple[Place, RunningServer]]:
    columns: dict[str, int] = {}
    for row in _lines(text):
        cells = row.split()
        if cells[:1] == ["#"]:
            columns = {name: place for place, name in enumerate(cells[1:])}
        elif len(cells) > 1 and columns:
            fields = {name: cells[columns[name]] for name in _COLUMNS}
            place = fields["be_name"], fields["srv_name"]
            yield place, _server(fields, stats.get(place, {}))


def _server(fields: Mapping[str, str], stats: Mapping[str, str]) -> RunningServer:
    admin = int(fields["srv_admin_state"])
    return RunningServer(
        host="" if fields["srv_addr"] == "-" else fields["srv_addr"],
        port=int(fields["srv_port"]),
        weight=int(fields["srv_uweight"]),
        maint=bool(admin & _MAINT),
        own_maint=bool(admin & _OWN_MAINT),
        drain=bool(admin & _DRAIN),
        own_drain=bool(admin & _OWN_DRAIN),
        unresolved=bool(admin & _UNRESOLVED),
        sessions=int(stats.get("scur") or 0) + int(stats.get("qcur") or 0),
        backup=stats.get("bck") == "1",
        cookie=bool(stats.get("cookie")),
        connections=sum(int(stats.get(name) or 0) for name in _CONNECTIONS),
    )
