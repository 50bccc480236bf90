"""The addresses of options that say where a process listens."""

from __future__ import annotations

import click

from lbctl.base.quantities import QuantityError, parse_address
from lbctl.ir.address import Address


def address(name: str, text: str | None) -> Address | None:
    """Parse a listen address; with port 0 the system assigns one. Raises click.UsageError."""
    if text is None:
        return None
    try:
        host, colon, port = text.rpartition(":")
        assigned = colon and port == "0"
        endpoint = parse_address(f"{host}:1" if assigned else text)
    except QuantityError as error:
        raise click.UsageError(f"{name}: {error} ({error.hint})") from None
    return Address(endpoint.host, 0 if assigned else endpoint.port, endpoint.path)
