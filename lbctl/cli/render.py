"""`lbctl render`, which writes a proxy's configuration to standard output or to a directory."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from pathlib import Path

import click

from lbctl.api.client import ServeClient
from lbctl.apply.files import write_bundle
from lbctl.apply.fleet_files import absent_files
from lbctl.apply.placeholders import shortened
from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.base.errors import reason_of
from lbctl.base.paths import is_directory, is_file
from lbctl.cli.command import Command
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import options_of
from lbctl.cli.proxy import chosen
from lbctl.cli.rollout import rollouts_of
from lbctl.cli.server_options import api_errors, server_url
from lbctl.compile.files import file_of, files_on_disk, named_files
from lbctl.compile.fleet import Compiled
from lbctl.control import splits
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.lint.collapse import collapse_equal
from lbctl.model.fleet import FleetSource
from lbctl.serve.drivers.eligibility import undriven
from lbctl.serve.fleet.unsupported import done_by_control_plane_for
from lbctl.targets import TARGETS, is_kubernetes, target
from lbctl.targets.features import BY_ID
from lbctl.targets.load import Loaded
from lbctl.targets.picker import exposed_by_files
from lbctl.targets.prepare import Prepared, placed, prepare
from lbctl.targets.target import Bundle, in_system_directory

option = options_of("render")
_INSTANCE = re.compile(r"^ +app\.kubernetes\.io/instance: (\S+)$", re.MULTILINE)
"""Matches the label that contains the entry's name."""


@dataclass(frozen=True, slots=True)
class _Options:
    """Command-line options."""

    kind: str
    proxy: str | None
    version: str | None
    directory: str | None
    check: bool
    within: str | None
    form: str
    require_files: bool
    files_root: str | None
    server: ServeClient | None
    """Running `serve` that provides the splits, or None to use the splits in the files."""


@click.command(
    "render",
    cls=Command,
    examples="""
    lbctl render -t haproxy fleet.yaml > haproxy.cfg
    # Check the result with nginx and write all files:
    lbctl render -t nginx --check -d /etc/nginx fleet.yaml
    # Check Kubernetes objects with the API server, and write them:
    lbctl render -t gateway-api --check -d out fleet.yaml
    """,
)
@paths_argument
@option("-t", "--target", "kind", type=click.Choice(TARGETS), required=True, help="Kind of proxy.")
@option("--proxy", metavar="NAME", help="Name of the proxy, if the fleet has several of this kind.")
@option(
    "--proxy-version",
    "version",
    metavar="VERSION",
    help="Version of the proxy (default: its `version` in the fleet, or the oldest supported version).",
)
@option("-d", "--directory", metavar="DIR", help="Write the files to DIR, atomically.")
@option(
    "--check",
    is_flag=True,
    help="Check the result before writing it: with the proxy's own binary, or with the API server that kubectl uses.",
)
@option("--within", metavar="MAIN", help="Check a fragment inside this main configuration file; implies --check.")
@option(
    "-o",
    "--output",
    "form",
    metavar="FORMAT",
    type=click.Choice(["yaml", "json"]),
    help="Format of an Envoy configuration: yaml or json (default: yaml).",
)
@option("--require-files", is_flag=True, help="Report an error for each missing file that the fleet refers to.")
@option(
    "--files-root",
    metavar="DIR",
    help="Base directory of the fleet's relative file names (default: the directory of the proxy's `config`).",
)
@option(
    "--server",
    metavar="URL",
    callback=server_url,
    help="URL of a running lbctl serve instance, to render the current splits of its rollouts.",
)
@option("--token-file", metavar="FILE", help="File with the API token, if the API needs one.")
@option("--tls-ca", metavar="FILE", help="CA bundle to verify the API's certificate (default: system CAs).")
def command(
    paths: tuple[str, ...],
    kind: str,
    proxy: str | None,
    version: str | None,
    directory: str | None,
    check: bool,
    within: str | None,
    form: str | None,
    require_files: bool,
    files_root: str | None,
    server: str | None,
    token_file: str | None,
    tls_ca: str | None,
) -> int:
    """Render the configuration of a proxy or Kubernetes gateway.

    A single file goes to standard output; several files need -d. Warnings on standard error list settings that the
    proxy does not support. If `lbctl serve` manages the proxy, another line lists the settings that serve implements
    for the proxy.
    """
    remote = ServeClient(server, token_file, tls_ca) if server else None
    options = _Options(
        kind, proxy, version, directory, check or within is not None, within, _form(kind, form), require_files,
        files_root, remote,
    )  # fmt: skip
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics, require_files)
    code = _render(loaded, options, diagnostics) if loaded else 1
    show(collapse_equal(diagnostics))
    return code


def _form(kind: str, form: str | None) -> str:
    """Return the selected or default output format. Raises UsageError if the target supports only one format."""
    forms = target(kind).forms
    if form is not None and len(forms) == 1:
        several = " and ".join(target(each).title for each in TARGETS if len(target(each).forms) > 1)
        raise click.UsageError(f"-o applies to {several} only: {kind} has one format")
    return form or forms[0]


def _render(loaded: Loaded, options: _Options, diagnostics: Diagnostics) -> int:
    source, compiled = loaded.source, loaded.compiled
    proxy = _placed(chosen(compiled.topology, options.kind, options.proxy, options.version), options.directory)
    if not compiled.topology.listeners:
        message = "the fleet has no listeners: there is nothing to render"
        diagnostics.add(
            Diagnostic("LB117", message, compiled.sources.position(()), hint="listeners: {NAME: {bind: …}}")
        )
        return 1
    topology = compiled.topology if options.server is None else _with_rollouts(compiled.topology, options.server)
    prepared = prepare(target(options.kind), compiled, proxy, Snapshot(topology, secrets=loaded.secrets))
    _report_losses(prepared, proxy, diagnostics, moved=options.server is not None)
    if prepared.view.picker is not None and not is_kubernetes(options.kind):
        diagnostics.extend(map(compiled.sources.with_position, exposed_by_files(topology)))
    # Kubernetes objects contain no paths.
    view = prepared.view if is_kubernetes(options.kind) else prepared.rooted(_root(options, proxy))
    bundle = prepared.target.render(view, options.form)
    diagnostics.extend(placed(bundle, compiled))
    if diagnostics.failed:
        return 1
    code = _check(source, compiled, prepared, options, diagnostics) if options.check else 0
    code = code or _write(bundle, options)
    if code == 0:
        _report_place(prepared)
        _report_prerequisites(bundle, source, options.files_root)
    if code == 0 and options.directory is not None and not is_kubernetes(options.kind):
        _report_absent_files(source, prepared, _root(options, proxy) or options.directory)
    return code


def _placed(proxy: Proxy, directory: str | None) -> Proxy:
    """Return the proxy.

    If the proxy has no `config`, set its `config` to the file in `directory` if a service reads the file there.
    """
    name = posixpath.basename(target(proxy.kind).service_config)
    if proxy.config is not None or directory is None or not name:
        return proxy
    config = str(Path(directory).absolute() / name)
    return replace(proxy, config=config) if in_system_directory(config) else proxy


def _report_prerequisites(bundle: Bundle, source: FleetSource, files_root: str | None) -> None:
    """Print the bundle's notes, and the objects that it requires but does not contain.

    Without `files_root`, the paths are relative to the current directory.
    """
    for note in bundle.notes:
        click.echo(f"lbctl: {note}", err=True)
    places = {str(node.value): str(file_of(source, node)) for _, node in named_files(source.root)}

    def locate(path: str) -> str:
        return places.get(path, path) if files_root is None else posixpath.join(files_root, path)

    for item in bundle.prerequisites:
        note = f" ({item.note})" if item.note else ""
        click.echo(f"lbctl: create this object unless it exists: {item.command(locate)}{note}", err=True)


def _report_place(prepared: Prepared) -> None:
    """If the proxy's `config` is not set, report why this file is not suitable for the distribution's service."""
    proxy, kind = prepared.view.proxy, prepared.target
    problem = kind.unfit_for_service(prepared.view) if proxy.config is None else ""
    if problem:
        fix = f"set `config: {kind.service_config}` in `proxies`, or use -d {posixpath.dirname(kind.service_config)}"
        message = f"this file is not suitable for the distribution's {kind.title} service: {problem}"
        click.echo(f"lbctl: {message}. For that service, {fix}", err=True)


def _with_rollouts(topology: Topology, server: ServeClient) -> Topology:
    """Return the topology with the current splits of rollouts, unless the files split between different pools."""
    with api_errors():
        rollouts = rollouts_of(server, None)
    files = {route.name: {pool for pool, _ in splits.shares_of(route)} for route in topology.routes}
    moved = {
        row.route: tuple(sorted(row.split.items()))
        for row in rollouts
        if row.percent is not None and files.get(row.route) == set(row.split)
    }
    return splits.apply(topology, moved)


def _report_losses(prepared: Prepared, proxy: Proxy, diagnostics: Diagnostics, *, moved: bool) -> None:
    """Report the features that cannot be expressed in this file, except for settings that concern `serve` itself.

    If `serve` manages the proxy, the features that it implements are listed on a single line, not as missing features.
    """
    drives = bool(proxy.nodes) if prepared.target.served_by_xds else not undriven(proxy)
    replacements = done_by_control_plane_for(proxy.kind) if drives else {}
    unrelated = {BY_ID["control"].code} | ({BY_ID["route.rollout"].code} if moved else set())
    losses = [item for item in prepared.losses if item.code not in unrelated]
    diagnostics.extend(item for item in losses if item.code not in replacements)
    provided = {item.code for item in losses if item.code in replacements}
    if provided:
        features = ", ".join(f"{replacements[code]} ({code})" for code in sorted(provided))
        message = f"{proxy.name} needs `lbctl serve` for features that this file does not contain"
        click.echo(f"lbctl: {message}: {features}", err=True)


def _check(
    source: FleetSource, compiled: Compiled, prepared: Prepared, options: _Options, diagnostics: Diagnostics
) -> int:
    from lbctl.apply.check import MissingBinaryError, check
    from lbctl.apply.host import HostError

    if options.within is not None and not prepared.view.proxy.is_fragment:
        raise click.UsageError(
            f"--within requires a fragment, and {prepared.view.proxy.name} is a complete configuration"
        )
    try:
        checked = check(prepared, compiled, source, options.form, options.within)
    except MissingBinaryError as error:
        click.echo(f"lbctl: {error}", err=True)
        return 4
    except (HostError, OSError) as error:
        message = f"the fragment cannot be checked within {options.within}: {reason_of(error)}"
        path = ("proxies", prepared.view.proxy.name, "config")
        diagnostics.add(compiled.sources.with_position(Diagnostic("LB136", message, path=path)))
        return 1
    diagnostics.extend(checked.findings)
    if diagnostics.failed:
        return 5
    click.echo(f"lbctl: accepted by {checked.checker}", err=True)
    if checked.replaced:
        click.echo(f"lbctl: not checked, because the check used placeholders: {'; '.join(checked.replaced)}", err=True)
    return 0


def _write(bundle: Bundle, options: _Options) -> int:
    needed = [item for item in bundle.files if not item.optional]
    if options.directory is None and len(needed) > 1:
        names = ", ".join(item.name for item in needed)
        raise click.UsageError(f"this fleet renders to several files ({names}): set a directory with -d")
    try:
        if options.directory is None:
            click.echo(bundle.main.text, nl=False)
        else:
            if is_kubernetes(options.kind) and (problem := _other_objects(bundle, Path(options.directory))):
                click.echo(f"lbctl: {problem}", err=True)
                return 1
            write_bundle(bundle, options.directory)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = error.filename or options.directory or "to standard output"
        click.echo(f"lbctl: cannot write {place}: {reason_of(error)}", err=True)
        return 1
    return 0


def _other_objects(bundle: Bundle, directory: Path) -> str:
    """Return the reason why the directory belongs to another entry, or "" if it belongs to this entry or to none.

    A tool that applies the directory and prunes old objects would otherwise delete the other entry's objects.
    """
    for item in bundle.files:
        place = directory / item.name
        if not is_file(place):
            continue
        text = place.read_text(errors="replace")
        old, new = _INSTANCE.search(text), _INSTANCE.search(item.text)
        if old is not None and new is not None and old[1] != new[1]:
            problem = f"{place} contains the objects of {old[1]}"
        elif item.optional and text != item.text:
            problem = f"{place} does not list only {bundle.main.name}"
        else:
            continue
        return f"{problem}: use a separate directory for each entry and kind, or delete this file"
    return ""


def _report_absent_files(source: FleetSource, prepared: Prepared, directory: str) -> None:
    """Report the fleet's files that are missing from the proxy's directory, if it exists on this machine."""
    absent = absent_files(prepared.view, files_on_disk(source), directory) if is_directory(directory) else []
    if absent:
        message = f"{directory} does not contain files that the proxy reads: {shortened(absent)}"
        click.echo(f"lbctl: {message} (copy them there, or set --files-root)", err=True)


def _root(options: _Options, proxy: Proxy) -> str:
    if options.files_root is not None:
        return options.files_root
    return posixpath.dirname(proxy.config) if proxy.config else ""
