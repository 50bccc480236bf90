"""Parts of requests and responses: headers, cookies, paths, hosts, bodies."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WithJsonSchema

from lbctl.base.diagnostics import did_you_mean, quoting_hint, show
from lbctl.ir.header_text import VARIABLES, unknown_words
from lbctl.model.regex import check_regex
from lbctl.model.section import refuse
from lbctl.model.values.grammar import schema, text

HeaderName = Annotated[
    str,
    *text(
        r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}",
        "a header name",
        "letters, digits, - and _; must start with a letter or digit",
        lower=True,
    ),
]
CookieName = Annotated[
    str,
    *text(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", "a cookie name", "letters, digits, - and _; must not start with -"),
]
QueryName = Annotated[str, *text(r"[A-Za-z0-9_]{1,64}", "a query parameter name", "letters, digits and _")]
JsonPath = Annotated[
    str,
    *text(
        r"\$(\.[A-Za-z_][A-Za-z0-9_]{0,63}){1,8}",
        "a JSON body field",
        "for example $.user or $.metadata.session",
    ),
]
_HEADER_VALUE = r"[!-~]([ -~]{0,1022}[!-~])?"
HEADER_VALUE = f"^(?:{_HEADER_VALUE})$"
"""Pattern for header values, in JSON Schema."""
HeaderValue = Annotated[
    str,
    *text(
        _HEADER_VALUE, "a header value", "printable ASCII without leading or trailing spaces, at most 1024 characters"
    ),
]


def is_cookie_value(text: str) -> bool:
    """Return whether a cookie can contain the text: no space, quote, comma, semicolon or backslash."""
    return re.fullmatch(r"[!#-+\--:<-\[\]-~]{1,256}", text) is not None


def unique_headers(value: object) -> object:
    """Reject header names that differ only in case."""
    first: dict[str, str] = {}
    for name in value if isinstance(value, dict) else ():
        if first.setdefault(str(name).lower(), name) != name:
            raise refuse(
                "LB008", f"{show(name)} occurs twice, also as {show(first[name.lower()])}", "keep one", (name,)
            )
    return value


HeaderMap = Annotated[dict[HeaderName, HeaderValue], BeforeValidator(unique_headers)]
Method = Annotated[str, *text(r"[A-Z]{1,20}", "an HTTP method", "in upper case, for example GET or POST")]
HostPattern = Annotated[
    str,
    *text(
        r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,30}",
        "a host pattern",
        'a host name, or "*." and a host name; without a port',
        lower=True,
    ),
]
Host = Annotated[
    str,
    *text(
        r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,30}(:[0-9]{1,5})?",
        "a host",
        "a host name, with or without a port",
        lower=True,
    ),
]
_SEGMENTS = r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]+/)*[A-Za-z0-9._~!$&'()*+,;=:@-]*"


def _url_path(pattern: str, noun: str, hint: str) -> Any:
    compiled = re.compile(pattern, re.ASCII)

    def validate(value: object) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value) or len(value) > 1024:
            raise refuse("LB013", f"{show(value)} is not {noun}", hint)
        if any(part in {".", ".."} for part in value.split("?")[0].split("/")):
            raise refuse("LB013", f"{show(value)} contains a . or .. segment", "write the path that clients send")
        return value

    return (PlainValidator(validate), schema(pattern, f"{noun}: {hint}"))


UrlPath = Annotated[str, *_url_path(_SEGMENTS, "a path", "starts with /, without empty segments, % or spaces")]
CheckPath = Annotated[
    str,
    *_url_path(
        rf"{_SEGMENTS}(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?",
        "a path with an optional query",
        "starts with /; a query may follow",
    ),
]


def _regex(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("LB013", f"{show(value)} is not a regular expression", quoting_hint(value))
    problem = check_regex(value)
    if problem:
        raise refuse("LB013", f"{show(value)}: {problem}", "use RE2 syntax; the expression must match the whole path")
    return value


Regex = Annotated[
    str,
    PlainValidator(_regex),
    schema(r"[!-~]{1,1024}", "a regular expression: in RE2 syntax; it must match the whole path"),
]


_MAX_BODY_BYTES = 12_000
"""Maximum size of `respond.body`, which is enough for a list of about a hundred models. A larger body needs larger
HAProxy buffers."""


def _body(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("LB013", f"{show(value)} is not a string", quoting_hint(value))
    if len(value.encode()) > _MAX_BODY_BYTES or not value.replace("\n", "").replace("\t", "").isprintable():
        raise refuse(
            "LB013", f"{show(value)} cannot be a body", "write printable text, tabs and newlines, at most 12,000 bytes"
        )
    return value


Body = Annotated[
    str,
    PlainValidator(_body),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": _MAX_BODY_BYTES,
            "grammar": "text: printable, with tabs and newlines; at most 12,000 bytes",
        }
    ),
]
Text = Annotated[str, *text(r"[ -~]{1,1024}", "plain text", "printable ASCII, at most 1024 characters")]
TextOrNone = Annotated[str, *text(r"[ -~]{0,1024}", "plain text", "printable ASCII, at most 1024 characters")]

_WRITTEN_VARIABLES = " ".join(f"{{{name}}}" for name in VARIABLES)


def _known_variables(text: str) -> str:
    for word in unknown_words(text):
        hint = did_you_mean(word, [f"{{{name}}}" for name in VARIABLES])
        raise refuse(
            "LB140", f"{show(word)} is not a variable", f"{hint + '; ' if hint else ''}one of {_WRITTEN_VARIABLES}"
        )
    return text


HeaderText = Annotated[
    HeaderValue,
    AfterValidator(_known_variables),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": HEADER_VALUE,
            "grammar": f"a header value with variables: printable ASCII; the variables are {_WRITTEN_VARIABLES}",
        }
    ),
]
HeaderTexts = Annotated[dict[HeaderName, HeaderText], BeforeValidator(unique_headers)]
