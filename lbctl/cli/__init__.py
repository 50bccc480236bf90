"""The command line.

Each command has its own module, which is imported on demand. Exit codes are also defined here.
"""

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
        "init": ("lbctl.cli.init", "Write an annotated fleet file."),
        "import": ("lbctl.cli.import_", "Convert an nginx, HAProxy or Envoy configuration to a fleet file."),
        "validate": ("lbctl.cli.validate", "Check a fleet and report all errors in one run."),
        "lint": ("lbctl.cli.lint", "Report configuration that is valid but risky for inference."),
        "rule": ("lbctl.cli.rule", "Explain a diagnostic code."),
        "schema": ("lbctl.cli.schema", "Print the JSON Schema of a fleet file."),
        "key": ("lbctl.cli.key", "Create API keys."),
    },
    "Render": {
        "render": ("lbctl.cli.render", "Render the configuration of a proxy or Kubernetes gateway."),
        "diff": ("lbctl.cli.diff", "Show how a change affects pools, traffic and settings."),
        "bootstrap": ("lbctl.cli.bootstrap", "Print a bootstrap configuration for Envoy."),
    },
    "Run": {
        "up": ("lbctl.cli.up", "Run serve and a local proxy until Ctrl-C."),
        "serve": ("lbctl.cli.serve", "Run the control plane."),
        "picker": ("lbctl.cli.picker", "Run a picker on a machine without serve."),
        "agent": ("lbctl.cli.agent", "Report the health of an engine and its GPUs."),
        "demo": ("lbctl.cli.demo", "Run a demo on this machine, without a GPU."),
    },
    "Operate": {
        "reload": ("lbctl.cli.reload", "Reload the fleet's files in a running lbctl serve."),
        "drain": ("lbctl.cli.overrides:drain", "Drain a replica: it finishes its requests and gets no new ones."),
        "undrain": ("lbctl.cli.overrides:undrain", "End a drain or a deep-health ejection."),
        "weight": ("lbctl.cli.overrides:weight", "Override the weight of a replica."),
        "freeze": ("lbctl.cli.overrides:freeze", "Freeze the weights of a pool."),
        "unfreeze": ("lbctl.cli.overrides:unfreeze", "Unfreeze the weights of a pool."),
        "split": ("lbctl.cli.overrides:split", "Override the split of a route."),
        "rollout": ("lbctl.cli.rollout", "Shift a route's traffic to one pool in steps."),
        "history": ("lbctl.cli.history:history", "List previously published fleets."),
        "rollback": ("lbctl.cli.history:rollback", "Publish an earlier fleet again until the files change."),
    },
    "Observe": {
        "status": ("lbctl.cli.status", "Show the state of serve, its proxies and its pools."),
        "top": ("lbctl.cli.top", "Show a live table of replicas."),
        "explain": ("lbctl.cli.explain", "Explain routing, picking and weights."),
        "audit": ("lbctl.cli.audit", "Show the audit log and verify its integrity."),
        "xds": ("lbctl.cli.xds", "Show the xDS resources that a proxy would receive."),
        "doctor": ("lbctl.cli.doctor", "Check this machine and the fleet for problems."),
    },
    "Plan": {
        "simulate": ("lbctl.cli.simulate", "Simulate how a pool handles a request trace."),
        "gpus": ("lbctl.cli.gpus", "Print the built-in GPU table."),
    },
    "Other": {
        "completion": ("lbctl.cli.completion", "Print a shell completion script."),
        "help": ("lbctl.cli.help", "Show help for a command, or list all environment variables."),
        "version": ("lbctl.cli.version", "Print the versions of lbctl, Python and its dependencies."),
    },
}
"""Maps each section of the help to its commands. An entry contains a module and a help text, so that commands can be
listed without importing anything. The module can be followed by a colon and the name of the command object (default:
`command`)."""
_COMMANDS = {name: entry for commands in _GROUPS.values() for name, entry in commands.items()}
_USAGE = "See `lbctl help COMMAND` and `lbctl help environment`."


class _Commands(click.Group):
    """A group that lists its commands without importing their modules."""

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
        """Return the matching names without importing any module, because completion must be fast."""
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
    """Load balancing for GPU model serving on nginx, HAProxy and Envoy."""


def main() -> None:
    """Run lbctl, and exit with the exit code that `run` returns."""
    gc.set_threshold(100_000, 50)  # a fleet lives until exit; collecting it would take a fifth of the time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # otherwise, pydantic searches all packages
    code = run(sys.argv[1:])
    gc.freeze()  # the collection at exit would take 0.25 s with xDS messages
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
    except Exception:  # noqa: BLE001 -- last resort: report any other exception as a bug in lbctl
        traceback.print_exc()
        click.echo("lbctl: internal error; please report it with the lines above", err=True)
        return 70
