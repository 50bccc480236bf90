"""`lbctl completion`: the script that makes a shell complete lbctl's commands, options, choices and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_LBCTL_COMPLETE"
"""By which the script asks the program; click makes it of the program's name."""
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete lbctl's commands and options.

    \b
    bash: source <(lbctl completion bash)                                  in ~/.bashrc
    zsh:  source <(lbctl completion zsh)                                   in ~/.zshrc, after compinit
    fish: lbctl completion fish > ~/.config/fish/completions/lbctl.fish
    """
    known = get_completion_class(shell)
    assert known is not None
    script = known(context.find_root().command, {}, "lbctl", _VARIABLE)
    click.echo(script.source_template % script.source_vars())
