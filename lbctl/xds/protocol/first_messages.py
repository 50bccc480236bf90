"""Limits the memory used by incomplete first messages of calls.

gRPC allocates memory for an entire message as soon as a call waits for it, and keeps the part received so far. A client
with many calls could fill the memory with messages that never complete. Therefore, only a few calls may wait at a time.
For each other call, gRPC keeps at most a window of 64 KiB. While a client with fewer turns is waiting, a turn ends soon
after `TURN`, and the client with the fewest turns gets the next one. Clients with incomplete messages therefore delay
other clients only briefly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import grpc

from lbctl.xds.protocol.call import Call
from lbctl.xds.protocol.shares import Shares

TURN = 0.05
"""Seconds after which a call's turn may end. The turn ends at the second check at the latest."""
_CROWDED = "too many calls are waiting for their first message"

T = TypeVar("T")


class CrowdedError(Exception):
    """The call must end, because too many calls are waiting for their first message."""

    def __init__(self) -> None:
        super().__init__(_CROWDED)


class FirstMessages:
    """A server's calls that are waiting for their first message or for their turn to read it."""

    def __init__(self, reading: int, waiting: int = 256) -> None:
        """Start without any calls.

        `reading`: maximum number of calls that read a message at the same time. `waiting`: maximum number of calls that
        wait for their turn.
        """
        self._max_reading, self._max_waiting = reading, waiting
        self._reading: Shares[Call] = Shares()
        self._waiting: Shares[Call] = Shares()
        self._turns: dict[Call, asyncio.Future[None]] = {}
        """Maps a waiting call to the future that starts its turn."""
        self._looks: dict[Call, int] = {}
        """Maps a reading call to the number of checks that have found it reading."""
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, client: Hashable, call: Call, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`, which is called when it is the call's turn.

        Raises CrowdedError if there are too many calls.
        """
        if len(self._reading) < self._max_reading:
            self._begin(client, call)
        else:
            await self._turn(client, call)
        try:
            return await read()
        finally:
            self._end(client, call)

    async def _turn(self, client: Hashable, call: Call) -> None:
        """Wait for the turn of the call. The turn has started when this returns."""
        turn = self._turns[call] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, call)
        if len(self._waiting) > self._max_waiting:
            self._drop()
        self._look_later()
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.pop(call, None)
            if not self._waiting.discard(client, call):
                self._end(client, call)
            raise

    def _begin(self, client: Hashable, call: Call) -> None:
        self._reading.add(client, call)
        self._looks[call] = 0

    def _end(self, client: Hashable, call: Call) -> None:
        """End a turn, and give free turns to the clients that have the fewest."""
        if self._reading.discard(client, call):
            del self._looks[call]
        while self._waiting and len(self._reading) < self._max_reading:
            chosen = min(self._waiting.clients(), key=self._reading.of)
            self._pass_to(chosen, self._waiting.items(chosen)[0])

    def _pass_to(self, client: Hashable, call: Call) -> None:
        self._waiting.discard(client, call)
        turn = self._turns.pop(call)
        if not turn.done():
            self._begin(client, call)
            turn.set_result(None)

    def _drop(self) -> None:
        """End the oldest call of the client with the most waiting calls."""
        client = self._waiting.largest()
        call = self._waiting.items(client)[0]
        self._waiting.discard(client, call)
        turn = self._turns.pop(call)
        if not turn.done():
            turn.set_exception(CrowdedError())

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN, self._look)

    def _look(self) -> None:
        """End the turns of clients that have more than a waiting client, when a second check finds them.

        The event loop may have been too busy to process a call before the first check that finds it.
        """
        self._timer = None
        if not self._waiting:
            return
        fewest = min(map(self._reading.of, self._waiting.clients()))
        for client in self._reading.clients():
            if self._reading.of(client) > fewest:
                for call in self._reading.items(client):
                    self._look_at(call)
        self._look_later()

    def _look_at(self, call: Call) -> None:
        self._looks[call] += 1
        if self._looks[call] == 2:
            call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, _CROWDED)
