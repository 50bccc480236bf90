"""The command `lbctl` in this process, for tests of short commands' output: an interpreter takes longer to start than
the command takes to run."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from lbctl.cli import run


@dataclass(frozen=True, slots=True)
class Invocation:
    """The exit code and both outputs of a command."""

    code: int
    stdout: str
    stderr: str


def invoke(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Invocation:
    """Run `lbctl ARGUMENTS`, with these variables in addition to this process's environment."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, environment or {}), redirect_stdout(out), redirect_stderr(err):
        code = run([*arguments])
    return Invocation(code, out.getvalue(), err.getvalue())
