"""The types of values: each has its own grammar, so that no string of the user is free text unless it must be.

Characters with a meaning in a proxy's grammar (quotes, braces, `$`, `%`, control characters) are outside most of these
grammars; the few free texts (`HeaderValue`, `PathPrefix`, `Regex`, `Body`, `Text`) are quoted by the targets.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from lbctl.base import quantities as q
from lbctl.base.diagnostics import quoting_hint, show
from lbctl.model.regex import check_regex
from lbctl.model.section import refuse

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII)


def _quantity(parse: Callable[[object], Any]) -> PlainValidator:
    def validate(value: object) -> Any:
        try:
            return parse(value)
        except q.QuantityError as error:
            raise refuse("LB013", str(error), error.hint) from None

    return PlainValidator(validate)


def _schema(pattern: str, grammar: str) -> WithJsonSchema:
    """A JSON Schema with the pattern; `grammar` describes it, and is shown beside the meaning of the key."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$", "grammar": grammar})


def _text(pattern: str, noun: str, hint: str, lower: bool = False) -> Any:
    """A string that matches `pattern` completely."""
    compiled = re.compile(pattern, re.ASCII)

    def validate(value: object) -> str:
        if not isinstance(value, str):
            raise refuse("LB013", f"{show(value)} is not a string", quoting_hint(value))
        if not compiled.fullmatch(value):
            raise refuse("LB013", f"{show(value)} is not {noun}", hint)
        return value.lower() if lower else value

    return (PlainValidator(validate), _schema(pattern, f"{noun}: {hint}"))


_DURATION = r"[0-9]{1,15}(\.[0-9]{1,6})?(ms|s|m|h)"
_PERCENT = r"(0{0,12}100(\.0{1,6})?|0{0,13}[0-9]{1,2}(\.[0-9]{1,6})?)%"
_WIDE_PERCENT = r"(0{0,10}10000(\.0{1,6})?|0{0,11}[0-9]{1,4}(\.[0-9]{1,6})?)%"


def _bounded(parse: Callable[[object], q.Percent], low: float, high: float, above: bool = False) -> PlainValidator:
    """Accept a percentage in the bounds; with `above`, `low` itself is excluded."""

    def check(value: object) -> q.Percent:
        number = parse(value)
        if not low <= number <= high or (above and number == low):
            raise q.QuantityError(f"{value} is out of range", f"{'above' if above else 'from'} {low:g}% to {high:g}%")
        return number

    return _quantity(check)


def _unlimited(value: object) -> q.Duration | None:
    return None if value == "unlimited" else q.parse_duration(value)


Duration = Annotated[q.Duration, _quantity(q.parse_duration), _schema(_DURATION, "a duration: as 250ms, 5s, 10m, 1h")]
DurationOrUnlimited = Annotated[
    q.Duration | None, _quantity(_unlimited), _schema(f"{_DURATION}|unlimited", "a duration, or unlimited")
]
Size = Annotated[
    q.Size, _quantity(q.parse_size), _schema(r"[0-9]{1,15}(\.[0-9]{1,6})?(B|KiB|MiB|GiB)", "a size: as 64KiB, 10MiB")
]
_ABOVE_ZERO = r"(?!0+(\.0+)?%)"
Percent = Annotated[q.Percent, _bounded(q.parse_percent, 0, 100), _schema(_PERCENT, "a percent: from 0% to 100%")]
PositivePercent = Annotated[
    q.Percent,
    _bounded(q.parse_percent, 0, 100, above=True),
    _schema(_ABOVE_ZERO + _PERCENT, "a percent: above 0%, to 100%"),
]
PositiveWidePercent = Annotated[
    q.Percent,
    _bounded(q.parse_percent, 0, 10_000, above=True),
    _schema(_ABOVE_ZERO + _WIDE_PERCENT, "any percent above 0%: over 100% too"),
]
Temperature = Annotated[
    q.Temperature, _quantity(q.parse_temperature), _schema(r"[0-9]{1,15}(\.[0-9]{1,6})?C", "degrees Celsius: as 90C")
]
Rate = Annotated[
    q.Rate,
    _quantity(q.parse_rate),
    _schema(r"(?!0+/)(0?[0-9]{1,9}|1000000000)/(s|m|h)", "a rate: as 50/s, 600/m, 10000/h"),
]
_PORT = r"(?!0+$)([0-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_BIND = rf"unix:/.+|\[[0-9A-Fa-f:.]+\]:{_PORT}|[0-9]{{1,3}}(\.[0-9]{{1,3}}){{3}}:{_PORT}"
_ADDRESS = rf"unix:/.+|\[[0-9A-Fa-f:.]+\]:{_PORT}|[^:\[\]]+:{_PORT}"
Address = Annotated[
    q.Endpoint,
    _quantity(q.parse_address),
    _schema(_ADDRESS, 'an address: host:port, ip:port, "[v6]:port" or unix:/path'),
]


def _bind(value: object) -> q.Endpoint:
    address = q.parse_address(value)
    if not address.path and not address.ip:
        raise q.QuantityError(f"{show(value)} is a name", "listen on an address, as 0.0.0.0:8443, or unix:/path")
    return address


Bind = Annotated[q.Endpoint, _quantity(_bind), _schema(_BIND, 'an own address: ip:port, "[v6]:port" or unix:/path')]
Version = Annotated[
    tuple[int, ...], _quantity(q.parse_version), _schema(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", 'a version: as "1.22"')
]

Name = Annotated[
    str,
    *_text(
        NAME.pattern, "a name", "lower-case letters, digits and . _ -, at most 63; it begins with a letter or digit"
    ),
]
Place = Annotated[
    str, *_text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of a region or zone", "letters, digits, . _ -")
]
Gpu = Annotated[
    str, *_text(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,62}", "a GPU type", "as H100-SXM; `lbctl gpus` lists them")
]
ModelName = Annotated[
    str, *_text(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}", "a model's name", "letters, digits and . _ : / @ + -")
]
ModelPattern = Annotated[
    str,
    *_text(
        r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}\*?",
        "a pattern of model names",
        "letters, digits and . _ : / @ + -, a * at the end",
    ),
]
Label = Annotated[str, *_text(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", "a label", "letters, digits and . _ / -")]
LabelValue = Annotated[
    str, *_text(r"[A-Za-z0-9._/:@+ -]{0,253}", "a label's value", "letters, digits, spaces and . _ / : @ + -")
]
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
PORT_NAME = re.compile(r"(?!.*--)(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", re.ASCII)
"""The name of a port in Kubernetes."""
KubernetesName = Annotated[
    str,
    *_text(_DNS_LABEL, "a name in Kubernetes", "lower-case letters, digits and -, at most 63; no - at its ends"),
]
KubernetesLabel = Annotated[
    str,
    *_text(
        rf"({_DNS_LABEL}(\.{_DNS_LABEL}){{0,30}}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?",
        "the name of a label in Kubernetes",
        "as nvidia.com/gpu.product",
    ),
]
KubernetesContext = Annotated[
    str, *_text(r"[A-Za-z0-9._:/@+=,~-]{1,253}", "the name of a context", "letters, digits and . _ : / @ + = , ~ -")
]
Device = Annotated[
    str,
    *_text(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}(:[0-9]{1,3})?",
        "a device",
        'an index "0", a UUID GPU-…, or "0:3" for the MIG slice with GPU instance 3 of GPU 0',
    ),
]
HeaderName = Annotated[
    str,
    *_text(
        r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "a header's name", "letters, digits, - and _, no - or _ first", lower=True
    ),
]
CookieName = Annotated[
    str, *_text(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", "a cookie's name", "letters, digits, - and _, no - first")
]
QueryName = Annotated[str, *_text(r"[A-Za-z0-9_]{1,64}", "a query parameter", "letters, digits and _")]
JsonPath = Annotated[
    str,
    *_text(r"\$(\.[A-Za-z_][A-Za-z0-9_]{0,63}){1,8}", "a path into the JSON body", "as $.user or $.metadata.session"),
]
_HEADER_VALUE = r"[!-~]([ -~]{0,1022}[!-~])?"
HEADER_VALUE = f"^(?:{_HEADER_VALUE})$"
"""A pattern of header values, for JSON Schema."""
HeaderValue = Annotated[
    str, *_text(_HEADER_VALUE, "a header's value", "printable ASCII without spaces at its ends, at most 1024")
]


def is_cookie_value(text: str) -> bool:
    """Whether a cookie can hold the text: no space, quote, comma, semicolon or backslash."""
    return re.fullmatch(r"[!#-+\--:<-\[\]-~]{1,256}", text) is not None


def unique_headers(value: object) -> object:
    """Refuse header names that differ only in case."""
    first: dict[str, str] = {}
    for name in value if isinstance(value, dict) else ():
        if first.setdefault(str(name).lower(), name) != name:
            raise refuse("LB008", f"{show(name)} occurs twice, as {show(first[name.lower()])} too", "keep one", (name,))
    return value


HeaderMap = Annotated[dict[HeaderName, HeaderValue], BeforeValidator(unique_headers)]
Method = Annotated[str, *_text(r"[A-Z]{1,20}", "an HTTP method", "as GET or POST, in capitals")]
HostPattern = Annotated[
    str,
    *_text(
        r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,30}",
        "a pattern of hosts",
        'a name, or "*." before one; no port',
        lower=True,
    ),
]
Host = Annotated[
    str,
    *_text(
        r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,30}(:[0-9]{1,5})?",
        "a host",
        "a name, with or without a port",
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
            raise refuse("LB013", f"{show(value)} holds a . or .. segment", "write the path that clients send")
        return value

    return (PlainValidator(validate), _schema(pattern, f"{noun}: {hint}"))


UrlPath = Annotated[str, *_url_path(_SEGMENTS, "a path", "it starts with /, has no empty segments, no % and no spaces")]
CheckPath = Annotated[
    str,
    *_url_path(
        rf"{_SEGMENTS}(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?",
        "a path, perhaps with a query",
        "it starts with /, a query may follow",
    ),
]


def _regex(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("LB013", f"{show(value)} is not a regular expression", quoting_hint(value))
    problem = check_regex(value)
    if problem:
        raise refuse("LB013", f"{show(value)}: {problem}", "RE2 syntax; it must match the whole path")
    return value


Regex = Annotated[
    str, PlainValidator(_regex), _schema(r"[!-~]{1,1024}", "a regular expression: RE2, for the whole path")
]
Body = Annotated[
    str,
    PlainValidator(lambda value: _body(value)),
    WithJsonSchema(
        {"type": "string", "maxLength": 2000, "grammar": "text: at most 2,000 characters, with tabs and newlines"}
    ),
]
Text = Annotated[str, *_text(r"[ -~]{1,1024}", "plain text", "printable ASCII, at most 1024 characters")]
TextOrNone = Annotated[str, *_text(r"[ -~]{0,1024}", "plain text", "printable ASCII, at most 1024 characters")]
Account = Annotated[
    str, *_text(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "a user or group of the system", "letters, digits and _ . -")
]
Word = Annotated[str, *_text(r"[!-~]{1,512}", "a word", "printable ASCII without spaces, at most 512 characters")]
Issuer = Annotated[
    str,
    *_text(r"[A-Za-z0-9._~:/?#\[\]@!&()*+,;=-]{1,512}", "an issuer or audience", "a URL or a word of URL characters"),
]
Realm = Annotated[
    str,
    *_text(
        r"[A-Za-z0-9](?:[A-Za-z0-9 ._:/@+-]{0,62}[A-Za-z0-9])?", "a realm", "letters, digits, spaces, . _ : / @ + -"
    ),
]
Claim = Annotated[str, *_text(r"[A-Za-z0-9_]{1,64}", "a claim", "letters, digits and _")]
_SERVICE = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}"
Service = Annotated[str, *_text(_SERVICE, "a service's name", "letters, digits and _ . / -")]
ServiceOrNone = Annotated[str, *_text(f"({_SERVICE})?", "a service's name", "letters, digits and _ . / -")]
NodePattern = Annotated[
    str, *_text(r"[A-Za-z0-9._*?/:-]{1,253}", "a pattern of node ids", "letters, digits, . _ / : - and * ?")
]
LabelMatch = Annotated[
    str, *_text(r"[ -~]{0,253}", "a metric label's value", "printable ASCII, at most 253 characters")
]
Metric = Annotated[str, *_text(r"[A-Za-z_:][A-Za-z0-9_:]{0,199}", "a metric's name", "letters, digits, _ and :")]


def _body(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("LB013", f"{show(value)} is not a string", quoting_hint(value))
    if len(value.encode()) > 2000 or not value.replace("\n", "").replace("\t", "").isprintable():
        raise refuse(
            "LB013", f"{show(value)} cannot be a body", "printable text with tabs and newlines, at most 2,000 bytes"
        )
    return value


_FILE = r"[A-Za-z0-9._/][A-Za-z0-9._/@+=:,~ -]{0,1023}"
_FILE_WHOLE = rf"(?!(.*/)?\.\.(/|$))(?!.*/-)(?!(.*/)? )(?!.* (/|$))(?!.*/$)(?![^/]*:){_FILE}"
"""`_FILE` with the conditions that `_file` checks on its parts."""


def _file(value: object) -> str:
    hint = "letters, digits, spaces and . _ / @ + = : , ~ -; not - at the start of a name"
    if not isinstance(value, str) or not re.fullmatch(_FILE, value):
        raise refuse("LB013", f"{show(value)} is not the path of a file", hint)
    parts = value.split("/")
    if ":" in parts[0]:
        raise refuse("LB013", f"{show(value)} is not the path of a file", "a colon only behind a /; no scheme as data:")
    if any(part.startswith("-") or part != part.strip() for part in parts) or value.endswith("/"):
        raise refuse("LB013", f"{show(value)} is not the path of a file", hint)
    if ".." in parts:
        raise refuse("LB502", f"{show(value)} climbs out of its directory", "keep the file below the fleet's directory")
    return value


FilePath = Annotated[
    str,
    PlainValidator(_file),
    _schema(
        _FILE_WHOLE, "a file: its path; a relative one from the file that names it, and below the fleet's directory"
    ),
]


_IPV4 = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
_NETWORK = rf"({_IPV4}|([0-9A-Fa-f]{{0,4}}:){{2,8}}([0-9A-Fa-f]{{0,4}}|{_IPV4}))(/[0-9]{{1,3}})?"


def _network(value: object) -> str:
    try:
        if isinstance(value, str) and re.fullmatch(_NETWORK, value):
            return str(ipaddress.ip_network(value, strict=True))
    except ValueError:
        pass
    raise refuse("LB013", f"{show(value)} is not a network", "as 10.0.0.0/8 or 2001:db8::/32")


Network = Annotated[str, PlainValidator(_network), _schema(_NETWORK, "a network: as 10.0.0.0/8")]
_URL_CHARACTER = r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%{}-]"
_PLACEHOLDER = re.compile(r"\{(address|host|port|name|device)\}")


def _url(value: object) -> str:
    hint = "as http://{host}:{port}/metrics"
    if not isinstance(value, str) or not re.fullmatch(rf"{_URL_CHARACTER}{{1,1024}}", value):
        raise refuse("LB013", f"{show(value)} is not a URL", hint)
    filled = _PLACEHOLDER.sub("1", value)
    if "{" in filled or "}" in filled:
        raise refuse(
            "LB013", f"{show(value)} holds an unknown word in braces", "{address} {host} {port} {name} {device}"
        )
    try:
        parts = urlsplit(filled)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise refuse("LB013", f"{show(value)} is not a URL", hint) from None
    if parts.scheme not in {"http", "https"} or not host:
        raise refuse("LB013", f"{show(value)} is not an http or https URL", hint)
    if parts.username is not None or parts.password is not None:
        raise refuse("LB504", "a URL must not hold a user or password", hint)
    return value


Url = Annotated[
    str,
    PlainValidator(_url),
    _schema(rf"https?://{_URL_CHARACTER}{{1,1000}}", "a URL: http or https, without a password"),
]

_CHECK_URL = rf"http://({_IPV4}|\[[0-9A-Fa-f:.]+\])(:{_PORT})?(/[A-Za-z0-9._~/-]*)?"


def _check_url(value: object) -> str:
    hint = "an IP address, as http://127.0.0.1:9191/check"
    if not isinstance(value, str) or len(value) > 1024 or not re.fullmatch(_CHECK_URL, value):
        raise refuse("LB144", f"{show(value)} is not the URL of a service that proxies can ask", hint)
    try:
        ipaddress.ip_address(urlsplit(value).hostname or "")
    except ValueError:
        raise refuse("LB144", f"{show(value)} is not the URL of a service that proxies can ask", hint) from None
    return value


CheckUrl = Annotated[str, PlainValidator(_check_url), _schema(_CHECK_URL, "a URL: http, with an IP address")]
_STORE_HOST = r"[A-Za-z0-9._~:\[\],-]{1,512}"
_STORE = (
    rf"rediss?://{_STORE_HOST}(/[0-9]{{1,4}})?|etcds?://{_STORE_HOST}/?"
    r"|kubernetes://[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}"
)


def _store_url(value: object) -> str:
    hint = "as redis://store.example:6379/0, etcds://etcd.example:2379 or kubernetes://NAMESPACE/NAME"
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._~:/\[\]@,-]{1,1024}", value):
        raise refuse("LB013", f"{show(value)} is not the URL of a store", hint)
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise refuse("LB013", f"{show(value)} is not the URL of a store", hint) from None
    if parts.password is not None or parts.username is not None:
        raise refuse("LB504", "a URL must not hold a user or password", "`password: {file: …}` beside it")
    if not re.fullmatch(_STORE, value) or not host:
        raise refuse("LB013", f"{show(value)} is not the URL of a store", hint)
    return value


StoreUrl = Annotated[
    str,
    PlainValidator(_store_url),
    _schema(f"({_STORE})", "the URL of a store, without a password"),
]
KeyPrefix = Annotated[str, *_text(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", "a prefix of keys", "as lbctl:prod")]


def _lease(value: object) -> q.Duration:
    duration = q.parse_duration(value)
    if not 2_000 <= duration <= 60_000:
        raise q.QuantityError(f"{value} is out of range", "from 2s to 60s")
    return duration


Lease = Annotated[q.Duration, _quantity(_lease), _schema(_DURATION, "a duration from 2s to 60s")]

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Status = Annotated[int, Field(ge=100, le=599)]


def _capacity(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("LB201", f"{show(value)} is not a weight", "a positive number, as 5 or 2.5")
    if value == 0:
        raise refuse("LB202", "a weight of 0 is not allowed", "write `drain: true` to take the replica out")
    if not 0 < value <= 1_000_000 or round(value, 6) != value:
        raise refuse("LB201", f"{show(value)} is not a weight", "a positive number up to 1000000, six decimals at most")
    return float(value)


Capacity = Annotated[
    float, PlainValidator(_capacity), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000})
]


def _multiple(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
        raise refuse("LB013", f"{show(value)} is not a positive number", "as 1.25")
    return float(value)


PositiveNumber = Annotated[
    float, PlainValidator(_multiple), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1000})
]
