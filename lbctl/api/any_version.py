"""The parts of `/api/v1/status` that commands can read from any version of `serve`. A missing part has a default.

`schema.Status` has all parts, and only a server of the same version returns all of them.
"""

from __future__ import annotations

from msgspec import Struct


class AnyVersionFleet(Struct, frozen=True):
    """The fleet's files."""

    directory: str = ""
    """The working directory of the process; empty if the process does not report it."""
    paths: tuple[str, ...] = ()
    """Paths given on the command line, relative to the directory."""


class AnyVersionListens(Struct, frozen=True):
    """The addresses of the process, and its state directory; None if the process does not report them."""

    xds: str | None = None
    xds_socket: str | None = None
    api: str | None = None
    state: str | None = None


class AnyVersionPicker(Struct, frozen=True):
    """The status of the picker."""

    listens: str = ""
    """The address at which the picker serves gRPC."""
    running: bool = False
    since: str | None = None
    """The time at which the process started; None if the process is not running."""
    reason: str | None = None
    """The reason why the picker is not running."""
    unsaved: str | None = None
    """The reason why the picker cannot save its memory."""


class AnyVersionProblem(Struct, frozen=True):
    """A problem that the process reports."""

    kind: str = ""
    severity: str = "warning"
    subject: str = ""
    text: str = ""
    command: str = ""


class AnyVersionStatus(Struct, frozen=True):
    """The status of a running `lbctl serve`."""

    version: str | None = None
    ready: bool = False
    waiting: str | None = None
    """The reason why the process is not ready."""
    dry_run: bool = False
    fleet: AnyVersionFleet | None = None
    listens: AnyVersionListens | None = None
    picker: AnyVersionPicker | None = None
    """The picker; None if no pool needs a picker, or if the server's version has no picker."""
    problems: tuple[AnyVersionProblem, ...] = ()
