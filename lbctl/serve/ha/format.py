"""The marker in a key space, which shows that the key space was written by lbctl and in which format.

lbctl does not modify a key space that belongs to another program, or to a later version that uses a different format.
"""

from __future__ import annotations

import json

from lbctl.base.foreign_json import parse
from lbctl.store.interface import ABSENT, SharedStore, UnusableError
from lbctl.store.signed_store import FORMAT_KEY

KEY = FORMAT_KEY
_PLAIN, _SIGNED = 1, 2
"""The format without signatures and the format with signatures. Versions that support only the first format do not
touch the second."""
FORMAT = _SIGNED
"""The latest format that this version reads and writes."""
_FOREIGN = ("fleet/", "overrides", "loop_output")
"""Keys that this version writes only in combination with the marker."""


async def check_format(store: SharedStore) -> None:
    """Raise UnusableError if the keys belong to another program or to a later version. Raises StoreError."""
    entry = next((item for item in await store.read(KEY) if item.key == KEY), None)
    if entry is None:
        for prefix in _FOREIGN:
            if foreign := await store.read(prefix):
                raise UnusableError(
                    f"{store.location} has keys that lbctl did not write (for example {foreign[0].key}): choose "
                    "another control.store.key_prefix"
                )
        return
    number = _number(entry.value)
    if number is None:
        raise UnusableError(f"{store.location} is used by another program: choose another control.store.key_prefix")
    if number > FORMAT:
        raise UnusableError(
            f"{store.location} was written by a later version of lbctl (format {number}; this one reads {FORMAT}): "
            "update this member"
        )


async def write_format(store: SharedStore, epoch: int, *, signed: bool) -> None:
    """Write the marker if it is missing or specifies an older format than this member's. Raises StoreError."""
    entry = next((item for item in await store.read(KEY) if item.key == KEY), None)
    wanted = _SIGNED if signed else _PLAIN
    if entry is None or wanted > (_number(entry.value) or 0):
        await store.put(KEY, json.dumps({"lbctl": wanted}), entry.version if entry else ABSENT, epoch)


def _number(value: str) -> int | None:
    try:
        number = parse(value)["lbctl"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if type(number) is int else None
