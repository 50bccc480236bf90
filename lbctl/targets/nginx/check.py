"""nginx's own checker: the command `nginx -t` in a separate directory, and the parser of its output."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.targets.target import Bundle, Complaint

_ERROR = re.compile(r"\[(?:emerg|alert|crit|error)\](?: \d+#\d+:)?(?: \*\d+)? (?P<message>.*)")
_PLACE = re.compile(r" in (?P<file>\S+):(?P<line>\d+)$")


def command(binary: str, prefix: str, main: str) -> list[str]:
    """Return the command that checks the configuration `main` in the directory `prefix`.

    The pid file is below `prefix`. If the proxy has no `config`, nginx's directories for bodies are also below
    `prefix`.
    """
    return [binary, "-t", "-q", "-e", "stderr", "-p", prefix, "-c", main, "-g", "pid lbctl-check.pid;"]


def complaints(output: str, bundle: Bundle) -> Iterable[Complaint]:
    """Return the errors in nginx's output. Warnings do not prevent nginx from starting and are left out."""
    for line in output.splitlines():
        error = _ERROR.search(line)
        if error:
            yield _complaint(error["message"], bundle)


def _complaint(message: str, bundle: Bundle) -> Complaint:
    place = _PLACE.search(message)
    if place is None:
        return Complaint(message)
    reported_file = place["file"]
    name = next((file.name for file in bundle.files if reported_file.endswith(file.name)), None)
    return Complaint(message[: place.start()], name, int(place["line"]))
