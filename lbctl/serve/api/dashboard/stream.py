"""One browser's position in the stream.

The browser first gets the complete state and then each frame. A browser that is too slow gets the complete state again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from lbctl.serve.api.dashboard.frames import GZIP_HEADER, Frame

_WAITING = 4
"""Maximum number of frames queued for a slow browser; if there are more, the browser gets the complete state when it
resumes reading."""


class FrameStream:
    """The frames that have not yet been sent to one browser. `complete` returns a frame with the complete state."""

    def __init__(self, complete: Callable[[], Awaitable[Frame]], packed: bool) -> None:
        self.packed = packed
        self._complete = complete
        self._waiting: deque[Frame] = deque()
        self._behind = True
        self._begun = False
        self._ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, frame: Frame) -> None:
        """Add a frame."""
        if len(self._waiting) >= _WAITING:
            self._waiting.clear()
            self._behind = True
        self._waiting.append(frame)
        self._news.set()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for the next frames and return their bytes; None at the end."""
        await self._news.wait()
        if self._ended:
            return None
        frames = await self._frames()
        self._news.clear()
        head = b"" if self._begun or not self.packed else GZIP_HEADER
        self._begun = True
        return head + b"".join(item.content(self.packed) for item in frames)

    async def _frames(self) -> list[Frame]:
        frames: list[Frame] = []
        if self._behind:
            everything = await self._complete()
            if self.packed:
                await asyncio.to_thread(everything.pack)
            self._behind = False
            frames.append(everything)
        newest = frames[0].number if frames else -1
        frames += [item for item in self._waiting if item.number > newest]
        self._waiting.clear()
        return frames
