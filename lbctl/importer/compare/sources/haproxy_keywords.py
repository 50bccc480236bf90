"""The HAProxy keywords, options and actions that a comparison runs, and those that it omits.

If a word is not in any of the tables, its section is closed. In a rule for requests, the matching requests are closed.
For this reason, a table contains only words that do not store, execute, connect, resolve or load anything. Words are
omitted only if they do not affect the compared responses. No word is a path on this machine.
"""

from __future__ import annotations

KEYWORDS = {
    "mode": "=http|tcp",
    "timeout": "name time",
    "hash-type": "word+",
    "hash-balance-factor": "number",
    "cookie": "word+",
    "retries": "number",
    "retry-on": "word+",
    "monitor-uri": "text",
    "errorloc": "number text",
    "errorloc302": "number text",
    "errorloc303": "number text",
    "unique-id-format": "format",
    "unique-id-header": "header",
    "http-send-name-header": "header?",
    "capture": "=request|response|cookie =header|len? header =len? number?",
    "declare": "=capture =request|response =len number",
    "disabled": "",
    "enabled": "",
    "group": "name =users? word?",
    "user": "name =password|insecure-password? text? =groups? word?",
}
"""Maps keywords to the kinds of their arguments."""

OPTIONS = {
    **dict.fromkeys(
        (
            "abortonclose", "accept-invalid-http-request", "accept-invalid-http-response", "allbackups", "forwarded",
            "h1-case-adjust-bogus-client", "http-buffer-request", "http-ignore-probes", "http-keep-alive",
            "http-no-delay", "http-pretend-keepalive", "http-restrict-req-hdr-names", "http-server-close",
            "http-use-proxy-header", "httpclose", "persist", "prefer-last-server"
        ),
        "word*",
    ),
    "redispatch": "number?",
}  # fmt: skip
"""Maps options to the kinds of their arguments. `forwardfor` and `originalto` are handled separately."""

_ANSWER = {
    "status": "number",
    "deny_status": "number",
    "content-type": "text",
    "string": "text",
    "lf-string": "format",
    "hdr": "header format",
}
REDIRECT = {
    "location": "format",
    "prefix": "format",
    "scheme": "format",
    "code": "number",
    "set-cookie": "word",
    "clear-cookie": "word",
    "drop-query": "",
    "append-slash": "",
    "ignore-empty": "",
}
"""Maps the words in a redirect to the kind of the argument that follows."""
ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    **dict.fromkeys(("accept", "allow", "disable-l7-retry", "reject", "silent-drop", "wait-for-handshake"), ("", {})),
    **dict.fromkeys(("deny", "return", "tarpit"), ("", _ANSWER)),
    **dict.fromkeys(("add-header", "set-header", "early-hint"), ("header format", {})),
    **dict.fromkeys(("replace-header", "replace-value"), ("header text format", {})),
    **dict.fromkeys(("replace-path", "replace-pathq", "replace-uri"), ("text format", {})),
    **dict.fromkeys(("set-method", "set-path", "set-pathq", "set-query", "set-uri"), ("format", {})),
    **dict.fromkeys(("set-priority-class", "set-priority-offset", "set-src", "set-src-port"), ("expression", {})),
    **dict.fromkeys(("track-sc0", "track-sc1", "track-sc2"), ("expression", {"table": "name"})),
    "auth": ("", {"realm": "text"}),
    "capture": ("expression", {"len": "number", "id": "number"}),
    "del-header": ("header", {"-m": "word"}),
    "redirect": ("", REDIRECT),
    "set-status": ("number", {"reason": "text"}),
    "set-timeout": ("=server|tunnel time", {}),
    "strict-mode": ("=on|off", {}),
    "wait-for-body": ("", {"time": "time", "at-least": "size"}),
}
"""Maps rule actions to the kinds of their arguments, and to the words that can follow, with their kinds."""
CALLS = {
    "set-var": "expression",
    "set-var-fmt": "format",
    "unset-var": "",
    "sc-inc-gpc0": "",
    "sc-inc-gpc1": "",
    "sc-set-gpt0": "number",
}
"""Maps actions that have an argument in parentheses to the kinds of their other arguments."""

_LEFT_OUT = {
    "logs": "log log-format log-format-sd log-tag log-steps error-log-format stats",
    "error pages": "errorfile errorfiles http-error",
    "health checks": "http-check tcp-check external-check email-alert default-server load-server-state-from-file"
    " server-state-file-name monitor grace",
    "source addresses for connections": "source bind-process",
    "limits, and names": "maxconn fullconn backlog rate-limit max-keep-alive-queue http-reuse description id guid"
    " max-session-srv-conns clitimeout srvtimeout contimeout persist",
    "compression": "compression",
    "HAProxy itself": "global",
    "other sections": "peers resolvers mailers program cache http-errors ring log-forward fcgi-app crt-store traces"
    " acme log-profile",
}
_OPTIONS_LEFT_OUT = {
    "logs": "dontlog-normal dontlognull httplog tcplog httpslog log-health-checks log-separate-errors logasap"
    " socket-stats contstats",
    "health checks": "external-check httpchk ldap-check mysql-check pgsql-check redis-check smtpchk spop-check"
    " ssl-hello-chk tcp-check",
    "connections": "clitcpka independent-streams nolinger splice-auto splice-request splice-response srvtcpka"
    " tcp-smart-accept tcp-smart-connect tcpka idle-close-on-response h1-case-adjust-bogus-server checkcache"
    " http-use-htx",
}
_ACTIONS_LEFT_OUT = {
    "logs": "set-log-level do-log",
    "caches": "cache-use cache-store",
    "connections": "set-nice set-tos set-mark set-fc-tos set-fc-mark expect-proxy",
    "normalized paths": "normalize-uri",
    "HAProxy's own metrics": "use-service",
}


def _reasons(table: dict[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in table.items() for name in names.split()}


LEFT_OUT, OPTIONS_LEFT_OUT, ACTIONS_LEFT_OUT = map(_reasons, (_LEFT_OUT, _OPTIONS_LEFT_OUT, _ACTIONS_LEFT_OUT))
"""Maps words that are omitted to their subject."""
_FILTERS = frozenset({"bwlim-in", "bwlim-out", "cache", "compression", "opentracing", "trace"})
"""Filters that do not affect responses."""


def reason(words: list[str]) -> str:
    """Return the subject of a line that is omitted, or "" if responses might differ without the line."""
    if words[0] == "filter":
        return "filters" if words[1:2] and words[1] in _FILTERS else ""
    return LEFT_OUT.get(words[1] if words[0] == "no" and len(words) > 1 else words[0], "")
