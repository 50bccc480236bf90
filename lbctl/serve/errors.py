"""Errors that pass from one room of the control plane to another."""

from __future__ import annotations


class BadRequestError(Exception):
    """A request to the API that cannot be carried out; the message says why."""


class NotSavedError(Exception):
    """A request to the API whose effect the state could not keep, so that nothing was changed; the message says why."""


class CannotListenError(Exception):
    """An address to listen on is refused or taken. The reason is in the log when this is raised."""
