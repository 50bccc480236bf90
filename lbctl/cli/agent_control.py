"""`lbctl agent drain` and `lbctl agent readmit`, which send requests to a running agent over its control socket."""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse_object
from lbctl.base.printable import plain
from lbctl.base.quantities import QuantityError, parse_duration
from lbctl.cli.command import Command
from lbctl.cli.options import options_of

_SOCKET = "agent.sock"
_DIRECTORY = "lbctl-agent"
_RUN = Path("/run")
_TIMEOUT = 10.0
"""Maximum time, in seconds, for the agent to respond, in addition to the requested wait."""
_RESTART_TIMEOUT = 10.0
"""Maximum time, in seconds, for systemd to restart an agent that has exited."""
_RESTART_POLL = 0.2
"""Seconds between attempts to reach the restarted agent."""
_MAX_ANSWER_BYTES = 1 << 20

state_option = options_of("agent")(
    "--state", metavar="DIR", type=click.Path(path_type=Path, readable=False),
    help="Directory for the control socket and saved faults. Default: /run/lbctl-agent.",
)  # fmt: skip


def state_directory(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the state directory: the specified directory, systemd's, or the user's. Raises UsageError."""
    if given is not None:
        return given
    if directories := environment.get("RUNTIME_DIRECTORY"):
        return Path(directories.split(":")[0])
    system = _RUN / _DIRECTORY
    if os.access(system if system.exists() else _RUN, os.W_OK | os.X_OK):
        return system
    if user := environment.get("XDG_RUNTIME_DIR"):
        return Path(user) / _DIRECTORY
    raise click.UsageError(f"{system} is not writable, and XDG_RUNTIME_DIR is not set: set --state")


@click.command("drain", cls=Command, examples="lbctl agent drain --wait 2m")
@options_of("agent_drain")(
    "--wait", metavar="DURATION", default="5m", show_default=True,
    help="Maximum time to wait for the requests in flight.",
)  # fmt: skip
@state_option
def drain(wait: str, state: Path | None) -> int:
    """Report the replica as draining, and wait until its requests have finished.

    The command waits until the engine has no requests in flight and the proxies have noticed the drain. It exits with 0
    even if the maximum time has passed. The drain lasts until you run `lbctl agent readmit` or the engine restarts.
    """
    try:
        seconds = parse_duration(wait) / 1000
    except QuantityError as error:
        raise click.UsageError(f"--wait: {error} ({error.hint})") from None
    try:
        answer = _drain(state_directory(state, os.environ), seconds)
    except KeyboardInterrupt:
        raise click.ClickException("the replica is still draining (`lbctl agent readmit` ends the drain)") from None
    click.echo(f"lbctl: {_drained(answer)}", err=True)
    return 0


@click.command("readmit", cls=Command, examples="lbctl agent readmit")
@state_option
def readmit(state: Path | None) -> int:
    """End a drain and clear saved GPU faults."""
    answer = ask(state_directory(state, os.environ), "/readmit", b"{}", 0.0)
    reasons = [item.get("message") for item in answer.get("reasons") or () if isinstance(item, dict)]
    listed = f": {plain('; '.join(map(str, reasons)))}" if reasons else ""
    click.echo(f"lbctl: the replica is {plain(str(answer.get('state'))).replace('_', ' ')}{listed}", err=True)
    return 0


def _drain(directory: Path, wait: float) -> Mapping[str, Any]:
    """Drain the replica, and return the agent's response.

    If the agent exits in the meantime, repeat the drain after the restart. Otherwise, the engine would be stopped while
    requests are still in flight.
    """
    end = time.monotonic() + wait
    restarted_by = -math.inf
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return ask(directory, "/drain", json.dumps({"wait": left}).encode(), left)
        except AgentEndedError as error:
            if not left:
                raise
            restarted_by = time.monotonic() + _RESTART_TIMEOUT
            click.echo(f"lbctl: {error.message}; waiting for its restart", err=True)
        except NoAgentError:
            if time.monotonic() >= restarted_by:
                raise
        time.sleep(_RESTART_POLL)


def _drained(answer: Mapping[str, Any]) -> str:
    """Return a message that describes how the wait ended."""
    waited, in_flight = answer.get("waited_s"), answer.get("in_flight")
    if answer.get("ended"):
        return "the drain was ended by `lbctl agent readmit`, or by a restart of the engine"
    if in_flight is None:
        state = "the number of requests in flight is unknown, because the engine has no metrics page"
    elif in_flight:
        state = f"{in_flight} request{'s are' if in_flight != 1 else ' is'} in flight"
    elif answer.get("drained"):
        state = "no request is in flight"
    else:
        state = "no request is in flight, but not all proxies have noticed the drain yet"
    return f"{'drained' if answer.get('drained') else 'not drained'} after {waited} s: {state}"


class AgentError(click.ClickException):
    """The agent is unreachable, or has rejected the request."""


class NoAgentError(AgentError):
    """No agent is listening on the socket."""


class AgentEndedError(AgentError):
    """The agent exited before it responded."""


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket instead of a TCP port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(state: Path, target: str, body: bytes, wait: float) -> Mapping[str, Any]:
    """Send a request to the agent that uses this state directory, and return its response. Raises AgentError."""
    path = state / _SOCKET
    connection = _Connection(path, wait + _TIMEOUT)
    try:
        connection.request("POST", target, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = parse_object(response.read(_MAX_ANSWER_BYTES))
    except (FileNotFoundError, ConnectionRefusedError):
        hint = "start it, or set --state to its state directory"
        raise NoAgentError(f"no agent is listening at {path} ({hint})") from None
    except PermissionError:
        hint = "run the command as the agent's user"
        raise AgentError(f"{path}: permission denied ({hint})") from None
    except TimeoutError:
        raise AgentError(f"the agent at {path} did not answer in time") from None
    except ConnectionError:
        raise AgentEndedError(f"the agent at {path} has exited") from None
    except OSError as error:
        raise AgentError(f"{path}: {reason_of(error)}") from None
    except (InvalidJsonError, http.client.HTTPException):
        raise AgentError(f"the agent at {path} returned an invalid response") from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise AgentError(f"the agent at {path}: {plain(str(answer.get('error')))}")
    return answer
