"""`python -m lbctl`: equivalent to the `lbctl` command."""

from __future__ import annotations

from lbctl.cli import main

main()
