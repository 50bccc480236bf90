"""Limits the memory for the first messages of calls that have not come completely.

gRPC makes room for a whole message as soon as a call waits for it, and keeps what has come of it. A client with many
calls could so fill the memory with messages that never end. Here few calls wait at once; of each other call gRPC keeps
a window of 64 KiB at most. While a client with fewer turns waits, a turn ends soon after `TURN`, and the client with
fewest turns gets the next one, so that clients whose messages do not end delay nobody else for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import grpc

from lbctl.xds.protocol.call import Call
from lbctl.xds.protocol.shares import Shares

TURN = 0.05
"""Seconds after which the turn of a call may end. It ends after the next such time at the latest."""
_CROWDED = "too many calls wait for their first message"

T = TypeVar("T")


class CrowdedError(Exception):
    """A call must end, since too many others wait as it does."""

    def __init__(self) -> None:
        super().__init__(_CROWDED)


class FirstMessages:
    """The calls of a server that wait for their first message, or for their turn to do so."""

    def __init__(self, reading: int, waiting: int = 256) -> None:
        """`reading`: how many wait for a message at once, `waiting`: how many for their turn."""
        self._max_reading, self._max_waiting = reading, waiting
        self._reading: Shares[Call] = Shares()
        self._waiting: Shares[Call] = Shares()
        self._turns: dict[Call, asyncio.Future[None]] = {}
        """Call that waits → what tells it that it is its turn."""
        self._looks: dict[Call, int] = {}
        """Call that reads → how many times its turn was found to last."""
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, client: Hashable, call: Call, read: Callable[[], Awaitable[T]]) -> T:
        """Return what `read` does, once it is the turn of the client's call.

        Raises CrowdedError for a call too many.
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
        """Wait for the turn of the call. It has begun when this returns."""
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
        """End a turn, and give the free ones to the clients with fewest."""
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
        """End the oldest call of the client that waits with most."""
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
        """End the turns of clients that have more than one that waits, once this has found them for the second time.

        The event loop may have been too busy for those that it finds for the first time.
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
