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
    "resolvers": WRITTEN, "peers": "limits are divided by `instances`",
    "global": WRITTEN, "log": "the access log has its own fields, in JSON",
    "log-format": "the access log has its own fields",
    "stats": "lbctl has its own dashboard, metrics and `lbctl status`",
    "errorfile": "lbctl answers with JSON bodies",
    "userlist": "no rule asks for these users", "compression": "responses are not compressed",
    "use_backend": "an earlier rule takes these requests", "stick-table": "a fleet counts by `rate_limit`",
    "maxconn": WRITTEN, "fullconn": "limits do not grow with the load", "filter": "a fleet has no filters",
    "capture": "the access log has its own fields", "unique-id-format": "lbctl makes the id of a request itself",
    "unique-id-header": "lbctl makes the id of a request itself", "timeout": "a fleet has no timeout that means this",
}  # fmt: skip
_IMPLIED = {
    ("mode", "http"): "lbctl balances HTTP",
    ("option", "http-keep-alive"): "connections are kept",
    ("option", "http-no-delay"): "tokens leave when they come",
    ("option", "http-buffer-request"): "bodies are read where a route needs them",
    ("option", "httplog"): "every request has a line in the access log",
    ("option", "dontlognull"): "connections without a request have no line",
    ("option", "log-health-checks"): "changes of health are in the log of `serve`",
    ("http-reuse",): "connections to replicas are shared safely",
    ("timeout", "client"): "a client that stops reading ends with `timeouts.idle`",
    ("timeout", "client-fin"): "closed connections end by themselves",
    ("timeout", "server-fin"): "closed connections end by themselves",
    ("log", "global"): "every request has a line in the access log",
}


def convert(statements: Sequence[Statement], file: str, diagnostics: Diagnostics, *, own: bool) -> Draft:
    """Return the draft of a fleet. Without an HTTP frontend, a diagnostic is added."""
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
            ledger.omit(item.block, "its mode is TCP, and lbctl balances HTTP")
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
    message, position = "there is no frontend to import", Position(file, 1, 1)
    hint = "give the files with `frontend` or `listen` sections of `mode http`"
    if fronts:
        message = f"{' '.join(fronts[0].block.tokens)} is in TCP mode, and lbctl balances HTTP"
        position = fronts[0].block.position
        if fronts[0].last("mode") is None:
            message += ": HAProxy's mode is TCP where no `mode http` holds"
        hint = "write `mode http` there or in `defaults` if it carries HTTP, and import again"
    diagnostics.add(Diagnostic("LB982", message, position, hint=hint))


def _is_statistics(section: HaproxySection) -> bool:
    """Whether a section only shows statistics."""
    names = {item.name for item in section.block.block}
    return "stats" in names and not names & {"server", "server-template", "use_backend", "default_backend"}


def _advise(context: HaproxyImport, section: HaproxySection) -> None:
    ledger = context.draft.ledger
    if section.last("option", "http-no-delay") is None:
        message = "without `option http-no-delay` the first token waits up to 0.2 s for a second one"
        ledger.advise(section.block, message, "tokens leave when they come")
    for option in ("httpclose", "http-server-close", "forceclose"):
        if (item := section.last("option", option)) is not None:
            ledger.advise(item, f"option {option}: a new connection for every request", "connections are kept")
            ledger.imply("connections are kept", item)


def _unused(context: HaproxyImport, http: Sequence[HaproxySection]) -> None:
    choosing = ("use_backend", "default_backend")
    named = {line.args[0] for item in http for line in item.block.block if line.name in choosing and line.args}
    for item in http:
        if item.block.name == "backend" and item.name not in context.pools:
            context.pools[item.name] = pool(context, item)
            led = "no route that serves leads to this backend"
            reason = led if item.name in named else "nothing here sends requests to this backend"
            context.draft.ledger.omit(item.block, reason, context.pools[item.name])


def _imply(context: HaproxyImport, statements: Sequence[Statement]) -> None:
    for item in walk(statements):
        for prefix, reason in _IMPLIED.items():
            if item.tokens[: len(prefix)] == prefix and (item.block or not item.is_block):
                context.draft.ledger.imply(reason, item)
