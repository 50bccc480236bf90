"""The model in a request, for routing where every replica must find the same model.

HAProxy and Envoy decide this according to the JSON grammar; this module predicts their decision.
"""

from __future__ import annotations

import json
import re

from lbctl.targets import query_model
from lbctl.targets.reading import MODEL_HEADER, Message

_SPACE = re.compile(r"[ \t\r\n]*")
_TYPE = re.compile(r'application/(?:[a-z0-9._-]+\+)?json *(?:; *(?:charset="?utf-?8"?)? *)?', re.IGNORECASE)


class _UnclearError(ValueError):
    """The body is ambiguous and can be interpreted in more than one way."""


def clear_model(message: Message) -> tuple[bool, str | None]:
    """Return whether the request names its model unambiguously, and the model in its body."""
    header_models = message.values(MODEL_HEADER)
    upgrades = [value.lower() for value in message.values("upgrade")]
    if len(header_models) > 1 or "websocket" in upgrades:
        return False, None
    if message.method == "GET" and query_model.may_name_model(message.query):
        return False, None
    if not message.body:
        return True, None
    types, codings = message.values("content-type"), message.values("content-encoding")
    is_json = not types or (len(types) == 1 and _TYPE.fullmatch(types[0]) is not None)
    if not is_json or [item.lower() for item in codings] not in ([], ["identity"]):
        return False, None
    try:
        model = _model(message.body.decode("latin-1"))
    except (ValueError, RecursionError):
        return False, None
    return not (model and header_models and header_models[0].encode() != model.encode()), model


def _model(text: str) -> str | None:
    """Return the model in a JSON object, or None.

    `text` has one character for each byte of the body. Raises ValueError if the text is ambiguous or not a JSON object.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    position, model = _skip(text, 0, "{"), None
    has_next = text[position : position + 1] != "}"
    while has_next:
        key, key_end = decoder.raw_decode(text, position)
        if not isinstance(key, str) or "\\" in text[position:key_end]:
            raise _UnclearError
        value_start = _skip(text, key_end, ":")
        value, value_end = decoder.raw_decode(text, value_start)
        if key.lower() == "model":
            if model is not None or key != "model" or not isinstance(value, str):
                raise _UnclearError
            model = text[value_start + 1 : value_end - 1].replace("\\/", "/")
        position = _SPACE.match(text, value_end).end()  # type: ignore[union-attr]  # it matches nothing, too
        has_next = text[position : position + 1] == ","
        position = _skip(text, position, ",") if has_next else position
    if model and "\\" in model:
        raise _UnclearError
    if _skip(text, position, "}") != len(text):
        raise _UnclearError
    return model.encode("latin-1").decode(errors="replace") if model else None


def _skip(text: str, position: int, character: str) -> int:
    """Return the position after `character` and the surrounding whitespace.

    Raises _UnclearError if the character is not there.
    """
    match = re.compile(rf"[ \t\r\n]*{re.escape(character)}[ \t\r\n]*").match(text, position)
    if match is None:
        raise _UnclearError
    return match.end()


def _refuse_constant(name: str) -> None:
    raise _UnclearError(name)
