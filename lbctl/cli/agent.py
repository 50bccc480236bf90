"""`lbctl agent`: reports the health of an engine and its GPUs, and drains it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from lbctl.agent.settings import ENGINE_KINDS, NO_PAGE
from lbctl.base.errors import reason_of
from lbctl.base.quantities import QuantityError, parse_duration, parse_percent, parse_size
from lbctl.cli.agent_control import drain, readmit, state_directory, state_option
from lbctl.cli.command import Group
from lbctl.cli.listen_address import address
from lbctl.cli.options import options_of
from lbctl.signals.signal import FATAL_XIDS

if TYPE_CHECKING:
    from lbctl.agent.settings import AgentSettings, EngineRequest
    from lbctl.ir.address import Address

_DEFAULT_BIND = "127.0.0.1:9500"
_MAX_REQUEST_BYTES = 64 << 10
_LAST_PORT = 65_535
_DEVICES = re.compile(r"[A-Za-z0-9:/_-]+(,[A-Za-z0-9:/_-]+)*", re.ASCII)
_XIDS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*", re.ASCII)
_PATH = re.compile(r"/[!-~]*", re.ASCII)
_NONE = "none"
_option = options_of("agent")
_T = TypeVar("_T")


@click.group(
    "agent",
    cls=Group,
    invoke_without_command=True,
    examples="""
    lbctl agent --engine http://127.0.0.1:8000 --kind vllm --devices 0,1
    # Take the engine on this machine from the fleet, and admit proxies:
    lbctl agent --fleet fleet/ --allow 10.0.0.0/24
    # Before the engine is stopped:
    lbctl agent drain --wait 5m
    """,
)
@_option("--engine", metavar="URL", help="URL of the engine, for example http://127.0.0.1:8000.")
@_option(
    "--kind", metavar="KIND", type=click.Choice((*ENGINE_KINDS, NO_PAGE)),
    help="Kind of the engine's metrics page, for example vllm, or none. Default: detected from the page.",
)  # fmt: skip
@_option("--devices", metavar="LIST", help="GPUs of the engine, for example 0,1, or none. Default: all GPUs.")
@_option("--fleet", metavar="PATH", multiple=True, help="Fleet that defines the engine; can be repeated.")
@_option("--replica", metavar="POOL/NAME", help="Replica in the fleet. Default: the replica on this machine.")
@_option(
    "--bind", metavar="ADDRESS",
    help=f"HTTP listen address; HAProxy agent checks use the next port. Default: {_DEFAULT_BIND}.",
)  # fmt: skip
@_option(
    "--allow", metavar="NETWORK", multiple=True,
    help="Network whose clients may connect, for example 10.0.0.0/24; can be repeated. Required on non-loopback "
    "addresses, unless TLS and a token are set.",
)  # fmt: skip
@_option("--tls-cert", metavar="FILE", help="Certificate for HTTP.")
@_option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@_option("--token-file", metavar="FILE", help="File with the token required for HTTP requests.")
@_option("--health-path", metavar="/PATH", help="Path of the engine's health check. Default: /health.")
@_option("--key-file", metavar="FILE", help="File with the API key of the engine.")
@_option(
    "--warmup", metavar="N", type=click.IntRange(0, 1000),
    help="Number of requests that a new engine must answer before it is healthy. Default: 0.",
)  # fmt: skip
@_option("--probe", is_flag=True, help="Request one token every 30s while the engine is idle.")
@_option(
    "--request", metavar="FILE",
    help="JSON body of the requests for --warmup and --probe. Default: one token of the engine's first model.",
)  # fmt: skip
@_option(
    "--fatal-xids",
    metavar="LIST",
    help=f"XID errors that make the replica unhealthy. Default: {','.join(map(str, FATAL_XIDS))}.",
)
@_option(
    "--min-free-memory", metavar="SIZE", help="Minimum free memory of each GPU, for example 2GiB. Default: no limit."
)
@_option(
    "--max-slowdown", metavar="PERCENT",
    help="Share of the clock rate that a GPU may lose because of heat. Default: 50%.",
)  # fmt: skip
@_option(
    "--stalled-after", metavar="DURATION",
    help="Time without progress after which a busy engine is considered unhealthy. Default: 15s.",
)  # fmt: skip
@_option(
    "--drain-deadline", metavar="DURATION", help="Maximum duration of the drain after SIGTERM. Default: 5m."
)  # fmt: skip
@state_option
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Report the health of an engine and its GPUs.

    Run the agent next to the engine. Once a second, it polls the GPUs, the engine's metrics and its health check.
    It serves health checks at /health, metrics at /metrics, and HAProxy agent checks on the next port.

    After SIGTERM, it reports the replica as draining, waits for its requests to finish, and exits.
    """
    if context.invoked_subcommand is None:
        _replace_process(settings(options))
    else:
        _reject_options(context)
    return 0


def _reject_options(context: click.Context) -> None:
    """Reject options before a subcommand, because they would have no effect. Raises UsageError."""
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    option = next((item.opts[0] for item in context.command.params if item.name in given), None)
    if option is not None:
        raise click.UsageError(f"{option} must come after the subcommand {context.invoked_subcommand}")


command.add_command(drain)
command.add_command(readmit)


def settings(options: Mapping[str, Any]) -> AgentSettings:
    """Return the settings from the options, which take precedence over the fleet. Raises ClickException."""
    from lbctl.agent.access import check_address, refusal
    from lbctl.agent.settings import AgentSettings

    given = {name: value for name, value in _given(options).items() if value is not None}
    if options["fleet"]:
        from lbctl.cli.agent_fleet import fleet_settings

        given = {**fleet_settings(options["fleet"], options["replica"], given), **given}
    elif options["replica"]:
        raise click.UsageError("--replica requires --fleet")
    if "engine" not in given:
        raise click.UsageError("set --engine to the URL of the engine, or --fleet to its fleet")
    if "key_file" in given:
        given.setdefault("key_prefix", "Bearer ")
    bind = given.pop("bind", None) or _bind(_DEFAULT_BIND)
    allow = given.get("allow", ())
    found = AgentSettings(
        **{
            "kind": "",
            "bind": bind,
            "check_bind": check_address(bind, allow),
            "state": str(state_directory(options["state"], os.environ)),
            **given,
        }
    )
    if bool(found.tls_cert) != bool(found.tls_key):
        raise click.UsageError("set both --tls-cert and --tls-key")
    if problem := refusal(found):
        raise click.UsageError(f"--bind: {problem}")
    return found


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Map each setting name to the value from its option, or to None if the option is not set."""
    return {
        "engine": _parsed("engine", options, _engine),
        "kind": options["kind"],
        "devices": _parsed("devices", options, _devices),
        "bind": _parsed("bind", options, _bind),
        "allow": _networks(options["allow"]) or None,
        "tls_cert": _parsed("tls_cert", options, _file),
        "tls_key": _parsed("tls_key", options, _file),
        "token_file": _parsed("token_file", options, _token_file),
        "health_path": _parsed("health_path", options, _path),
        "key_file": _parsed("key_file", options, _file),
        "warmup": options["warmup"],
        "probe": options["probe"],
        "request": _parsed("request", options, _request),
        "fatal_xids": _parsed("fatal_xids", options, _xids),
        "min_free_memory": _parsed("min_free_memory", options, lambda text: int(parse_size(text))),
        "max_slowdown": _parsed("max_slowdown", options, _share),
        "stalled_after": _parsed("stalled_after", options, seconds),
        "drain_deadline": _parsed("drain_deadline", options, seconds),
    }


def _parsed(name: str, options: Mapping[str, Any], parse: Callable[[str], _T]) -> _T | None:
    """Parse the value of an option, or return None if it is not set. Raises UsageError."""
    text = options[name]
    if text is None:
        return None
    option = f"--{name.replace('_', '-')}"
    try:
        return parse(text)
    except QuantityError as error:
        raise click.UsageError(f"{option}: {error}" + (f" ({error.hint})" if error.hint else "")) from None
    except OSError as error:
        raise click.ClickException(f"{option}: {text}: {reason_of(error)}") from None


def seconds(text: str) -> float:
    """Parse a duration. Raises QuantityError."""
    return parse_duration(text) / 1000


def _engine(text: str) -> str:
    hint = "for example http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise QuantityError(f"{text!r} is not a URL", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise QuantityError(f"{text!r} is not the URL of an engine", hint)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise QuantityError("the URL must consist of scheme, host and port", hint)
    return f"{parts.scheme}://{parts.netloc}"


def _devices(text: str) -> tuple[str, ...]:
    if text == _NONE:
        return ()
    if not _DEVICES.fullmatch(text):
        raise QuantityError(f"{text!r} is not a list of GPUs", "for example 0,1 or 0:3 for a MIG slice, or none")
    return tuple(text.split(","))


def _bind(text: str) -> Address:
    place = address("--bind", text)
    if place is None or place.path or not 0 < place.port < _LAST_PORT:
        raise QuantityError("the port must be from 1 to 65534", "HAProxy agent checks use the next port")
    return place


def _networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    from lbctl.agent.access import ClientNetworks

    for text in texts:
        try:
            ClientNetworks.parse((text,))
        except ValueError:
            raise click.UsageError(f"--allow: {text!r} is not a network (for example 10.0.0.0/24)") from None
    return texts


def _file(text: str) -> str:
    """Check that the file is readable, and return its path. Raises OSError."""
    with Path(text).open("rb"):
        return text


def _token_file(text: str) -> str:
    """Check that the file contains a token, and return its path. Raises OSError and QuantityError."""
    from lbctl.agent.access import MAX_TOKEN_BYTES, tokens

    with Path(text).open("rb") as opened:
        if not tokens(opened.read(MAX_TOKEN_BYTES)):
            raise QuantityError(f"{text} contains no token", "write one token per line")
    return text


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise QuantityError(f"{text!r} is not a path", "for example /health")
    return text


def _request(text: str) -> EngineRequest:
    """Read a request body, and choose the request path based on its keys. Raises OSError."""
    from lbctl.agent.settings import EngineRequest
    from lbctl.base.foreign_json import InvalidJsonError, parse_object

    with Path(text).open("rb") as opened:
        content = opened.read(_MAX_REQUEST_BYTES + 1)
    if len(content) > _MAX_REQUEST_BYTES:
        raise QuantityError(f"{text} is larger than 64 KiB")
    try:
        keys = parse_object(content)
        body = content.decode()
    except InvalidJsonError as error:
        raise QuantityError(f"{text}:{error.line}:{error.column}: {error}") from None
    except UnicodeDecodeError:
        raise QuantityError(f"{text} is not UTF-8") from None
    if "messages" in keys:
        return EngineRequest("/v1/chat/completions", body)
    return EngineRequest("/v1/embeddings" if "input" in keys else EngineRequest().path, body)


def _xids(text: str) -> tuple[int, ...]:
    if text == _NONE:
        return ()
    if not _XIDS.fullmatch(text):
        raise QuantityError(f"{text!r} is not a list of XID errors", "for example 48,79, or none")
    return tuple(sorted({int(code) for code in text.split(",")}))


def _share(text: str) -> float:
    percent = parse_percent(text)
    if not 0 < percent <= 100:
        raise QuantityError(f"{text} is out of range", "use a percentage above 0% and up to 100%")
    return percent / 100


def _replace_process(found: AgentSettings) -> None:
    """Replace this process with the agent process, which needs less memory than a process that has loaded a fleet.

    `-P` prevents imports from the working directory, to which other users may have write access. Raises ClickException.
    """
    from lbctl.agent.settings_json import encoded

    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "lbctl.agent", encoded(found)])
    except OSError as error:
        raise click.ClickException(f"the agent cannot be started: {reason_of(error)}") from None
