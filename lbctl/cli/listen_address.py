"""Parses options for listen addresses."""

from __future__ import annotations

import click

from lbctl.base.quantities import QuantityError, parse_address
from lbctl.ir.address import Address

_LAST_PORT = 65_535


def address(name: str, text: str | None) -> Address | None:
    """Parse a listen address. If the port is 0, the system assigns one. Raises click.UsageError."""
    if text is None:
        return None
    try:
        host, colon, port = text.rpartition(":")
        assigned = colon and port == "0"
        endpoint = parse_address(f"{host}:1" if assigned else text)
    except QuantityError as error:
        raise click.UsageError(f"{name}: {error} ({error.hint})") from None
    return Address(endpoint.host, 0 if assigned else endpoint.port, endpoint.path)


def picker_address(name: str, text: str) -> Address:
    """Parse a picker's listen address. The picker also uses the next port. Raises click.UsageError."""
    place = address(name, text)
    if place is None or place.path or not 0 < place.port < _LAST_PORT:
        raise click.UsageError(f"{name}: the port must be from 1 to 65534, because HTTP uses the next port")
    return place
