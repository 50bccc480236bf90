"""Errors that one package of the control plane raises and another one handles."""

from __future__ import annotations


class BadRequestError(Exception):
    """A request to the API cannot be carried out. The message says why."""


class NotSavedError(Exception):
    """A request to the API was not carried out, because its effect cannot be saved. The message says why."""


class CannotListenError(Exception):
    """An address to listen on is refused or taken. The reason is in the log when this is raised."""


class MissingPathError(Exception):
    """This user sees nothing at a path of the fleet, and nothing is served. It is in the log when this is raised."""


class UnknownStateError(Exception):
    """The section `control` cannot be read, so the state directory is unknown. It is in the log when this is raised."""
