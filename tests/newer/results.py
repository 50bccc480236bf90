"""What `make test-newer` found, in results.json, and its table in docs/reference/capabilities.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from lbctl.targets import target

_FILE = Path(__file__).with_name("results.json")
_INTRODUCTION = """\
## Tested versions

`make test` uses the installed nginx and HAProxy (1.22 and 2.6 on Debian 12) and Envoy 1.40. `make test-newer` runs
newer versions. The configuration checker of each version reads the expected outputs in `tests/golden`, both unchanged
and rendered for its version. Other tests render fleets for the version and send requests through the proxy.

Other versions, such as HAProxy 3.1 and 3.3 and nginx 1.31, are not tested. For nginx 1.31, `least_time` follows the
nginx documentation.

"""


@dataclass(frozen=True, slots=True)
class Result:
    """One proxy: the texts that its checker accepted, the tests with traffic that passed, the names of what failed."""

    kind: str
    version: str
    accepted: int
    passed: int
    failed: tuple[str, ...]

    @property
    def minor(self) -> tuple[int, ...]:
        """The first two numbers of the version."""
        return tuple(map(int, self.version.split(".")[:2]))


def load() -> list[Result]:
    """Return the results of the last runs, by kind and version."""
    rows = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
    return [Result(**{**row, "failed": tuple(row["failed"])}) for row in rows]


def save(results: Iterable[Result]) -> None:
    """Write the results, a line each."""
    ordered = sorted(results, key=lambda item: (item.kind != "nginx", item.minor))
    rows = ",\n".join(json.dumps(asdict(item)) for item in ordered)
    _FILE.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def section() -> str:
    """Return the section of docs/reference/capabilities.md."""
    head = "| proxy | accepted configurations | passed tests with traffic | failed tests |\n|---|---|---|---|\n"
    return _INTRODUCTION + head + "".join(map(_row, load()))


def _row(item: Result) -> str:
    failed = ", ".join(f"`{name}`" for name in item.failed) or "none"
    return f"| {target(item.kind).title} {item.version} | {item.accepted} | {item.passed} | {failed} |\n"
