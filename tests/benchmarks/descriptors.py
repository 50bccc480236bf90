"""The limit of open files for measurements with many connections."""

from __future__ import annotations

import resource
import sys


def many_connections(wanted: int) -> None:
    """Raise the limit of open files as far as the system allows, and print a message if that is below `wanted`.

    Clients and engines need two files for each request in flight, and an overloaded fleet has thousands of these.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < wanted:
        print(f"{most} open files are allowed; {wanted} are needed, or requests fail (ulimit -Hn)", file=sys.stderr)
