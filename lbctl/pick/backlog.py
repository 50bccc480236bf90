"""The prompts sent to one replica that its engine has not computed yet, in the order in which they were sent.

Engines compute prompts in the order of arrival and count first tokens. Each reported count gives the number of the
oldest prompts that are computed, regardless of the picker that sent them. Prompts of other pickers are therefore in the
same queue. Without such reports, prompts leave one by one when their responses begin, and prompts of other pickers are
not kept for long. A proxy may also report the first byte of a response's body, at which the prompt leaves immediately.

`reading` is a second, cautious estimate of the same tokens. It ends by time even if no report arrives, so that it can
delay requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from lbctl.pick.prompt import EMPTY, PromptLength

_HALF_LIFE = 300.0
"""Half-life of a speed measurement, in seconds."""
_MARGIN, _FACTOR, _MAX_READING = 1.0, 2.0, 5.0
"""A prompt counts as unread for at most the first number of seconds, plus the second number multiplied by the time that
its length usually takes, and at most for the third number of seconds: the measured speed is too low if most prompts are
short."""
_FIRST_BYTE_TTL = 30.0
"""Seconds after a replica's last first byte for which its proxies are expected to report more."""
_PEER_DELAY = 0.1
"""Seconds after which another picker's message about a prompt is assumed to have arrived."""
REPORT_TTL = 60.0
"""Seconds without a first-token report after which the picker assumes that the engine does not count first tokens."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A prompt that was sent to the replica."""

    tokens: int
    """Length of the prompt in tokens, excluding tokens cached by the replica."""
    sent: float
    """Time at which the prompt was sent, in seconds."""
    is_own: bool = True
    """Whether this picker sent the prompt."""
    length: PromptLength | None = EMPTY
    """Prompt length estimated from the content, including tokens cached by the replica; None if unknown."""
    read: bool = False
    """Whether the prompt has left the backlog."""
    may_be_unread: bool = False
    """Whether `reading` includes the prompt."""

    def is_sent(self, at: float) -> bool:
        """Return whether the prompt may have been sent by the time `at`."""
        return self.sent <= (at if self.is_own else at + _PEER_DELAY)


class _Speed:
    """Prompt tokens per second, averaged over the last minutes."""

    __slots__ = ("_measured_at", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._seconds = self._measured_at = 0.0

    @property
    def value(self) -> float:
        """The speed; 0 if unknown."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def add(self, tokens: int, seconds: float, now: float) -> None:
        """Add a measurement."""
        decay = 0.5 ** ((now - self._measured_at) / _HALF_LIFE)
        self._tokens, self._seconds = self._tokens * decay + tokens, self._seconds * decay + max(0.0, seconds)
        self._measured_at = now


class Backlog:
    """One replica's prompts. Times are in seconds on one clock."""

    __slots__ = (
        "_counted", "_credit", "_first_at", "_firsts", "_heard", "_is_followed", "_read_by", "_reading",
        "_reading_speed", "_reading_tokens", "_speed", "_stopped_until", "_waiting", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = 0
        """Total number of tokens in the backlog's prompts."""
        self._waiting: deque[Prompt] = deque()
        self._counted: float | None = None
        self._heard = -inf
        self._credit: list[Prompt] = []
        """Number of prompts removed because their requests have begun or ended. The engine's next count includes
        them."""
        self._firsts: deque[tuple[float, Prompt]] = deque()
        """First-byte times that the engine's last count did not include, with their prompts."""
        self._speed = _Speed()
        self._reading_speed = _Speed()
        """Speed without the time for which a prompt waits for the ones in front of it."""
        self._reading: deque[Prompt] = deque()
        """Prompts that may be unread, and others behind them that are read. The first one may be unread."""
        self._is_followed = False
        """Whether `reading` has been called."""
        self._reading_tokens = 0
        self._read_by = -inf
        """Time at which they are expected to be read."""
        self._first_at = -inf
        """Time of the last first byte."""
        self._stopped_until = -inf

    @property
    def is_counted(self) -> bool:
        """Whether the engine counts first tokens."""
        return self._counted is not None

    def add(self, tokens: int, now: float, is_own: bool = True, length: PromptLength | None = EMPTY) -> Prompt:
        """Add a prompt that is about to be sent."""
        prompt = Prompt(tokens, now, is_own, length)
        self._waiting.append(prompt)
        if self._is_followed and tokens:
            prompt.may_be_unread = True
            self._reading.append(prompt)
            self._reading_tokens += tokens
            self._expect_reading(max(self._read_by, now), tokens)
        self.tokens += tokens
        return prompt

    def reading(self, now: float) -> float:
        """Return an estimate of the tokens that the engine still has to compute; 0 while no first bytes are reported.

        It includes only prompts that are sent after the first call, so that other pools do not record anything.

        A prompt counts until its own first byte or the first byte of a later prompt, because engines compute prompts in
        the order of arrival. Between first bytes, the engine is assumed to compute prompts at its usual speed.
        """
        if not self._reading:
            self._is_followed = True
            return 0.0
        speed = self.reading_speed
        if not speed or now - self._first_at >= _FIRST_BYTE_TTL:
            return 0.0
        while self._reading:
            prompt = self._reading[0]
            if now - prompt.sent < min(_MARGIN + _FACTOR * prompt.tokens / speed, _MAX_READING):
                break
            self._leave_reading(prompt)
        return min(self._reading_tokens, max(0.0, self._read_by - now) * speed)

    @property
    def reading_speed(self) -> float:
        """Tokens per second at which the engine is expected to compute prompts; 0 if unknown."""
        return self._reading_speed.value

    def remove(self, prompt: Prompt) -> None:
        """Remove a prompt that has been computed."""
        if not prompt.read:
            prompt.read = True
            self.tokens -= prompt.tokens
            if prompt.may_be_unread:
                self._leave_reading(prompt)
            self._shorten()

    def end(self, prompt: Prompt) -> None:
        """Remove the prompt of a request that has ended. The engine's next count includes it."""
        if self.is_counted and not prompt.read:
            self._credit.append(prompt)
        self.remove(prompt)

    def first_byte(self, prompt: Prompt, now: float) -> None:
        """Remove the prompt of a request whose response body has begun. The engine's next count includes it."""
        if self._is_followed:
            self._follow(prompt, now)
        if not prompt.read:
            if self.is_counted:
                self._firsts.append((now, prompt))
            if prompt.sent > self._stopped_until:
                self._speed.add(prompt.tokens, now - prompt.sent, now)
            self.remove(prompt)

    def stopped(self, until: float) -> None:
        """Do not measure the speed with prompts sent up to `until`, because the engine had stopped."""
        self._stopped_until = until

    def count(
        self, first_tokens: float, now: float, ttft: float | None = None, duration: float = 0.0
    ) -> list[PromptLength] | None:
        """Remove as many of the oldest prompts as the engine has counted since the last report.

        `now`: start time of the report request. `duration`: duration of that request. `ttft`: mean time to first token
        for these prompts, if the engine reports it. All times are in seconds.

        The engine's count includes the `_credit` requests, which have ended or begun since the last report and have
        already been removed. The remaining `_credit` is halved each time, because the engine never counts a request
        that did not produce a first token. The count excludes prompts sent after the report.

        Return the lengths of the counted prompts, or None if they are unknown. They are unknown for the first report,
        after a restart, and if the engine has counted a prompt of unknown length or more prompts than the pickers have
        sent.
        """
        before, self._counted, self._heard = self._counted, first_tokens, now
        if before is None:
            self._remove_of_others(now)  # the first report may already include them
        while self._firsts and self._firsts[0][0] <= now:
            self._credit.append(self._firsts.popleft()[1])
        if before is None or first_tokens < before:
            self._credit.clear()
            return None
        grown = int(first_tokens - before)
        counted, rest = self._credit[:grown], self._credit[grown:]
        self._credit = rest[(len(rest) + 1) // 2 :]
        removed = []
        while len(counted) < grown and self._waiting and self._waiting[0].is_sent(now + duration):
            prompt = self._waiting[0]
            self.remove(prompt)
            removed.append(prompt)
            counted.append(prompt)
        if all(prompt.sent > self._stopped_until for prompt in counted):  # `ttft` is the mean of all of them
            for prompt in removed:
                self._speed.add(prompt.tokens, now - prompt.sent if ttft is None else ttft, now)
        lengths = [prompt.length for prompt in counted if prompt.length is not None]
        return lengths if len(lengths) == grown else None

    @property
    def speed(self) -> float:
        """Prompt tokens per second until the first token, averaged over the last minutes; 0 if unknown."""
        return self._speed.value

    def before(self, at: float) -> int:
        """Return the number of tokens in the prompts sent by the time `at`."""
        return sum(prompt.tokens for prompt in self._waiting if prompt.sent <= at and not prompt.read)

    def limit(self, prompts: int, before: float) -> None:
        """Remove the oldest prompts that other pickers sent before `before`, until at most `prompts` of them remain.

        `prompts` is the number of requests reported by the engine.
        """
        old = [prompt for prompt in self._waiting if prompt.sent < before and not prompt.read]
        others = [prompt for prompt in old if not prompt.is_own]
        for prompt in others[: max(0, len(old) - prompts)]:
            self.remove(prompt)

    def expire(self, now: float) -> None:
        """Remove other pickers' prompts if the engine does not report first tokens."""
        if now - self._heard > REPORT_TTL:
            self._counted = None
            self._credit.clear()
            self._firsts.clear()
            self._remove_of_others(inf)

    def _remove_of_others(self, before: float) -> None:
        """Remove other pickers' prompts that were sent before `before`."""
        for prompt in [prompt for prompt in self._waiting if prompt.sent < before and not prompt.is_own]:
            self.remove(prompt)
        self._waiting = deque(prompt for prompt in self._waiting if not prompt.read)

    def _follow(self, prompt: Prompt, now: float) -> None:
        """Remove a prompt with a first byte, and the earlier ones, from `reading`."""
        since, tokens = self._first_at, self._reading_tokens
        if self._reading:
            since = max(since, self._reading[0].sent)
        while self._reading and self._reading[0].sent <= prompt.sent:
            earlier = self._reading[0]
            self._leave_reading(earlier)
            if earlier is prompt:
                break
        if tokens > self._reading_tokens and since > self._stopped_until:
            self._reading_speed.add(tokens - self._reading_tokens, now - since, now)
        self._first_at = now
        self._expect_reading(now, self._reading_tokens)

    def _expect_reading(self, begin: float, tokens: int) -> None:
        """Expect the engine to compute these tokens from `begin` on."""
        speed = self._reading_speed.value
        self._read_by = begin + (tokens / speed if speed else 0.0)

    def _leave_reading(self, prompt: Prompt) -> None:
        """Remove a prompt from `reading`."""
        if prompt.may_be_unread:
            prompt.may_be_unread = False
            self._reading_tokens -= prompt.tokens
        while self._reading and not self._reading[0].may_be_unread:
            self._reading.popleft()

    def _shorten(self) -> None:
        while self._waiting and self._waiting[0].read:
            self._waiting.popleft()
