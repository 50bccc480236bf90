"""Programs that `serve` runs, and HAProxy's questions to its agent check."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from lbctl.apply import agent_check, command
from lbctl.base import foreign_json
from lbctl.ir.address import Address
from lbctl.runtime.net.kubernetes import exec_plugin
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from tests.support.bounds import Case, Reader, kib, mib

_SECONDS = 2.0
_CREDENTIAL = '{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"abc"}}'
_WRITE = "import sys,time\nout = sys.stdout.buffer\n"
_ENDLESS = _WRITE + "while True: out.write(b'x' * 65536)"
_SLOW = _WRITE + "while True: out.write(b'x'); out.flush(); time.sleep(0.1)"


def _credential(program: str) -> Case:
    async def case() -> bool:
        plugin = exec_plugin.ExecPlugin(exec_plugin.ExecCommand((sys.executable, "-c", program)), timeout=_SECONDS)
        try:
            return bool((await plugin.access()).authorization)
        except ClusterError:
            return False

    return case


def _writes(text: str) -> str:
    return f"print({text!r})"


def _run(program: str) -> Case:
    async def case() -> bool:
        done = await command.run((sys.executable, "-c", program), _SECONDS)
        assert len(done.output) < 3 * command.KEPT
        return done.code == 0

    return case


def _question(text: bytes, repeated: bytes = b"", pause: float = 0.0) -> Case:
    """Return the case in which a client sends this text to the agent check.

    It returns whether a replica's answer came.
    """

    async def case() -> bool:
        server = agent_check.AgentCheckServer()
        place = Address("127.0.0.1", 0)
        server._lines, server._names = {"llama/a": b"up ready 100%\n"}, {"llama/a": "llama/a"}
        assert await server._listen(place) == ""
        reader, writer = await asyncio.open_connection(*server._servers[place].sockets[0].getsockname())
        try:
            writer.write(text)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    while repeated:
                        writer.write(repeated)
                        await writer.drain()
                        await asyncio.sleep(pause)
            with suppress(OSError):
                return (await reader.read()).startswith(b"up")
            return False
        finally:
            writer.transport.abort()
            await server.close()

    return case


READERS = (
    Reader(
        "kubeconfig credential program",
        f"{mib(exec_plugin.MAX_OUTPUT_BYTES)}, {foreign_json.MAX_DEPTH} levels, {exec_plugin.TIMEOUT:g} s",
        _credential(_writes(_CREDENTIAL)),
        {
            "endless output": _credential(_ENDLESS),
            "slow": _credential(_SLOW),
            "deep": _credential("print('[' * 200_000)"),
            "malformed": _credential(_writes("x")),
            "malformed types": _credential(_writes(_CREDENTIAL.replace('{"token":"abc"}', "[1]"))),
            "malformed token": _credential(_writes(_CREDENTIAL.replace("abc", "a\\nb"))),
        },
        2 * _SECONDS,
    ),
    Reader(
        "output of other programs",
        f"{kib(command.KEPT)} of its beginning and as much of its end, a time limit for each program",
        _run("print('fine')"),
        {"endless output": _run(_ENDLESS), "slow": _run(_SLOW), "malformed": _run("raise SystemExit(1)")},
        2 * _SECONDS,
    ),
    Reader(
        "HAProxy's agent check, request",
        f"{agent_check.MAX_QUESTION_BYTES} B, {agent_check.NAME_TIMEOUT:g} s",
        _question(b"llama/a 1\n"),
        {
            "endless line": _question(b"", b"x" * 65_536),
            "slow": _question(b"", b"x", 0.1),
            "malformed": _question(b"\xff\0 \n"),
            "malformed name": _question(b"other/b 1\n"),
            "malformed number": _question(b"llama/a " + b"9" * 3000 + b"\n"),
        },
        3 * _SECONDS,
        ignores=frozenset({"malformed number"}),
    ),
)
