"""Concurrent requests on any machine: none is answered before all have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from tests.support.processes.client import Client
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import at_rest, eventually


def at_once(
    senders: Sequence[tuple[Client, Request]],
    members: Sequence[Replica],
    turned_away: int | None = None,
    *,
    served_first: int = 0,
    quiet: float = 2.0,
) -> list[Response]:
    """Return the responses to these requests.

    The proxy rejects `turned_away` of them while the replicas hold their responses. Without a number, these are the
    rejections from the first arrival until nothing changes for `quiet` seconds.

    `served_first` are sent one after the other: if two arrive at the same instant, two threads of HAProxy may both take
    a replica's last slot.
    """
    for replica in members:
        replica.held = True
    sent: list[Future[Response]] = []

    def in_flight() -> int:
        return sum(replica.in_flight for replica in members)

    def refused() -> int:
        return sum(each.done() for each in sent)

    for number, (client, each) in enumerate(senders):
        sent.append(client.send(each.method, each.path, each.headers, each.body, timeout=100))
        if number < served_first:
            eventually(lambda: in_flight() == len(sent))
    if turned_away is None:
        eventually(lambda: in_flight() > 0)
        at_rest(lambda: refused() + in_flight(), quiet)
    else:
        eventually(lambda: refused() == turned_away)
    for replica in members:
        replica.held = False
    return [each.result(100) for each in sent]
