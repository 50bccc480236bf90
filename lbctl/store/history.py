"""Records of previously published fleets, and of a rollback to one of them.

An entry states which fleet was published and when. The contents of its YAML files are a separate, compressed record,
which may be shared by several entries. Every `read_…` raises one of `records.UNREADABLE` for a string that its
`write_…` did not write.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from lbctl.base.foreign_json import parse
from lbctl.model.load import SourceText
from lbctl.store.records import MAX_TEXT_VALUES

Action = Literal["files", "reload", "rollback"]
_MAX_TEXTS = 256 * 1024 * 1024
"""Maximum size of compressed files after decompression, in bytes."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The git commit from which the files were read."""

    commit: str = ""
    """Full name of the commit; empty if the files are not in a checkout."""
    dirty: bool = False
    """Whether the files differ from the commit."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Reason for publishing a fleet."""

    actor: str
    """Name of the token; `lbctl` for the control plane's own actions."""
    action: Action = "files"
    """A change of the files, a reload through the API, or a rollback."""
    reason: str = ""
    """Reason given by the operator."""


@dataclass(frozen=True, slots=True)
class ServedFleet:
    """A previously published fleet."""

    digest: str
    """Digest of its YAML files (`fleet.history.digest_of`)."""
    at: float
    """Time of publication, in seconds since the epoch."""
    cause: Cause
    revision: Revision
    """Commit of its files."""
    version: str
    """Version of its first snapshot."""
    pools: int
    """Number of pools."""
    replicas: int
    """Number of replicas, including discovered ones."""
    size: int
    """Size of the fleet's compressed files in bytes."""


@dataclass(frozen=True, slots=True)
class ActiveRollback:
    """An earlier fleet that is published instead of the files on disk, until the files change."""

    digest: str
    """Digest of the published fleet."""
    ignored: str
    """Digest of the ignored files."""
    at: float
    """Time of the request, in seconds since the epoch."""
    actor: str
    """Name of the token."""
    reason: str
    """Reason given by the operator."""


def write_texts(texts: Iterable[SourceText]) -> str:
    """Serialize and compress the texts of a fleet's YAML files."""
    rows = [[text.name, text.root, text.data.decode(errors="surrogateescape")] for text in texts]
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def read_texts(value: str) -> tuple[SourceText, ...]:
    """Parse the text of `write_texts`."""
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(base64.b64decode(value, validate=True), _MAX_TEXTS)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not decompressor.eof:
        raise ValueError("the compressed files are incomplete")
    rows = parse(content, MAX_TEXT_VALUES)
    return tuple(
        SourceText(_text(name), _text(data).encode(errors="surrogateescape"), _text(root)) for name, root, data in rows
    )


def write_entries(entries: Iterable[ServedFleet]) -> str:
    """Serialize the entries of the history, oldest first."""
    return json.dumps([asdict(item) for item in entries])


def read_entries(value: str) -> tuple[ServedFleet, ...]:
    """Parse the text of `write_entries`."""
    return tuple(map(_entry, parse(value)))


def write_rollback(rollback: ActiveRollback | None) -> str:
    """Serialize the rollback; None if no rollback is active."""
    return json.dumps(asdict(rollback) if rollback else None)


def read_rollback(value: str) -> ActiveRollback | None:
    """Parse the text of `write_rollback`."""
    row = parse(value)
    if row is None:
        return None
    names = [item.name for item in fields(ActiveRollback) if item.name != "at"]
    return ActiveRollback(**{name: _text(row[name]) for name in names}, at=_number(row["at"]))


def _entry(row: dict[str, Any]) -> ServedFleet:
    cause, revision = row["cause"], row["revision"]
    if cause["action"] not in get_args(Action):
        raise ValueError(f"{cause['action']!r} is not a known action")
    if not isinstance(revision["dirty"], bool):
        raise TypeError("`dirty` of a revision must be true or false")
    return ServedFleet(
        digest=_text(row["digest"]),
        at=_number(row["at"]),
        cause=Cause(_text(cause["actor"]), cause["action"], _text(cause["reason"])),
        revision=Revision(_text(revision["commit"]), revision["dirty"]),
        version=_text(row["version"]),
        pools=int(_number(row["pools"])),
        replicas=int(_number(row["replicas"])),
        size=int(_number(row["size"])),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: object) -> float:
    """Return a finite, non-negative number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a finite, non-negative number")
    return float(value)
