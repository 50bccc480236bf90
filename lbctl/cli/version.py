"""`lbctl version`, which prints the versions of lbctl, Python and its dependencies."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from lbctl import __version__
from lbctl.cli.command import Command
from lbctl.cli.options import output_option

PACKAGES = (
    "aiohttp", "click", "crossplane", "cryptography", "dnspython", "envoy-data-plane", "grpcio", "h2", "jinja2",
    "msgspec", "prometheus-client", "protobuf", "pydantic", "pyyaml", "requests", "rich", "watchfiles",
    "xds-protos",
)  # fmt: skip


@click.command("version", cls=Command, examples="lbctl version -o json")
@output_option("version")
def command(form: str) -> None:
    """Print the versions of lbctl, Python and its dependencies."""
    packages = {name: _version(name) for name in PACKAGES}
    if form == "table":
        click.echo(f"lbctl {__version__}\nPython {platform.python_version()}, {platform.platform()}")
        for name, version in packages.items():
            click.echo(f"  {name} {version or 'missing'}")
        return
    from lbctl.cli.output import show

    python = {"version": platform.python_version(), "platform": platform.platform()}
    show({"lbctl": __version__, "python": python, "packages": packages}, form)


def _version(package: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
