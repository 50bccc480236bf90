"""Runs the proxy's own checker, but only on configuration rendered by lbctl.

A checker executes its input. For example, `nginx -t` loads modules and creates logs, and `haproxy -c` runs Lua. It is
therefore given only text written by lbctl and the operator's own lines, which are as trusted as the fleet. As far as
the proxy allows, the checker runs in a private temporary directory, without network access and without root privileges.
The checker's messages are mapped to the YAML from which the rejected line was rendered.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lbctl.apply.binaries import find_binary
from lbctl.apply.command import run_blocking
from lbctl.apply.files import write_bundle
from lbctl.apply.host import Checkable, host
from lbctl.apply.placeholders import replaced, stand_in
from lbctl.base import diagnostics as d
from lbctl.compile.files import files_on_disk
from lbctl.compile.fleet import Compiled
from lbctl.compile.proxies import version_text
from lbctl.ir.proxies import Proxy
from lbctl.model.fleet import FleetSource
from lbctl.targets import is_kubernetes
from lbctl.targets.manifests.check import unreachable
from lbctl.targets.own_lines import located
from lbctl.targets.prepare import Prepared
from lbctl.targets.target import Bundle, Complaint

_VERSION = re.compile(r"(?<![\d.])(\d+)\.(\d+)\.(\d+)")
_CHECK_TIMEOUT = 60
"""Time limit for running the checker, in seconds."""
_VERSION_TIMEOUT = 5
"""Time limit for printing a program's version, in seconds."""


class MissingBinaryError(Exception):
    """The proxy's program is not installed on this machine, or cannot be started."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check.

    `findings` is empty if the checker accepts the text. `checker` is the checker's name and version.
    """

    findings: list[d.Diagnostic]
    checker: str
    replaced: list[str]
    """Descriptions of the text that was replaced for the check."""


def check(prepared: Prepared, compiled: Compiled, source: FleetSource, form: str, within: str | None = None) -> Checked:
    """Run the proxy's checker on the rendered configuration. A fragment is checked within the main file `within`.

    Raises MissingBinaryError, or raises HostError or OSError if the main file does not include the fragment.
    """
    target = prepared.target
    binary = find_binary(target)
    if binary is None:
        raise MissingBinaryError(f"--check needs the program {target.binary}, which is not installed on this machine")
    with tempfile.TemporaryDirectory(prefix="lbctl-") as directory:
        prefix = Path(directory)
        locate = files_on_disk(source).get
        view = prepared.view
        if not is_kubernetes(target.kind):
            view = stand_in(view, prefix, locate, keep_addresses=within is not None)
        bundle = target.render(view, form)
        write_bundle(bundle, directory)
        checkable = _checkable(prepared, binary, prefix, prefix / bundle.main.name, within)
        # kubectl runs in the current directory, because the paths in KUBECONFIG may be relative.
        code, output = _run(list(checkable.command), None if is_kubernetes(target.kind) else directory)
        output = checkable.readable(output)
        complaints = list(target.complaints(output, bundle)) if code else []
    if is_kubernetes(target.kind):
        return _checked_by_server(code, output, complaints, bundle, compiled)
    if code and not complaints:
        complaints = [Complaint(f"exit code {code}: {_last_lines(output)}")]
    version = version_of(binary)
    checker = f"{target.kind} {version_text(version)}" if version else target.kind
    findings = [_diagnostic(item, bundle, compiled, checker) for item in complaints]
    if version and version[:2] < prepared.view.proxy.version[:2]:
        findings.append(_older_checker(checker, prepared.view.proxy, compiled))
    return Checked(findings, checker, replaced(prepared.view, locate, target.log_files(prepared.view)))


def _checked_by_server(
    code: int, output: str, complaints: list[Complaint], bundle: Bundle, compiled: Compiled
) -> Checked:
    """Return the API server's result. Raises MissingBinaryError if the server is unreachable."""
    reason = unreachable(output) if code else ""
    if reason:
        raise MissingBinaryError(f"--check cannot reach the API server of kubectl's context: {reason}")
    if code and not complaints:
        complaints = [Complaint(f"exit code {code}: {_last_lines(output)}")]
    checker = "the API server"
    return Checked([_diagnostic(item, bundle, compiled, checker) for item in complaints], checker, [])


def _checkable(prepared: Prepared, binary: str, prefix: Path, main: Path, within: str | None) -> Checkable:
    proxy = prepared.view.proxy
    if proxy.is_fragment:
        return host(proxy.kind).checkable(binary, prefix, main, proxy, (within,) if within else ())
    return Checkable(tuple(prepared.target.check_command(binary, str(prefix), str(main))), {})


def version_of(binary: str) -> tuple[int, ...]:
    """Return the version that the program prints, or () if it prints none. Raises MissingBinaryError."""
    for flag in ("-v", "--version"):
        match = _VERSION.search(_run([binary, flag], "/", _VERSION_TIMEOUT)[1])
        if match:
            return tuple(map(int, match.groups()))
    return ()


def _older_checker(checker: str, proxy: Proxy, compiled: Compiled) -> d.Diagnostic:
    message = (
        f"the checker is {checker}, but the configuration is for {version_text(proxy.version)}, so it may reject valid "
        "settings"
    )
    hint = "check with the version that will run, or render for the older version with --proxy-version"
    path = ("proxies", proxy.name, "version") if proxy in compiled.topology.proxies else ()
    return compiled.sources.with_position(d.Diagnostic("LB902", message, path=path, hint=hint, severity="warning"))


def _run(command: list[str], directory: str | None, seconds: int = _CHECK_TIMEOUT) -> tuple[int, str]:
    done = run_blocking(command, seconds, directory)
    if not done.started:
        raise MissingBinaryError(f"--check cannot start {command[0]}: {done.output}")
    return (1 if done.code is None else done.code), done.output


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "no output"


def _diagnostic(complaint: Complaint, bundle: Bundle, compiled: Compiled, checker: str) -> d.Diagnostic:
    path, own = located(complaint, bundle)
    path = path or complaint.path or next(_source_paths(complaint, bundle), ())
    subject = f"included lines, {own}" if own else "the rendered configuration"
    diagnostic = d.Diagnostic("LB901", f"{checker} rejects {subject}: {complaint.message}", path=path)
    return compiled.sources.with_position(diagnostic) if path else replace(diagnostic, position=None)


def _source_paths(complaint: Complaint, bundle: Bundle) -> Iterator[d.Path]:
    """Yield the config path of the rejected line, or of the nearest preceding line that was rendered from the YAML."""
    for item in bundle.files:
        if complaint.line is None or complaint.file not in {None, item.name}:
            continue
        lines_above = [line for line in item.sources if line <= complaint.line]
        if lines_above:
            yield item.sources[max(lines_above)]
