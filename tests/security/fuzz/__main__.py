"""Search for inputs that make a parser fail, guided by the code that they reach.

python -m tests.security.fuzz PARSER SECONDS DIRECTORY

Inputs that reach new code are kept in DIRECTORY. An input that makes the parser fail is printed with its trace and
written to DIRECTORY; the exit status is then not 0.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["lbctl"]):
    from tests.security.fuzz.parsers import PARSERS


def main() -> None:
    """Search for the given time."""
    name, seconds, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    parser = PARSERS[name]
    for seed in parser.seeds:
        (directory / hashlib.sha256(seed).hexdigest()).write_bytes(seed)

    def once(data: bytes) -> None:
        with suppress(*parser.errors):
            parser.parse(data)

    options = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={directory}/failure-",
        "-timeout=20",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *options, str(directory)], once)
    atheris.Fuzz()


main()
