"""The parts of `/api/v1/status` that commands read of any version of `serve`. Each has a default if it is missing.

`schema.Status` has all parts, and only an lbctl of the same version answers with each of them.
"""

from __future__ import annotations

from msgspec import Struct


class AnyVersionFleet(Struct, frozen=True):
    """The files of the fleet."""

    directory: str = ""
    """The working directory of the process; empty if it does not report it."""
    paths: tuple[str, ...] = ()
    """The paths of the command line, relative to the directory."""


class AnyVersionListens(Struct, frozen=True):
    """The addresses of the process, and its state directory; None for those that it does not report."""

    xds: str | None = None
    xds_socket: str | None = None
    api: str | None = None
    state: str | None = None


class AnyVersionPicker(Struct, frozen=True):
    """The status of the picker."""

    listens: str = ""
    """The address of its gRPC."""
    running: bool = False
    since: str | None = None
    """The start of its process; None if there is none."""
    reason: str | None = None
    """Why it does not run."""


class AnyVersionProblem(Struct, frozen=True):
    """A problem that the process reports."""

    kind: str = ""
    severity: str = "warning"
    subject: str = ""
    text: str = ""
    command: str = ""


class AnyVersionStatus(Struct, frozen=True):
    """The status of a `serve`."""

    version: str | None = None
    ready: bool = False
    waiting: str | None = None
    """Why it is not ready."""
    dry_run: bool = False
    fleet: AnyVersionFleet | None = None
    listens: AnyVersionListens | None = None
    picker: AnyVersionPicker | None = None
    """None if no pool needs a picker, or for a version without pickers."""
    problems: tuple[AnyVersionProblem, ...] = ()
