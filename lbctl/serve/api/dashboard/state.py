"""The dashboards' state as JSON.

Each row is encoded once, when it changes, and frames are assembled from the encoded rows.

`update` compares new rows with the previous ones and returns the changes for a frame. It is a generator that yields
after every row, so that its caller can do other work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from lbctl.api import schema
from lbctl.api.codec import encode

SECTIONS = ("status", "pools", "proxies", "rollouts", "splits")
"""The sections of a frame, apart from the replicas."""
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FrameChange:
    """Changes as JSON strings."""

    sections: Mapping[str, str] = field(default_factory=dict)
    """Maps each name from `SECTIONS` to the complete section."""
    replicas: tuple[str, ...] = ()
    """Rows that are new or changed."""
    gone: tuple[str, ...] = ()
    """Names of the replicas that have disappeared."""

    def __bool__(self) -> bool:
        return bool(self.sections or self.replicas or self.gone)


class DashboardState:
    """The newest rows."""

    def __init__(self) -> None:
        self.rows: dict[_Key, schema.LiveReplica] = {}
        self._encoded: dict[_Key, str] = {}
        self._sections: dict[str, str] = {}

    def update(
        self, rows: Iterable[Iterable[schema.LiveReplica]], sections: Iterable[tuple[str, object]]
    ) -> Generator[None, None, FrameChange]:
        """Store the rows (grouped by pool) and the sections, and return the changes."""
        changed: dict[_Key, str] = {}
        current: dict[_Key, schema.LiveReplica] = {}
        for of_pool in rows:
            yield
            for row in of_pool:
                key = row.pool, row.name
                current[key] = row
                if self.rows.get(key) != row:
                    changed[key] = encode(row)
                yield
        encoded: dict[str, str] = {}
        for name, section in sections:
            yield
            encoded[name] = encode(section)
            yield
        gone = tuple(encode(schema.ReplicaName(*key)) for key in self.rows if key not in current)
        # Nothing can fail from here on, so browsers receive everything that is recorded as sent.
        changed_sections = {name: text for name, text in encoded.items() if self._sections.get(name) != text}
        self._encoded = {key: changed.get(key) or self._encoded[key] for key in current}
        self.rows, self._sections = current, encoded
        return FrameChange(changed_sections, tuple(changed.values()), gone)

    def everything(self) -> FrameChange:
        """Return the complete state."""
        return FrameChange(dict(self._sections), tuple(self._encoded.values()))
