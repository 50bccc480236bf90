"""A request for an explanation: its headers and body, from a session's key and a body that people give."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lbctl.ir.pools import PickPolicy


def request_of(policy: PickPolicy, session: str | None, body: bytes) -> tuple[Mapping[str, list[str]], bytes]:
    """Return the headers and the body of a request whose first session key has this value.

    A key of the body is put into an empty body; one that is given is left as it is. Raises ValueError where the policy
    has no session keys.
    """
    if session is None:
        return {}, body
    if not policy.session:
        raise ValueError("it has no session keys")
    key = policy.session[0]
    if key.header:
        return {key.header: [session]}, body
    return {}, body or json.dumps(_nested(key.body, session)).encode()


def _nested(path: str, value: str) -> object:
    nested: object = value
    for step in reversed(path.split(".")[1:]):
        nested = {step: nested}
    return nested
