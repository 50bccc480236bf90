"""`lbctl status`: what a running `serve` does, what each proxy has of it, and how the pools stand.

It shows what `serve` knows and judges nothing itself, but for `--check`: that everything is as the files say.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.options import options_of
from lbctl.cli.remote import Server, age, form_choice, server_options, show, table

option = options_of("status")
Row = dict[str, Any]
_FINE = frozenset({"SYNCED", "GONE", "NOT DRIVEN"})
_DEGRADED = 3
_BY_POOL = {"pools": "name", "signals": "pool"}
"""What is shown by pool → where a row names it."""
_SHORT = 12
"""Characters of a version that tell it from others."""


@click.command("status")
@click.argument("what", required=False, type=click.Choice(["proxies", "pools", "signals"]))
@option("--check", is_flag=True, help="Exit code 3 unless the files are served and every proxy has them.")
@option("-o", "form", type=form_choice, default="table", show_default=True, help="The form.")
@option("--pool", metavar="NAME", help="With pools or signals: this pool alone.")
@server_options()
def command(
    what: str | None, check: bool, form: str, pool: str | None, server: str, token_file: str | None, tls_ca: str | None
) -> int:
    """What a running `lbctl serve` does: a summary, its proxies type by type, its pools, or what replicas tell."""
    if pool is not None and what not in _BY_POOL:
        raise click.UsageError("--pool goes with pools or signals")
    remote = Server(server, token_file, tls_ca)
    summary = remote.get("/api/v1/status") if check or what is None else {}
    rows: list[Row] = remote.get(f"/api/v1/{what or 'proxies'}").get(what or "proxies", [])
    if pool is not None and what is not None:
        rows = [row for row in rows if row[_BY_POOL[what]] == pool] or _nothing_of(remote, pool)
    if form != "table":
        show(rows if what else summary, form)
    elif what == "pools":
        table(_POOLS, (line for row in rows for line in _pool(row)))
    elif what == "signals":
        table(_SIGNALS, (line for row in rows for line in _signal(row)))
    elif what == "proxies":
        table(_PROXIES, (line for row in rows for line in _proxy(row)))
    else:
        _print_summary(summary)
    if not check:
        return 0
    proxies = rows if what in (None, "proxies") else remote.get("/api/v1/proxies").get("proxies", [])
    problems = [*_problems(summary), *_proxy_problems(proxies)]
    for problem in problems:
        click.echo(f"lbctl: {problem}", err=True)
    return _DEGRADED if problems else 0


def _nothing_of(remote: Server, pool: str) -> list[Row]:
    """No rows, and why. ClickException for a pool that is not there."""
    known = [row["name"] for row in remote.get("/api/v1/pools")["pools"]]
    if pool not in known:
        near = did_you_mean(pool, known)
        raise click.ClickException(f"there is no pool {pool!r}" + (f"; {near}" if near else ""))
    click.echo(f"lbctl: nothing is read of {pool}: it has no telemetry", err=True)
    return []


# ── Judging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _problems(summary: Row) -> Iterator[str]:
    if not summary.get("ready"):
        yield f"not ready: {summary.get('waiting')}"
    fleet = summary.get("fleet") or {}
    if not fleet.get("valid"):
        yield f"the files are not served: {fleet.get('refused') or 'they have errors'}"
    for item in fleet.get("shrink", []):
        yield item["text"]


def _proxy_problems(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if row["state"] not in _FINE and row["kind"] != "reader":
            yield f"{row['node']} is {row['state']}" + (f": {row['reason']}" if row["reason"] else "")


# ── Showing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_PROXIES = ("NODE", "PROXY", "TYPE", "STATE", "VERSION", "ACKED", "LAST GOOD", "SINCE", "WORDS")
_POOLS = ("POOL", "REPLICA", "ADDRESS", "WEIGHT", "SHARE", "PRIORITY", "ZONE", "STATE")


_SIGNALS = ("POOL", "REPLICA", "SIGNAL", "VALUE", "UNIT", "AGE", "SOURCE", "WORDS")


def _print_summary(summary: Row) -> None:
    snapshot, fleet = summary.get("snapshot"), summary.get("fleet") or {}
    listens = summary.get("listens") or {}
    mode = " (dry run: nothing is sent)" if summary.get("dry_run") else ""
    lines = [
        ("lbctl", f"{summary.get('version')}, since {summary.get('since')}{mode}"),
        ("xds", listens.get("xds") or "-"),
        ("api", listens.get("api") or "-"),
        ("state", listens.get("state") or "-"),
        ("snapshot", _snapshot(snapshot) if snapshot else f"none: {summary.get('waiting')}"),
        ("files", _files(fleet)),
        ("proxies", ", ".join(f"{count} {state}" for state, count in (summary.get("proxies") or {}).items()) or "none"),
    ]
    if summary.get("restart"):
        lines.append(("restart", f"taken at the next start alone: {', '.join(summary['restart'])}"))
    sources = summary.get("sources") or {}
    if sources.get("total"):
        lines.append(("sources", _sources(sources)))
    for item in summary.get("control", []):
        if item["mode"] != "acting":
            lines.append(("control", f"{item['pool']}: {item['mode']}, {item['words']}"))
        for what in ("out", "floor"):
            found = item.get(what) or {}
            lines += [(what, f"{item['pool']}/{name}: {'; '.join(words)}") for name, words in found.items()]
    lines += [("by hand", _override(item)) for item in summary.get("overrides", [])]
    lines += [("unmatched", f"{item['node']}: {item['reason']}") for item in summary.get("unmatched", [])]
    lines += [("name", f"{item['name']}: {item['error']}") for item in summary.get("names", []) if item["error"]]
    findings = [item for item in fleet.get("diagnostics", []) if item["severity"] in ("error", "warning")]
    for name, text in lines:
        click.echo(f"{name:<10} {_one_line(text)}")
    for text in dict.fromkeys(item["text"] for item in (*findings, *fleet.get("shrink", []))):
        click.echo(f"  {_one_line(text)}")


def _sources(row: Row) -> str:
    pools = ", ".join(f"{count} of {pool}" for pool, count in row["pools"].items())
    return f"{row['failing']} of {row['total']} failing" + (f": {pools} (lbctl status signals)" if pools else "")


def _override(item: Row) -> str:
    about = "/".join(filter(None, (item["pool"], item["replica"])))
    value = f" {item['value']:g}" if item["value"] is not None else ""
    until = f", until {item['until']}" if item["until"] else ""
    return f"{item['kind']} {about}{value}{until}" + (f": {item['reason']}" if item["reason"] else "")


def _snapshot(row: Row) -> str:
    origin = "" if row["from"] == "files" else ", the last good one of the state"
    size = f"{_count(row['pools'], 'pool')}, {_count(row['replicas'], 'replica')}"
    return f"{row['version']}, {age(row['age'])} old, {size}{origin}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _files(fleet: Row) -> str:
    names = ", ".join(fleet.get("paths", []))
    if fleet.get("valid"):
        count = sum(item["severity"] == "warning" for item in fleet.get("diagnostics", []))
        return f"{names}: served" + (f", {_count(count, 'warning')}" if count else "")
    return f"{names}: NOT served: {fleet.get('refused') or 'not read yet'}"


def _proxy(row: Row) -> Iterator[tuple[str, ...]]:
    """A line for each type; one for a node that has asked for nothing."""
    who = (row["node"], "(reader)" if row["kind"] == "reader" else row["proxy"] or "-")
    good = row["last_good"][:_SHORT] or "-"
    if not row["types"] or row["reason"]:
        yield (*who, "-", row["state"], "-", "-", good, _since(row), row["reason"])
        return
    for kind in row["types"]:
        state = kind["state"] if row["connected"] else "GONE"
        versions = (kind["offered"][:_SHORT] or "-", kind["acked"][:_SHORT] or "-")
        yield (*who, kind["type"], state, *versions, good, _since(kind), _words(row, kind))


def _since(row: Row) -> str:
    return age(time.time() - datetime.fromisoformat(row["since"]).timestamp())


def _words(row: Row, kind: Row) -> str:
    """What a proxy said against it, at its places in the YAML where those are known."""
    if kind["state"] != "NACKED":
        return ""
    last = next((item for item in row["nacks"] if item["type"] == kind["type"]), None)
    return " ".join(last["findings"]) if last and last["findings"] else kind["message"]


def _pool(row: Row) -> Iterator[tuple[str, ...]]:
    if not row["replicas"]:
        yield (row["name"], "-", "-", "-", "-", "-", "-", "-")
    for item in row["replicas"]:
        since = item["drained"]
        state = "out" if item["out"] else f"drained since {since}" if since else "in"
        yield (
            row["name"], item["name"], item["address"], f"{item['weight']:g}", f"{item['share'] * 100:.1f}%",
            str(item["priority"]), item["zone"] or item["region"] or "-", state,
        )  # fmt: skip


def _signal(row: Row) -> Iterator[tuple[str, ...]]:
    """A line a signal, and one for each page that gives nothing, however many metrics of it are sources."""
    who = (row["pool"], row["replica"])
    for name, item in row["signals"].items():
        old = "" if item["fresh"] else "stale: not counted"
        yield (*who, name, f"{item['value']:.6g}", item["unit"], age(item["age"]), item["source"], old)
    failing: dict[tuple[str, str], list[Row]] = {}
    for item in row["sources"]:
        if item["reason"] or item["age"] is None:
            failing.setdefault((item["kind"], item["url"]), []).append(item)
    for (kind, url), items in failing.items():
        words = "; ".join(dict.fromkeys(item["words"] or "not looked at yet" for item in items))
        looked = min((item["age"] for item in items if item["age"] is not None), default=None)
        yield (*who, "-", "-", "-", age(looked), kind, f"{url}: {words}")
    if not row["signals"] and not failing:
        kinds = ", ".join(dict.fromkeys(item["kind"] for item in row["sources"])) or "-"
        yield (*who, "-", "-", "-", "-", kinds, "no signal yet: what was read needs requests between two looks")


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
