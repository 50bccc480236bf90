"""Limits how many questions of gateways wait for their body, and the bytes that they hold.

At a limit the oldest question ends of the connection with most. A gateway whose question ends without an answer sends
the request on as it does without a picker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import grpc

from lbctl.xds.protocol.call import Call
from lbctl.xds.protocol.shares import Shares

MAX_QUESTIONS = 1_024
"""Questions that wait for their body at once. gRPC holds a part of a message for each."""
MAX_HELD_BYTES = 16 << 20
TIMEOUT = 60.0
"""Seconds in which the body of a question must come, as far as it is read."""


class UnfinishedQuestions:
    """The calls whose question has begun and not ended."""

    def __init__(self, most: int = MAX_QUESTIONS, held: int = MAX_HELD_BYTES) -> None:
        self._max_questions, self._max_held = most, held
        self._calls: Shares[Call] = Shares()
        self._held: dict[Call, int] = {}
        """Call → the bytes of its question."""
        self._held_bytes = 0
        self._timers: dict[Call, asyncio.TimerHandle] = {}

    def add(self, client: Hashable, call: Call, size: int) -> None:
        """Add bytes to the question of a client's call, which has begun with the first ones."""
        if call not in self._held:
            if len(self._calls) >= self._max_questions:
                self._end_one(f"more than {self._max_questions} questions wait for their body")
            self._calls.add(client, call)
            self._held[call] = 0
            reason = f"no body within {TIMEOUT:g} seconds"
            self._timers[call] = asyncio.get_running_loop().call_later(TIMEOUT, self._end, client, call, reason)
        self._held[call] += size
        self._held_bytes += size
        while self._held_bytes > self._max_held:
            self._end_one(f"questions that wait for their body take more than {self._max_held >> 20} MiB")

    def leave(self, client: Hashable, call: Call) -> None:
        """Note that the question of a call is complete, or that the call has ended."""
        if self._calls.discard(client, call):
            self._held_bytes -= self._held.pop(call)
            self._timers.pop(call).cancel()

    def _end_one(self, reason: str) -> None:
        client = self._calls.largest()
        self._end(client, self._calls.items(client)[0], reason)

    def _end(self, client: Hashable, call: Call, reason: str) -> None:
        self.leave(client, call)
        call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
