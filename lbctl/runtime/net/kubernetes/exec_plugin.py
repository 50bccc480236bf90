"""Gets credentials from the program specified in a kubeconfig (`users[].user.exec`), as kubectl does.

Cloud providers issue short-lived tokens this way. The program runs with this process's permissions, without a shell and
without a terminal. Any user who can write to the kubeconfig can therefore run programs here. The credentials are cached
until they expire or the API server rejects them. The program's output and arguments are never logged, because either
may contain a secret.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lbctl.base.bounded import TooLargeError, whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import parse_object
from lbctl.runtime.net.kubernetes.cluster import CallerIdentity, ClusterError, bearer

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT = 30.0
"""Timeout for the program, in seconds."""
MAX_OUTPUT_BYTES = 1 << 20
"""Maximum size of the program's output in bytes."""
_PIECE = 1 << 16
_KILLED = 1.0
"""Seconds to wait for a killed program to exit."""
_MARGIN = 60.0
"""Seconds before its expiry at which a credential stops being used."""


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """The program and its arguments."""

    argv: tuple[str, ...] = field(repr=False)
    """Program (absolute path or name in PATH) and its arguments."""
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables to add to this process's environment, as (name, value) pairs."""
    api_version: str = API_VERSIONS[0]
    """Version of ExecCredential written by the program."""
    cluster: str = field(default="", repr=False)
    """The cluster as JSON, for programs with `provideClusterInfo`; empty if it is not passed."""
    origin: str = ""
    """Position of the command in the kubeconfig, as file:line:col."""


class ExecPlugin:
    """Credentials provided by a program."""

    def __init__(self, command: ExecCommand, now: Callable[[], float] = time.time, timeout: float = TIMEOUT) -> None:
        """Create the credentials without running the program. `timeout` is in seconds."""
        self._command = command
        self._now = now
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._held: CallerIdentity | None = None
        self._until: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecPlugin) and self._command == other._command

    def __hash__(self) -> int:
        return hash(self._command)

    async def access(self) -> CallerIdentity:
        """Return the cached credentials, or run the program if they have expired. Raises ClusterError."""
        async with self._lock:
            if self._held is None or (self._until is not None and self._now() > self._until - _MARGIN):
                self._held, self._until = self._parse(await self._output())
            return self._held

    def expire(self) -> None:
        """Run the program again for the next request."""
        self._held = None

    async def _output(self) -> bytes:
        command = self._command
        info: dict[str, Any] = {"kind": "ExecCredential", "apiVersion": command.api_version}
        info["spec"] = {"interactive": False, **({"cluster": json.loads(command.cluster)} if command.cluster else {})}
        environment = {**os.environ, **dict(command.environment), "KUBERNETES_EXEC_INFO": json.dumps(info)}
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv, stdin=null, stdout=pipe, stderr=null, env=environment
            )
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be started: {reason_of(error)}") from None
        try:
            async with asyncio.timeout(self._timeout):
                assert process.stdout is not None
                output = await whole(_pieces(process.stdout), MAX_OUTPUT_BYTES)
                await process.wait()
        except TimeoutError:
            raise self._error(f"did not end within {self._timeout:g} s") from None
        except TooLargeError:
            raise self._error(f"wrote more than {MAX_OUTPUT_BYTES >> 20} MiB") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED):
                    await process.wait()
            process._transport.close()  # type: ignore[attr-defined] # a child of the program may have its pipe open
        if process.returncode:
            raise self._error(f"exited with code {process.returncode}; run it manually to see why")
        return output

    def _parse(self, output: bytes) -> tuple[CallerIdentity, float | None]:
        """Return the identity and its expiry, in seconds since the epoch."""
        try:
            credential = parse_object(output)
            status = credential["status"]
            if credential["apiVersion"] != self._command.api_version:
                raise self._error(f"did not return an ExecCredential with apiVersion {self._command.api_version}")
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            token, expiry = status.get("token"), status.get("expirationTimestamp")
            until = datetime.fromisoformat(expiry).timestamp() if expiry else None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise self._error("did not return an ExecCredential") from None
        if not token and not (certificate and key):
            raise self._error("did not return a token or a client certificate")
        pair = (str(certificate), str(key)) if certificate and key else None
        return CallerIdentity(bearer(str(token), "its output") if token else "", pair), until

    def _error(self, problem: str) -> ClusterError:
        return ClusterError(f"{self._command.origin}: the program {self._command.argv[0]} {problem}")


async def _pieces(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await stream.read(_PIECE):
        yield piece
