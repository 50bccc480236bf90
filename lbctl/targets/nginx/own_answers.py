"""The bodies of the answers that nginx gives by itself, as the templates write them."""

from __future__ import annotations

from lbctl.targets import client_networks, request_grammar
from lbctl.targets.error_body import NO_REPLICA, NO_ROUTE, UNKNOWN_MODEL, error_body, model_not_found
from lbctl.targets.token import Token


def _quoted(body: str) -> Token:
    return Token(f"'{body}'")


ERRORS = {
    name: _quoted(body)
    for name, body in {
        "ambiguous_path": error_body(request_grammar.TARGET_MESSAGE, "bad_request"),
        "body_too_large": error_body("the body is too large", "too_large"),
        "broke_off": error_body("the replica broke off its answer", "bad_gateway"),
        "client_certificate": error_body("this needs a valid client certificate", "bad_request"),
        "complex_path": error_body("the path is too complex to match", "bad_request"),
        "headers_too_large": error_body("the headers are too large", "too_large"),
        "malformed": error_body("the request is not valid HTTP", "bad_request"),
        "malformed_host": error_body(request_grammar.HOST_MESSAGE, "bad_request"),
        "no_credentials": error_body("no valid credentials", "unauthorized"),
        "no_replica": NO_REPLICA,
        "no_model": model_not_found(
            "the request names no model: here it is read from the header x-model, not from the body"
        ),
        "no_route": NO_ROUTE,
        "no_upgrade": error_body("a WebSocket cannot be opened here", "bad_request"),
        "not_allowed": error_body("this is not allowed here", "forbidden"),
        "refused_address": client_networks.BODY,
        "several_addresses": error_body("the client has several addresses", "bad_request"),
        "unknown_model": UNKNOWN_MODEL,
        "too_many_requests": error_body("too many requests", "rate_limited"),
        "went_silent": error_body("the replica went silent", "timeout"),
    }.items()
}
"""Name → body, quoted."""
