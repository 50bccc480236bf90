"""The command line: each command is a module, which is imported when it is called. It also defines the exit codes."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

import click

from lbctl import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Author": {
        "init": ("lbctl.cli.init", "An annotated fleet file, from nothing or from what servers say."),
        "import": ("lbctl.cli.import_", "A fleet file from a configuration of nginx, HAProxy or Envoy."),
        "validate": ("lbctl.cli.validate", "Check a fleet: every error in one run."),
        "lint": ("lbctl.cli.lint", "What is legal and unwise for inference."),
        "rule": ("lbctl.cli.rule", "What a code means, offline."),
        "schema": ("lbctl.cli.schema", "The JSON Schema of a fleet file."),
        "key": ("lbctl.cli.key", "A new API key for a tenant."),
    },
    "Render": {
        "render": ("lbctl.cli.render", "The configuration of nginx, HAProxy or Envoy."),
        "diff": ("lbctl.cli.diff", "What a change does: replicas, shares of traffic, requests, settings."),
        "bootstrap": ("lbctl.cli.bootstrap", "The Envoy bootstrap that connects to serve."),
    },
    "Run": {
        "up": ("lbctl.cli.up", "From a fleet file to a URL: serve and a proxy of this machine together."),
        "serve": ("lbctl.cli.serve", "The control plane: watches the fleet and drives Envoy by xDS."),
        "picker": ("lbctl.cli.picker", "Pick replicas for the proxies of a machine that is not that of serve."),
        "demo": ("lbctl.cli.demo", "The whole loop without a GPU: faults, and figures beside static weights."),
    },
    "Operate": {
        "reload": ("lbctl.cli.reload", "Have a running serve read its files now."),
        "drain": ("lbctl.cli.overrides:drain", "Send nothing new to a replica."),
        "undrain": ("lbctl.cli.overrides:undrain", "End a drain, or what deep health holds against a replica."),
        "weight": ("lbctl.cli.overrides:weight", "Hold the weight of a replica by hand."),
        "freeze": ("lbctl.cli.overrides:freeze", "Keep the weights of a pool as they are."),
        "unfreeze": ("lbctl.cli.overrides:unfreeze", "Let the weights of a pool move again."),
        "split": ("lbctl.cli.overrides:split", "Hold the split of a route by hand."),
        "rollout": ("lbctl.cli.rollout", "Move a split to one pool, step by step."),
        "history": ("lbctl.cli.history:history", "The fleets that a running serve has served."),
        "rollback": ("lbctl.cli.history:rollback", "Serve an earlier fleet again, until the files change."),
    },
    "Observe": {
        "status": ("lbctl.cli.status", "What a running serve does, and what each proxy has of it."),
        "top": ("lbctl.cli.top", "The replicas of a running serve, live, sorted, with keys."),
        "explain": ("lbctl.cli.explain", "Why a request takes its route, why a replica has its weight."),
        "audit": ("lbctl.cli.audit", "Who did what, and whether the log of it is whole."),
        "xds": ("lbctl.cli.xds", "What a proxy would receive from any xDS server."),
        "doctor": ("lbctl.cli.doctor", "What on this machine keeps lbctl or a fleet from running."),
    },
    "Plan": {
        "simulate": ("lbctl.cli.simulate", "What a trace of requests would meet at a pool, for each algorithm."),
        "gpus": ("lbctl.cli.gpus", "The built-in GPU table, with sources."),
    },
    "Other": {
        "completion": ("lbctl.cli.completion", "What makes a shell complete commands and options."),
        "help": ("lbctl.cli.help", "Show help for a command, or list all environment variables."),
        "version": ("lbctl.cli.version", "The version of lbctl, of Python, and of what it is made of."),
    },
}
"""Maps a section of the help to its commands: the module of each (`command` in it, or the name after the colon), and
its help, which needs no import."""
_COMMANDS = {name: entry for commands in _GROUPS.values() for name, entry in commands.items()}
_USAGE = "Use `lbctl help COMMAND` for a command and `lbctl help environment` for variables."


class _Commands(click.Group):
    """Lists the commands and their help, and imports a command's module only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names without importing the modules, because a shell asks at every key."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from lbctl.base.diagnostics import did_you_mean

            hint = did_you_mean(args[0], _COMMANDS)
            ctx.fail(f"unknown command {args[0]!r}" + (f" ({hint})" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = max(map(len, _COMMANDS))
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        formatter.write_paragraph()
        formatter.write_text(_USAGE)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="lbctl %(version)s")
def group() -> None:
    """One declarative model of a GPU inference fleet, rendered to nginx, HAProxy and Envoy."""


def main() -> None:
    """Run the program. It never returns: it exits with one of the exit codes of `run`."""
    gc.set_threshold(100_000, 50)  # a fleet lives to the end; collecting it takes a fifth of the time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # pydantic would search every installed package
    code = run(sys.argv[1:])
    gc.freeze()  # a last collection at exit takes a quarter of a second with xDS messages
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        return int(group.main(args, prog_name="lbctl", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 64
    except click.UsageError as error:
        error.show()
        return 64
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001 -- the last line of defence: an error of ours, shown as such
        traceback.print_exc()
        click.echo("lbctl: this is an error in lbctl itself; please report it with the lines above", err=True)
        return 70
