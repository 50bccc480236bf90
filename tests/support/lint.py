"""Lints fleets in memory, without a process.

Includes small fleets with one listener, one route and one pool without findings.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.lint.fleet_view import StatedLoad
from lbctl.lint.run import CodeFilter, LintResult, lint
from lbctl.model.load import SourceText

TWO = """\
- {name: a, address: "10.0.0.1:8000", gpu: H100-SXM}
- {name: b, address: "10.0.0.2:8000", gpu: H100-SXM}
"""
LLM = """\
telemetry:
  sources:
    - {kind: vllm, url: "http://{host}:{port}/metrics"}
    - {kind: dcgm, url: "http://{host}:9400/metrics"}
"""
"""Telemetry of a pool of vLLM servers."""
PAGE_LOAD = StatedLoad(7.0, 2.0)
"""Load with which the fleets in the pages are checked: `--rate 7/s --mean-service 2s`."""
_MODE = re.compile(r"# (\S+) is (-[rwx-]{9})")
_HOLDS = re.compile(r"# (\S+) holds (.+)")


def sample(
    pool: str = "",
    *,
    replicas: str = TWO,
    routes: str = "chat: {match: {path_prefix: /v1/chat}, pool: llama}\n",
    listener: str = 'gateway: {bind: "127.0.0.1:8080"}\n',
    pools: str = "",
    more: str = "",
) -> str:
    """Return a whole fleet.

    `pool`: lines of the pool `llama`; `pools`: further pools; `more`: further sections.
    """
    pool_lines = f"replicas:\n{_in(replicas, 1)}{pool}"
    return (
        f"version: 1\nlisteners:\n{_in(listener, 1)}routes:\n{_in(routes, 1)}"
        f"pools:\n  llama:\n{_in(pool_lines, 2)}{_in(pools, 1)}{more}"
    )


def _in(text: str, levels: int) -> str:
    return textwrap.indent(text, "  " * levels)


def linted(
    text: str, load: StatedLoad | None = None, root: Path | None = None, choice: CodeFilter | None = None
) -> LintResult:
    """Return the diagnostics of lint for this text.

    `root` is the directory of the fleet. A comment `# PATH is -rw-------` in the text creates a file with that mode
    there, and `# PATH holds TEXT` creates a file with that content that only its owner may read.
    """
    for path, text_of_it in _HOLDS.findall(text) if root else ():
        file = (root or Path()) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text_of_it}\n")
        file.chmod(0o600)
    for path, mode in _MODE.findall(text) if root else ():
        file = (root or Path()) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.chmod(sum((letter != "-") << (8 - bit) for bit, letter in enumerate(mode[1:])))
    return lint(
        [SourceText("fleet.yaml", text.encode(), str(root or "."))], Diagnostics(), choice or CodeFilter(), load
    )


def findings(text: str, load: StatedLoad | None = None, root: Path | None = None) -> list[Diagnostic]:
    return list(linted(text, load, root).findings)


def codes(text: str) -> list[str]:
    return [item.code for item in findings(text)]


def pointed(text: str, item: Diagnostic) -> str:
    """Return the text of the line from the position of the finding."""
    assert item.position is not None
    return text.splitlines()[item.position.line - 1][item.position.column - 1 :]


POOR = sample(
    LLM + "connections: {idle: 60s}\nbalance: {algorithm: round_robin}\n",
    listener='gateway: {bind: "0.0.0.0:8080"}\n',
    replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: B200}
- {name: b, address: "10.0.0.2:8000", gpu: L4}
- {name: c, address: "10.0.0.3:8000", gpu: L4}
""",
    more='control: {api: {bind: "0.0.0.0:18080"}}\n',
)
"""A valid fleet with findings of each severity."""
