"""`python -m lbctl`: the same as the command `lbctl`."""

from __future__ import annotations

from lbctl.cli import main

main()
