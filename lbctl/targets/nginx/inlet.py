"""What a listener provides to the requests that come in by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inlet:
    """What a listener provides to its requests: the names of its variables, and whether some peers are trusted."""

    listener: str
    number: int
    request_id_header: str
    """The header that carries the request's id."""
    request_id: str
    """The variable with the request's id."""
    forwarded_for: str
    """The variable with the value of X-Forwarded-For."""
    forwarded_proto: str
    """The variable with the value of X-Forwarded-Proto."""
    claim_headers: tuple[str, ...]
    """The headers that only a trusted peer may send, except x-forwarded-for and x-forwarded-proto."""
    address_headers: tuple[str, ...]
    """The headers that carry the client's address to replicas."""
    trusted: str | None
    """The variable that is 1 for a trusted peer; None if the listener trusts no peer."""
