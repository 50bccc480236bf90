"""Waiting requests for which the proxy sends a second query to get the response.

An Envoy's first query is answered immediately. If the request has to wait, it already has a place in the queue, and its
ticket stores a response that is ready before the second query arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.picker.messages import PickerAnswer

CLAIM_TIMEOUT = 10.0
"""Seconds after which a request is removed from the queue if its proxy has not sent the second query."""


@dataclass(slots=True)
class Ticket:
    """One waiting request."""

    issued: float
    """Time of the first query."""
    answer: PickerAnswer | None = None
    """The response, if it is ready before the second query arrives."""
    send: Callable[[PickerAnswer], None] | None = None
    """Sends the response to the second query; None until that query arrives."""

    def respond(self, answer: PickerAnswer) -> None:
        """Send the response, or store it until the second query arrives."""
        if self.send is None:
            self.answer = answer
        else:
            self.send(answer)


class Tickets:
    """Tickets for which no second query has arrived yet, by request ID."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}

    def add(self, request: str, ticket: Ticket) -> None:
        """Store the newest ticket until the second query arrives."""
        self._tickets[request] = ticket

    def claim(self, request: str) -> Ticket | None:
        """Remove and return a request's ticket; return None if it is unknown."""
        return self._tickets.pop(request, None)

    def expired(self, now: float) -> Iterator[str]:
        """Remove the tickets whose second query is overdue, and yield their requests."""
        while self._tickets:
            request, ticket = next(iter(self._tickets.items()))
            if now - ticket.issued < CLAIM_TIMEOUT:
                return
            del self._tickets[request]
            yield request
