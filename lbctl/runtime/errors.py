"""Errors raised by one package of the control plane and handled by another."""

from __future__ import annotations


class BadRequestError(Exception):
    """A request to the API is invalid. The message states the reason."""


class NotSavedError(Exception):
    """An API request was not performed because its effect could not be saved. The message states the reason."""


class CannotListenError(Exception):
    """An address to listen on is not permitted or is already in use. The reason has been logged."""


class MissingPathError(Exception):
    """A path in the fleet does not exist or is not accessible to this user, and no fleet is published.

    The reason has been logged.
    """


class UnknownStateError(Exception):
    """The `control` section cannot be read, so the state directory is unknown. The reason has been logged."""
