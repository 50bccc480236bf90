"""nginx's own checker: `nginx -t` in a directory of its own, and what it says taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.targets.target import Bundle, Complaint

_SAID = re.compile(r"\[(?:emerg|alert|crit|error)\](?: \d+#\d+:)?(?: \*\d+)? (?P<words>.*)")
_WHERE = re.compile(r" in (?P<file>\S+):(?P<line>\d+)$")


def command(binary: str, prefix: str, main: str) -> list[str]:
    """Its pid file lies below `prefix`, and so do, where the proxy has no `config`, its directories of bodies."""
    return [binary, "-t", "-q", "-e", "stderr", "-p", prefix, "-c", main, "-g", "pid lbctl-check.pid;"]


def complaints(output: str, bundle: Bundle) -> Iterable[Complaint]:
    """Every line that stops nginx; warnings do not."""
    for line in output.splitlines():
        said = _SAID.search(line)
        if said:
            yield _complaint(said["words"], bundle)


def _complaint(words: str, bundle: Bundle) -> Complaint:
    where = _WHERE.search(words)
    if where is None:
        return Complaint(words)
    ends = where["file"]
    name = next((file.name for file in bundle.files if ends.endswith(file.name)), None)
    return Complaint(words[: where.start()], name, int(where["line"]))
