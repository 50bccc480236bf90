"""Waiting requests whose proxy sends a second query for the response.

The first query of an Envoy is answered immediately. If the request has to wait, it already has its place in the queue,
and its ticket keeps a response that is ready before the second query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.picker.messages import PickerAnswer

CLAIM_TIMEOUT = 10.0
"""Seconds after which a request leaves the queue if its proxy has not sent the second query."""


@dataclass(slots=True)
class Ticket:
    """One waiting request."""

    issued: float
    """Time of the first query."""
    answer: PickerAnswer | None = None
    """The response, if it is ready before the second query."""
    send: Callable[[PickerAnswer], None] | None = None
    """Sends the response to the second query; None before that query."""

    def respond(self, answer: PickerAnswer) -> None:
        """Send the response, or keep it for the second query."""
        if self.send is None:
            self.answer = answer
        else:
            self.send(answer)


class Tickets:
    """The tickets without a second query so far, by the ID of the request."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}

    def add(self, request: str, ticket: Ticket) -> None:
        """Keep the newest ticket until the second query."""
        self._tickets[request] = ticket

    def claim(self, request: str) -> Ticket | None:
        """Remove a request's ticket and return it; None if it is unknown."""
        return self._tickets.pop(request, None)

    def expired(self, now: float) -> Iterator[str]:
        """Remove the tickets whose second query is missing, and yield their requests."""
        while self._tickets:
            request, ticket = next(iter(self._tickets.items()))
            if now - ticket.issued < CLAIM_TIMEOUT:
                return
            del self._tickets[request]
            yield request
