"""Which model a request names where every replica must read the same one: what HAProxy and Envoy do by the grammar of
JSON, said in advance."""

from __future__ import annotations

import json
import re

from lbctl.targets.reading import MODEL_HEADER, Message

_SPACE = re.compile(r"[ \t\r\n]*")
_TYPE = re.compile(r'application/(?:[a-z0-9._-]+\+)?json *(?:; *(?:charset="?utf-?8"?)? *)?', re.IGNORECASE)


class _UnclearError(ValueError):
    """This body can be read in more than one way."""


def clear_model(message: Message) -> tuple[bool, str | None]:
    """Whether the request is clear about its model, and the one that its body names."""
    named = message.values(MODEL_HEADER)
    upgrades = [value.lower() for value in message.values("upgrade")]
    if len(named) > 1 or "websocket" in upgrades:
        return False, None
    if not message.body:
        return True, None
    types, codings = message.values("content-type"), message.values("content-encoding")
    typed = not types or (len(types) == 1 and _TYPE.fullmatch(types[0]) is not None)
    if not typed or [item.lower() for item in codings] not in ([], ["identity"]):
        return False, None
    try:
        model = _model(message.body.decode("latin-1"))
    except (ValueError, RecursionError):
        return False, None
    return not (model and named and named[0].encode() != model.encode()), model


def _model(text: str) -> str | None:
    """Of a whole JSON object, one character a byte; None where it names none. ValueError where it is unclear."""
    decoder = json.JSONDecoder(parse_constant=_refused)
    at, found = _past(text, 0, "{"), None
    more = text[at : at + 1] != "}"
    while more:
        key, stop = decoder.raw_decode(text, at)
        if not isinstance(key, str) or "\\" in text[at:stop]:
            raise _UnclearError
        start = _past(text, stop, ":")
        value, end = decoder.raw_decode(text, start)
        if key.lower() == "model":
            if found is not None or key != "model" or not isinstance(value, str):
                raise _UnclearError
            found = text[start + 1 : end - 1].replace("\\/", "/")
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing, too
        more = text[at : at + 1] == ","
        at = _past(text, at, ",") if more else at
    if found and "\\" in found:
        raise _UnclearError
    if _past(text, at, "}") != len(text):
        raise _UnclearError
    return found.encode("latin-1").decode(errors="replace") if found else None


def _past(text: str, at: int, character: str) -> int:
    """Behind `character` and the space around it."""
    found = re.compile(rf"[ \t\r\n]*{re.escape(character)}[ \t\r\n]*").match(text, at)
    if found is None:
        raise _UnclearError
    return found.end()


def _refused(name: str) -> None:
    raise _UnclearError(name)
