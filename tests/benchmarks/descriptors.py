"""Open files for measurements with many connections."""

from __future__ import annotations

import resource
import sys


def many_connections(wanted: int) -> None:
    """Lets this process have as many as the system allows, and says so where they are fewer: clients and engines take
    two for each request in flight, and an overloaded fleet has thousands of them."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < wanted:
        print(f"{most} open files are allowed; {wanted} are needed, or requests fail (ulimit -Hn)", file=sys.stderr)
