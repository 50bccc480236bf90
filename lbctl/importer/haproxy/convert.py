"""Converts an HAProxy configuration to a draft of a fleet."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer import headers
from lbctl.importer.draft import Draft
from lbctl.importer.haproxy import own as own_lines
from lbctl.importer.haproxy import proxy
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection, sections
from lbctl.importer.haproxy.listeners import listeners
from lbctl.importer.haproxy.pools import pool
from lbctl.importer.haproxy.routes import frontend
from lbctl.importer.ledger import WRITTEN, Ledger
from lbctl.importer.statement import Statement, walk

_REASONS = {
    **dict.fromkeys(
        ("daemon", "master-worker", "pidfile", "node", "description", "set-dumpable", "log-send-hostname", "quiet",
         "stats-file", "insecure-fork-wanted", "nameserver", "hold", "resolve_retries", "parse-resolv-conf", "peer"),
        WRITTEN,
    ),
    "resolvers": WRITTEN, "peers": "lbctl divides limits by `instances`",
    "global": WRITTEN, "log": "lbctl's access log is JSON with a fixed set of fields",
    "log-format": "lbctl's access log has a fixed set of fields",
    "stats": "lbctl has its own dashboard, metrics and `lbctl status`",
    "errorfile": "lbctl returns its own JSON bodies",
    "userlist": "no imported rule uses this user list", "compression": "lbctl does not compress responses",
    "use_backend": "an earlier rule handles these requests",
    "stick-table": "lbctl counts requests with `rate_limit`, not with stick tables",
    "maxconn": WRITTEN, "fullconn": "lbctl's limits do not depend on the load",
    "filter": "the fleet file has no key for this filter",
    "capture": "lbctl's access log has a fixed set of fields", "unique-id-format": "lbctl generates request IDs itself",
    "unique-id-header": "lbctl generates request IDs itself", "timeout": "the fleet file has no key for this timeout",
}  # fmt: skip
_IMPLIED = {
    ("mode", "http"): "lbctl balances HTTP",
    ("option", "http-keep-alive"): "lbctl keeps connections open",
    ("option", "http-no-delay"): "lbctl sends each token immediately",
    ("option", "http-buffer-request"): "lbctl reads bodies only if a route needs them",
    ("option", "httplog"): "lbctl logs every request",
    ("option", "dontlognull"): "lbctl does not log connections without a request",
    ("option", "log-health-checks"): "`lbctl serve` logs health changes",
    ("http-reuse",): "lbctl reuses replica connections safely",
    ("timeout", "client"): "`timeouts.idle` applies to clients that stop reading",
    ("timeout", "client-fin"): "lbctl needs no timeout for closed connections",
    ("timeout", "server-fin"): "lbctl needs no timeout for closed connections",
    ("log", "global"): "lbctl logs every request",
}


def convert(statements: Sequence[Statement], file: str, diagnostics: Diagnostics, *, own: bool) -> Draft:
    """Return the draft of a fleet. If the configuration contains no HTTP frontend, a diagnostic is added."""
    ledger = Ledger(statements, diagnostics)
    draft = Draft(ledger, keeps_own=own)
    userlists = {item.args[0]: item for item in statements if item.name == "userlist" and item.args}
    context = HaproxyImport(
        draft,
        userlists=userlists,
        globals=tuple(line for item in statements if item.name == "global" for line in item.block),
    )
    all_sections = sections(tuple(statements))
    http = [item for item in all_sections if item.is_http]
    for item in all_sections:
        if not item.is_http:
            ledger.omit(item.block, "this section is in TCP mode, but lbctl supports only HTTP")
    proxy.process(context)
    exporters = [item for item in http if item.block.name in {"frontend", "listen"} and proxy.is_exporter(item)]
    for item in exporters:
        proxy.exporter(context, item)
    for item in filter(_is_statistics, http):
        if item not in exporters:
            ledger.omit(item.block, _REASONS["stats"])
    context.tcp.update({item.name: item for item in all_sections if not item.is_http})
    context.sections.update({item.name: item for item in http if item.block.name in {"backend", "listen"}})
    fronts = [item for item in http if item.block.name in {"frontend", "listen"} and not _is_statistics(item)]
    entries = [item for item in fronts if item not in exporters]
    if not entries:
        _report_no_frontend(all_sections, file, diagnostics)
        return draft
    bound = [(item, *listeners(context, item)) for item in entries]
    for item, plain, encrypted in bound:
        frontend(context, item, plain, encrypted)
        _advise(context, item)
    _unused(context, http)
    _imply(context, statements)
    headers.settle(draft)
    own_lines.collect(context, http)
    ledger.settle(_REASONS)
    return draft


def _report_no_frontend(all_sections: Sequence[HaproxySection], file: str, diagnostics: Diagnostics) -> None:
    fronts = [item for item in all_sections if item.block.name in {"frontend", "listen"} and not item.is_http]
    message, position = "the configuration has no frontend to import", Position(file, 1, 1)
    hint = "pass the files that contain `frontend` or `listen` sections with `mode http`"
    if fronts:
        why = " (HAProxy's default without `mode http`)" if fronts[0].last("mode") is None else ""
        message = f"{' '.join(fronts[0].block.tokens)} is in TCP mode{why}, but lbctl supports only HTTP"
        position = fronts[0].block.position
        hint = "if it carries HTTP traffic, add `mode http` there or to `defaults`, and import again"
    diagnostics.add(Diagnostic("LB982", message, position, hint=hint))


def _is_statistics(section: HaproxySection) -> bool:
    """Return whether a section only exports statistics."""
    names = {item.name for item in section.block.block}
    return "stats" in names and not names & {"server", "server-template", "use_backend", "default_backend"}


def _advise(context: HaproxyImport, section: HaproxySection) -> None:
    ledger = context.draft.ledger
    if section.last("option", "http-no-delay") is None:
        message = "without `option http-no-delay`, HAProxy may delay the first token by up to 0.2 s"
        ledger.advise(section.block, message, "lbctl sends each token immediately")
    for option in ("httpclose", "http-server-close", "forceclose"):
        if (item := section.last("option", option)) is not None:
            ledger.advise(
                item, f"option {option} opens a new connection for each request", "lbctl keeps connections open"
            )
            ledger.imply("lbctl keeps connections open", item)


def _unused(context: HaproxyImport, http: Sequence[HaproxySection]) -> None:
    choosing = ("use_backend", "default_backend")
    named = {line.args[0] for item in http for line in item.block.block if line.name in choosing and line.args}
    for item in http:
        if item.block.name == "backend" and item.name not in context.pools:
            context.pools[item.name] = pool(context, item)
            led = "no open route sends requests to this backend"
            reason = led if item.name in named else "no rule sends requests to this backend"
            context.draft.ledger.omit(item.block, reason, context.pools[item.name])


def _imply(context: HaproxyImport, statements: Sequence[Statement]) -> None:
    for item in walk(statements):
        for prefix, reason in _IMPLIED.items():
            if item.tokens[: len(prefix)] == prefix and (item.block or not item.is_block):
                context.draft.ledger.imply(reason, item)
