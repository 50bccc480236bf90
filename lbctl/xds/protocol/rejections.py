"""The client's rejections of one type, so that the same content is not sent to it again."""

from __future__ import annotations

from typing import NamedTuple

MAX_REJECTED = 16
"""Maximum number of rejected versions remembered per resource."""


class Rejection(NamedTuple):
    """One NACK."""

    names: tuple[str, ...]
    """Rejected resources."""
    message: str
    """Error message of the client."""


class RejectedVersions:
    """The latest `MAX_REJECTED` rejected versions of each resource."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, Rejection]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def record(self, name: str, version: str, rejection: Rejection) -> None:
        """Record that the client has rejected this version of the resource."""
        versions = self._by_name.setdefault(name, {})
        versions[version] = rejection
        if len(versions) > MAX_REJECTED:
            del versions[next(iter(versions))]

    def get(self, name: str, version: str) -> Rejection | None:
        """Return the rejection of this version; None if it was not rejected."""
        versions = self._by_name.get(name)
        return versions.get(version) if versions else None

    def forget(self, name: str) -> None:
        """Forget the rejections of one resource."""
        self._by_name.pop(name, None)

    def clear(self) -> None:
        """Forget all rejections."""
        self._by_name.clear()
