"""`lbctl rule`, which explains a diagnostic code without network access."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.command import Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _codes(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the codes with this prefix, for shell completion."""
    from click.shell_completion import CompletionItem

    from lbctl.lint.pages import pages

    code_pages = pages().values()
    return [
        CompletionItem(page.code, help=page.title) for page in code_pages if page.code.startswith(incomplete.upper())
    ]


@click.command("rule", cls=Command, examples="lbctl rule LB203")
@click.argument("code", required=False, shell_complete=_codes)
def command(code: str | None) -> int:
    """Explain a diagnostic code.

    The page explains what the code means, why it matters on GPUs and when to ignore it, with YAML examples before and
    after the fix. Without CODE, list all codes.
    """
    from lbctl.lint.pages import pages, terminal_text

    code_pages = pages()
    if code is None:
        click.echo(
            "".join(f"{page.code}  {page.severity:<7}  {page.title}\n" for page in code_pages.values()), nl=False
        )
        return 0
    page = code_pages.get(code.upper())
    if page is None:
        hint = did_you_mean(code.upper(), code_pages)
        raise click.UsageError(f"unknown code {code!r}{f' ({hint})' if hint else ''}; `lbctl rule` lists all codes")
    click.echo(terminal_text(page), nl=False)
    return 0
