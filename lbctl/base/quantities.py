"""The grammar for quantities in a fleet file, such as durations, sizes, percentages, rates and addresses.

Each `parse_…` function takes any value that YAML can produce. It returns the number in the unit that the code uses, or
raises `QuantityError` with a message for the user. The types are formatted in the same grammar.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fractions import Fraction

from lbctl.base.diagnostics import show
from lbctl.base.hosts import IPV4

_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DECIMAL_UNITS = frozenset({"k", "kb", "kib", "m", "mb", "mib", "g", "gb", "gib"})
_RATE_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_TOKEN_UNITS = {"M": 1_000_000, "k": 1_000, "": 1}
_MAX_TOKEN_DIGITS = 9
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([A-Za-z%/]*)", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_NUMERIC = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)
"""Matches the last label of a name if resolvers would treat it as part of an IPv4 address in any notation."""
_SOCKET = re.compile(r"/[A-Za-z0-9._/-]{1,103}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,2}", re.ASCII)


class QuantityError(ValueError):
    """A value is not a valid quantity for its key. `hint` describes a valid value."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Duration(int):
    """A duration in milliseconds."""

    def __str__(self) -> str:
        for unit in ("h", "m", "s"):
            if self and self % _DURATION_UNITS[unit] == 0:
                return f"{int(self) // _DURATION_UNITS[unit]}{unit}"
        return f"{int(self)}ms"


class Size(int):
    """A size in bytes."""

    def __str__(self) -> str:
        for unit in ("GiB", "MiB", "KiB"):
            if self and self % _SIZE_UNITS[unit] == 0:
                return f"{int(self) // _SIZE_UNITS[unit]}{unit}"
        return f"{int(self)}B"


class Percent(float):
    """A percentage from 0 to 100, or higher if the key allows it."""

    def __str__(self) -> str:
        return f"{float(self):g}%"


class Temperature(float):
    """A temperature in degrees Celsius."""

    def __str__(self) -> str:
        return f"{float(self):g}C"


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of requests per period."""

    requests: int
    """Number of requests per period."""
    per: int
    """Length of the period, in milliseconds."""


@dataclass(frozen=True, slots=True)
class TokenRate:
    """A number of tokens per period."""

    tokens: int
    """Number of tokens per period."""
    per: int
    """Length of the period, in milliseconds."""

    def __str__(self) -> str:
        scale, factor = next(item for item in _TOKEN_UNITS.items() if self.tokens % item[1] == 0)
        period = next((unit for unit, length in _RATE_UNITS.items() if length == self.per), f"{self.per}ms")
        return f"{self.tokens // factor}{scale}/{period}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A network address, with a `host` and `port`, or the `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    ip: bool = False
    """Whether the host is an address rather than a name."""


def parse_duration(value: object) -> Duration:
    """Parse a number with the unit ms, s, m or h, from 1ms to 720h, and return milliseconds. Raises QuantityError."""
    if value == "unlimited":
        raise QuantityError("'unlimited' is not a duration", "a limit is required: use a large value, for example 24h")
    example = "a number with ms, s, m or h, for example 250ms or 5s"
    number, unit = _split(value, "a duration", example)
    if unit not in _DURATION_UNITS:
        raise QuantityError(f"{show(value)} is not a duration", f"write {example}")
    millis = Fraction(number) * _DURATION_UNITS[unit]
    if millis != int(millis) or millis < 1 or millis > 30 * 24 * 3_600_000:
        raise QuantityError(f"{show(value)} is out of range", "use a value from 1ms to 720h, in whole milliseconds")
    return Duration(millis)


def parse_size(value: object) -> Size:
    """Parse a number with the unit B, KiB, MiB or GiB, and return bytes. Raises QuantityError."""
    example = "a number with B, KiB, MiB or GiB, for example 10MiB"
    number, unit = _split(value, "a size", example)
    if unit not in _SIZE_UNITS:
        binary = f"{unit[:1].upper()}iB"
        meant = f"{number}{binary}" if unit.lower() in _DECIMAL_UNITS else example
        raise QuantityError(f"{show(value)} is not a size", f"write {meant}")
    size = Fraction(number) * _SIZE_UNITS[unit]
    if size != int(size) or size < 1 or size > 1 << 50:
        raise QuantityError(f"{show(value)} is out of range", "use a whole number of bytes, at least 1B")
    return Size(size)


def parse_percent(value: object) -> Percent:
    """Parse a number followed by %. Raises QuantityError."""
    example = "a number with %, for example 12.5%"
    number, unit = _split(value, "a percentage", example)
    if unit != "%":
        raise QuantityError(f"{show(value)} is not a percentage", f"write {example}")
    return Percent(number)


def parse_temperature(value: object) -> Temperature:
    """Parse a number with the unit C, and return degrees Celsius. Raises QuantityError."""
    number, unit = _split(value, "a temperature", "degrees Celsius, for example 90C")
    if unit != "C":
        raise QuantityError(f"{show(value)} is not a temperature", "write degrees Celsius, for example 90C")
    return Temperature(number)


def parse_rate(value: object) -> Rate:
    """Parse an integer followed by /s, /m or /h. Raises QuantityError."""
    example = "a whole number with /s, /m or /h, for example 50/s"
    number, unit = _split(value, "a rate", example)
    if unit[:1] != "/" or unit[1:] not in _RATE_UNITS or "." in number or not 1 <= int(number) <= 10**9:
        raise QuantityError(f"{show(value)} is not a rate", f"write {example}")
    return Rate(int(number), _RATE_UNITS[unit[1:]])


def parse_token_rate(value: object) -> TokenRate:
    """Parse an integer with an optional k or M suffix, followed by /s, /m or /h. Raises QuantityError."""
    example = "a whole number of tokens with /s, /m or /h, for example 200k/m"
    number, unit = _split(value, "a rate of tokens", example)
    scale, slash, period = unit.partition("/")
    is_number = "." not in number and len(number) <= _MAX_TOKEN_DIGITS and int(number) > 0
    if not (is_number and slash and scale in _TOKEN_UNITS and period in _RATE_UNITS):
        raise QuantityError(f"{show(value)} is not a rate of tokens", f"write {example}")
    return TokenRate(int(number) * _TOKEN_UNITS[scale], _RATE_UNITS[period])


def parse_per_second(text: str) -> float:
    """Parse a rate such as `23.7/s` or `90/m`. A bare number is a rate per second. Raises QuantityError."""
    number, _, unit = text.partition("/")
    if not _DECIMAL.fullmatch(number) or not float(number):
        raise QuantityError(f"{show(text)} is not a rate", "use a number with /s, /m or /h, for example 50/s or 23.7/s")
    return float(number) * 1000 / parse_rate(f"1/{unit or 's'}").per


def parse_address(value: object) -> Endpoint:
    """Parse `host:port`, `ip:port`, `[v6]:port` or `unix:/path`. Raises QuantityError."""
    hint = 'use host:port, ip:port, "[v6]:port" or unix:/path'
    if not isinstance(value, str):
        raise QuantityError(f"{show(value)} is not an address", hint)
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            hint = "use a path that begins with /, for example unix:/run/replica.sock"
            raise QuantityError(f"{show(value)} is a unix socket without an absolute path", hint)
        if "/../" in f"{path}/":
            raise QuantityError(
                f"{show(value)} contains ..",
                "write the path without it, for example unix:/run/replica.sock",
            )
        if not _SOCKET.fullmatch(path):
            hint = "use letters, digits and . _ / -, at most 104 characters, for example unix:/run/replica.sock"
            raise QuantityError(f"{show(value)} is not the path of a unix socket", hint)
        return Endpoint(path=path)
    if "://" in value:
        raise QuantityError(f"{show(value.partition('://')[0] + '://…')} is a URL", f"write {_host_and_port(value)}")
    host, colon, port = value.rpartition(":")
    if colon and not host:
        raise QuantityError(f"{show(value)} is an address without a host", hint)
    if not colon or not host or (":" in host and not host.startswith("[")):
        raise QuantityError(f"{show(value)} is an address without a port", hint)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise QuantityError(f"{show(value)}: the port must be a number from 1 to 65535", hint)
    name, ip = parse_host(host)
    return Endpoint(host=name, port=int(port), ip=ip)


def _host_and_port(url: str) -> str:
    """Return a URL's host and port. The port defaults to the scheme's standard port."""
    scheme, _, rest = url.partition("://")
    place = re.split(r"[/?#]", rest.rpartition("@")[2])[0]
    return place if re.search(r":[0-9]+$", place) else f"{place}:{443 if scheme == 'https' else 80}"


def parse_host(text: str) -> tuple[str, bool]:
    """Parse a name or an address (IPv6 in brackets).

    Return the host in lower case and without brackets, and whether it is an address. Raises QuantityError.
    """
    if text.startswith("[") and text.endswith("]"):
        return _v6(text), True
    labels = text.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return _v4(text), True
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise QuantityError(f"{show(text)} is not a host name", "use letters, digits and - in labels separated by dots")
    return text.lower(), False


def parse_version(value: object) -> tuple[int, ...]:
    """Parse a version with two or three numbers, for example "1.22" or "1.25.1", into three numbers.

    Raises QuantityError.
    """
    if isinstance(value, float):
        raise QuantityError(f"{value!r} is a number, not a version", f'quote it: "{value}"')
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise QuantityError(f"{show(value)} is not a version", 'for example "1.22" or "1.25.1"')
    parts = [int(part) for part in value.split(".")]
    return (*parts, 0) if len(parts) == 2 else tuple(parts)


def _split(value: object, quantity: str, example: str) -> tuple[str, str]:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{show(value)} is not {quantity}", f"write {example}")
    if isinstance(value, int | float):
        raise QuantityError(f"{value!r} has no unit", f"write {example}")
    match = _NUMBER.fullmatch(value)
    if not match:
        raise QuantityError(f"{show(value)} is not {quantity}", f"write {example}")
    if not match.group(2):
        raise QuantityError(f"{show(value)} has no unit", f"write {example}")
    return match.group(1), match.group(2)


def _v4(text: str) -> str:
    if not IPV4.fullmatch(text):
        raise QuantityError(f"{show(text)} is not an IPv4 address", "use four numbers from 0 to 255")
    return text


def _v6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text[1:-1])
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        raise QuantityError(f"{show(text)} is not an IPv6 address", 'for example "[2001:db8::1]:8000"')
    return str(address)
