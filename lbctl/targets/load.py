"""From paths to a fleet that targets can write: read, compiled, its key files opened. Every command starts here.

Nothing is shown and nothing ends the program: findings go to the caller's `Diagnostics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import check_files
from lbctl.compile.fleet import Compiled, compile_fleet
from lbctl.compile.secrets import read_secrets
from lbctl.ir.secrets import Secrets
from lbctl.model.fleet import FleetSource, read
from lbctl.targets import oldest_versions


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fleet without errors: as written, as meant, and what its key files hold."""

    source: FleetSource
    compiled: Compiled
    secrets: Secrets


def load(
    paths: Sequence[str], diagnostics: Diagnostics, require_files: bool = False, stdin: IO[bytes] | None = None
) -> Loaded | None:
    """The fleet, or None where it has errors; they are in `diagnostics`. `require_files`: a missing one is an error."""
    source = read(paths, diagnostics, stdin)
    return complete(source, diagnostics, require_files) if source else None


def complete(
    source: FleetSource, diagnostics: Diagnostics, require_files: bool = False, secrets: Secrets | None = None
) -> Loaded | None:
    """The rest of the way, from what the YAML says. `secrets`: what the key files hold, where the caller has read
    them."""
    compiled = compile_fleet(source, oldest_versions(), diagnostics)
    check_files(source, require_files, diagnostics)
    if secrets is None:
        secrets = read_secrets(source, require_files, diagnostics)
    return None if compiled is None or diagnostics.failed else Loaded(source, compiled, secrets)
