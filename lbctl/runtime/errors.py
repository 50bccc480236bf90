"""Errors raised by one package of the control plane and handled by another."""

from __future__ import annotations


class BadRequestError(Exception):
    """A request to the API is invalid. The message gives the reason."""


class NotSavedError(Exception):
    """A request to the API was not carried out, because its effect cannot be saved. The message gives the reason."""


class CannotListenError(Exception):
    """An address to listen on is not permitted or already in use. The reason has been logged."""


class MissingPathError(Exception):
    """A path of the fleet does not exist or is not accessible to this user, and no fleet is published.

    The reason has been logged.
    """


class UnknownStateError(Exception):
    """The section `control` cannot be read, so the state directory is unknown. The reason has been logged."""
