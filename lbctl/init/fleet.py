"""Derives a fleet that passes `lint` from URLs, or reports every reason why this is not possible.

The text is linted before it is returned. Two findings, which concern a single server and servers that share a host's
GPUs, are left to the user, and a comment states the reason. Any other finding means that a valid fleet cannot be
derived from the servers' responses, so no text is returned.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.init.identify import AuxiliaryEndpoint, IdentifiedServer, identify
from lbctl.init.pools import pools_of, with_management_models
from lbctl.init.probe import TIMEOUT, ServerResponses, probe
from lbctl.init.probe_target import ProbeTarget, parse_targets
from lbctl.init.routes import routes_of
from lbctl.init.write import text
from lbctl.lint.run import CodeFilter, lint
from lbctl.model.load import SourceText

UNIDENTIFIED, NO_VALID_FLEET = "LB960", "LB963"
FIRST_PORT = 8080
_MAX_URLS = 64
"""Maximum number of URLs in one call."""
_REASONS = {
    "LB218": "only one server was given for this model: add another server, or keep this comment",
    "LB617": 'set the GPUs of each replica, for example devices: ["0"]',
}
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True, slots=True)
class InitResult:
    """The result of `lbctl init --from`."""

    text: str
    """Content of the file, or "" if an error occurred."""
    summary: tuple[str, ...] = ()
    """Description of the server at each URL."""


def template() -> str:
    """Return an annotated example fleet that uses placeholder addresses on this machine."""
    return files("lbctl.init").joinpath("blank.yaml").read_text(encoding="utf-8")


def fleet_from_urls(
    urls: Sequence[str],
    diagnostics: Diagnostics,
    timeout: float = TIMEOUT,
    api_key: str = "",
    free: Callable[[int], bool] = lambda _: True,
) -> InitResult:
    """Probe every URL once and derive a fleet.

    Errors are added to `diagnostics`. If any URL is invalid, none are probed. `timeout` is the time limit per server,
    in seconds. `api_key` is sent to every server but is never included in a result. The listener uses the first port at
    or above 8080 for which `free` returns true.
    """
    targets = parse_targets(urls[:_MAX_URLS], diagnostics)
    if len(urls) > _MAX_URLS:
        diagnostics.add(Diagnostic("LB962", f"{len(urls)} URLs are too many: init queries at most {_MAX_URLS}"))
    if diagnostics.failed:
        return InitResult("")
    servers, auxiliaries = _classified(asyncio.run(probe(targets, timeout, api_key)), diagnostics)
    if len(diagnostics):
        return InitResult("")
    summary = (*map(_describe_server, servers), *map(_describe_auxiliary, auxiliaries))
    used = {target.port for target in targets}
    port = next(number for number in range(FIRST_PORT, 65536) if number not in used and free(number))
    return InitResult(_linted(_text(servers, auxiliaries, port, keyed=bool(api_key)), diagnostics), summary)


def _classified(
    responses: Sequence[ServerResponses], diagnostics: Diagnostics
) -> tuple[list[IdentifiedServer], list[AuxiliaryEndpoint]]:
    """Separate servers from auxiliary endpoints, and report any that cannot be identified."""
    servers: list[IdentifiedServer] = []
    auxiliaries: list[AuxiliaryEndpoint] = []
    for response in responses:
        match response.failure or identify(response):
            case IdentifiedServer() as server:
                servers.append(server)
            case AuxiliaryEndpoint() as auxiliary:
                auxiliaries.append(auxiliary)
            case reason:
                _report_unidentified(diagnostics, response.target, reason)
    hosts = {server.target.host for server in servers}
    for orphan in auxiliaries if not len(diagnostics) else ():
        if orphan.target.host not in hosts:
            _report_unidentified(
                diagnostics,
                orphan.target,
                f"this is a host's {orphan.title}, but none of the URLs is a model server on that host",
            )
    return with_management_models(servers, auxiliaries), auxiliaries


def _report_unidentified(diagnostics: Diagnostics, target: ProbeTarget, message: str) -> None:
    diagnostics.add(Diagnostic(UNIDENTIFIED, message, Position(target.url), hint="nothing was written"))


def _text(
    servers: Sequence[IdentifiedServer], auxiliaries: Sequence[AuxiliaryEndpoint], port: int, *, keyed: bool
) -> str:
    pools = pools_of(servers, auxiliaries)
    return text(pools, routes_of(pools), port, _authority(), keyed=keyed)


def _authority() -> str:
    """Return the file of system CAs that was used to verify the servers."""
    paths = ssl.get_default_verify_paths()
    return next((path for path in (paths.cafile, *_AUTHORITIES) if path and Path(path).is_file()), _AUTHORITIES[0])


def _linted(fleet: str, diagnostics: Diagnostics) -> str:
    """Return the text with a comment on each line that has a finding for the user to resolve.

    The result is "" if any other findings exist.
    """
    lines = fleet.splitlines()
    codes: dict[int, list[str]] = {}
    for finding in lint([SourceText("fleet.yaml", fleet.encode(), ".")], Diagnostics(), CodeFilter(), None).findings:
        if finding.code in _REASONS and finding.position is not None:
            codes.setdefault(finding.position.line - 1, []).append(finding.code)
        else:
            message = f"the servers' responses do not result in a valid fleet: {finding.code}, {finding.message}"
            diagnostics.add(Diagnostic(NO_VALID_FLEET, message, hint=f"lbctl rule {finding.code}"))
    for line, line_codes in codes.items():
        reasons = "; ".join(_REASONS[code] for code in line_codes)
        lines[line] += f"   # lbctl: ignore {', '.join(line_codes)} ({reasons})"
    return "" if diagnostics.failed else "\n".join(lines) + "\n"


def _describe_auxiliary(auxiliary: AuxiliaryEndpoint) -> str:
    return f"{auxiliary.target.url}: {auxiliary.title}" + (
        f", {_count_of(len(auxiliary.gpus), 'GPU')}" if auxiliary.gpus else ""
    )


def _describe_server(server: IdentifiedServer) -> str:
    count = len(server.models.raw)
    reason = ": the server requires a key (use --api-key-file)" if server.wants_key else ""
    models = _count_of(count, "model") if count else f"models unknown{reason}"
    return f"{server.target.url}: {server.kind.title}, {models}"


def _count_of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
