"""`lbctl diff`, which shows the differences from other files, from a git revision, or from the running fleet."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from lbctl.api.client import ServeClient
from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import revision
from lbctl.cli.command import Command
from lbctl.cli.diff.markdown import markdown
from lbctl.cli.diff.text import as_json, lines
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import show as show_value
from lbctl.cli.proxy import chosen, unnamed
from lbctl.cli.server_options import server_options
from lbctl.ir.diff import difference
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import TARGETS, target
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import placed, prepare
from lbctl.targets.target import Bundle, File

option = options_of("diff")
_GIT = "git:"
_LIVE = "live"
_DIFFERENT = 2


@dataclass(frozen=True, slots=True)
class _Options:
    against: tuple[str, ...]
    kind: str | None
    proxy: str | None
    form: str


@click.command(
    "diff",
    cls=Command,
    examples="""
    lbctl diff fleet/
    lbctl diff fleet/ --against git:main -o markdown
    lbctl diff fleet/ --against live --exit-code
    """,
)
@paths_argument
@option(
    "--against", metavar="PATH|git:REV|live", multiple=True, default=("git:HEAD",), show_default=True,
    help="Compare with other files, with the same files at a git revision, or with a running serve.",
)  # fmt: skip
@option(
    "-t",
    "--target",
    "kind",
    type=click.Choice(TARGETS),
    help="Compare the rendered configuration for this kind of proxy instead.",
)
@option("--proxy", metavar="NAME", help="With -t: name of the proxy, if the fleet has several of this kind.")
@option("--exit-code", "tells", is_flag=True, help="Exit with 2 if there are differences.")
@output_option("diff", ("table", "markdown", "json", "yaml"))
@server_options()
def command(
    paths: tuple[str, ...],
    against: tuple[str, ...],
    kind: str | None,
    proxy: str | None,
    tells: bool,
    form: str,
    remote: ServeClient,
) -> int:
    """Show how a change affects pools, traffic and settings.

    lbctl compares the fleet in PATH… with another fleet. It reports changed pools, replicas and settings, the share of
    traffic that each pool gains or loses, and requests that take a different route. It ignores order, comments and
    explicitly set default values. Use `-o markdown` for a merge request comment.
    """
    options = _Options(against, kind, proxy, form)
    _check(options)
    diagnostics = Diagnostics()
    new = load(paths, diagnostics)
    old = _other(paths, against, diagnostics) if against != (_LIVE,) else None
    show(item for item in diagnostics if item.severity == "error")
    if new is None or (old is None and against != (_LIVE,)):
        return 1
    if old is None:
        from lbctl.cli.diff.live import compare

        differs = compare(new.compiled, remote, form)
    elif kind:
        return _native(old, new, options, tells)
    else:
        differs = _fleets(old, new, form)
    return _DIFFERENT if differs and tells else 0


def _check(options: _Options) -> None:
    special = [item for item in options.against if item == _LIVE or item.startswith(_GIT)]
    if special and len(options.against) > 1:
        raise click.UsageError(f"--against {special[0]} cannot be combined with other values")
    if options.kind and (options.against == (_LIVE,) or options.form != "table"):
        raise click.UsageError("-t compares text: it cannot be combined with --against live or -o")
    if options.proxy and not options.kind:
        raise click.UsageError("--proxy requires -t")


def _other(paths: tuple[str, ...], against: tuple[str, ...], diagnostics: Diagnostics) -> Loaded | None:
    """Load the other fleet. Its errors are reported together with the first fleet's errors."""
    findings = Diagnostics()
    if against[0].startswith(_GIT):
        loaded = revision.load(paths, against[0].removeprefix(_GIT), findings)
    else:
        loaded = load(against, findings)
    diagnostics.extend(findings)
    return loaded


def _fleets(old: Loaded, new: Loaded, form: str) -> bool:
    changes = difference(old.compiled.topology, new.compiled.topology)
    match form:
        case "table":
            for line in lines(changes, new.compiled.sources):
                click.echo(line)
        case "markdown":
            click.echo(markdown(changes, new.compiled.sources), nl=False)
        case _:
            show_value(as_json(changes, new.compiled.sources), form)
    return bool(changes)


# ── The native text ──────────────────────────────────────────────────────────────────────────────────────────────────


def _native(old: Loaded, new: Loaded, options: _Options, tells: bool) -> int:
    """Print a diff of the rendered files, and return the exit code."""
    changed = _bundle(new, new, options)
    errors = [item for item in placed(changed, new.compiled) if item.severity == "error"]
    if errors:
        show(errors)
        return 1
    before = {item.name: item for item in _bundle(old, new, options).files if item.text}
    after = {item.name: item for item in changed.files}
    if not before:
        click.echo(f"lbctl: the old fleet does not have this {options.kind} entry, so everything is new", err=True)
    differs = False
    for name in dict.fromkeys([*before, *after]):
        for line in _file(name, before.get(name), after.get(name)):
            click.echo(line)
            differs = True
    return _DIFFERENT if differs and tells else 0


def _bundle(loaded: Loaded, new: Loaded, options: _Options) -> Bundle:
    """Render one side. The old side is rendered for the same proxy as the new side, if it has that proxy."""
    assert options.kind is not None
    topology = loaded.compiled.topology
    new_proxy = chosen(new.compiled.topology, options.kind, options.proxy)
    proxy = next((item for item in topology.proxies if item.name == new_proxy.name), unnamed(topology, options.kind))
    snapshot = Snapshot(topology, secrets=loaded.secrets)
    prepared = prepare(target(options.kind), loaded.compiled, new_proxy if loaded is new else proxy, snapshot)
    return prepared.target.render(prepared.view)


def _file(name: str, old: File | None, new: File | None) -> Iterator[str]:
    before, after = old.text if old else "", new.text if new else ""
    if before == after:
        return
    if (old and old.secret) or (new and new.secret):
        yield f"# {name} differs; it contains secrets and is not shown"
        return
    unified: Iterable[Any] = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"old/{name}" if old else "/dev/null",
        f"new/{name}" if new else "/dev/null", lineterm="",
    )  # fmt: skip
    yield from unified
