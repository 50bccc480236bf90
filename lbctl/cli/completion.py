"""`lbctl completion`, which prints a script that lets a shell complete commands, options, choices and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lbctl.cli.command import Command

_VARIABLE = "_LBCTL_COMPLETE"
"""Environment variable that the script sets when it calls lbctl. click derives the variable's name from the program
name."""
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command, examples="source <(lbctl completion bash)")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    To load the script, add one of these lines to your shell configuration:

    \b
    bash: source <(lbctl completion bash)          in ~/.bashrc
    zsh:  source <(lbctl completion zsh)           in ~/.zshrc, after compinit
    fish: lbctl completion fish > \\
              ~/.config/fish/completions/lbctl.fish
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    completion = completion_class(context.find_root().command, {}, "lbctl", _VARIABLE)
    click.echo(completion.source_template % completion.source_vars())
