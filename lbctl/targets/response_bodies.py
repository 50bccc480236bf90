"""The JSON bodies of a proxy's own responses: errors and the list of models.

An error has the fields that OpenAI's SDKs read: `message`, `type`, `param` and `code`. `code` repeats `type`, because
clients check either of them. For an unknown model, however, `code` has the value from OpenAI's API.

The list contains the models that a listener's clients can use, in the format of the OpenAI API. A name is listed if
requests with it reach replicas: the names that routes match, and the model and adapters of each pool that a route uses.
A route's pattern lists the matching names of its pools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import model_matches
from lbctl.ir.routes import Forward, Respond
from lbctl.ir.snapshot import View


def error_body(message: str, kind: str) -> str:
    """Return the body as a single line of JSON. The arguments must be lbctl's own text."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}, separators=(",", ":"))


NO_REPLICA = error_body("no replica available", "unavailable")
OVERLOADED = error_body("all replicas are busy", "overloaded")
"""The body for a request that the queue of its pool rejects, although its client exceeds no limit."""


def model_not_found(message: str) -> str:
    """Return the body for a request that would match a route if it named another model."""
    error = {"message": message, "type": "not_found", "param": "model", "code": "model_not_found"}
    return json.dumps({"error": error}, separators=(",", ":"))


NO_ROUTE = error_body("no route", "not_found")
NO_MODEL = model_not_found("the request names no model: send it as `model` in a JSON body, or in the header x-model")
UNKNOWN_MODEL = model_not_found("no route accepts this model")


def body_of(action: Respond, listener: Listener, view: View) -> str:
    """Return the body of the proxy's own response on this listener."""
    return _models(listener, view) if action.lists_models else action.body


def bodies(view: View) -> Iterator[str]:
    """Yield the bodies of all of the proxy's own responses."""
    for listener in view.listeners:
        actions = (view.routes[name].action for name in sorted({rule.route for rule in listener.rules}))
        yield from (body_of(action, listener, view) for action in actions if isinstance(action, Respond))


def _models(listener: Listener, view: View) -> str:
    names = sorted({name for rule in listener.rules for name in _names(rule, view)})
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "lbctl"} for name in names]
    return json.dumps({"object": "list", "data": data}, ensure_ascii=False, separators=(",", ":"))


def _names(rule: Rule, view: View) -> Iterator[str]:
    action = view.routes[rule.route].action
    if not isinstance(action, Forward):
        return
    yield from (name for name in rule.models if not name.endswith("*"))
    for pool in action.pools:
        model = view.pools[pool].model
        for name in (model.name, *model.adapters) if model is not None else ():
            if not rule.models or any(model_matches(pattern, name) for pattern in rule.models):
                yield name
