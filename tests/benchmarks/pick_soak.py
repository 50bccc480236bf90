"""`python -m tests.benchmarks.pick_soak [--minutes N] [--rate N]`: check that a picker's memory and cost stay constant.

The picker runs in a separate process with 200 replicas. It gets HTTP queries as from HAProxy and nginx,
alternately with one of 20,000 sessions and with a new prompt of 8 KiB. A request ends after two seconds on average, and
one end in a hundred is lost. A row covers a minute: memory, processor time per pick, and open picks. The last line
compares the last sixth of the minutes with the second sixth.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import time
from collections.abc import Callable

from tests.benchmarks.memory import resident
from tests.benchmarks.picks import HOST, body, cpu, picker

_CONNECTIONS, _SESSIONS, _LOST, _MEAN_SECONDS = 16, 20_000, 0.01, 2.0


def question(number: int) -> bytes:
    """Return the request for one pick."""
    if number % 2:
        session = f"x-session-id: s{random.randrange(_SESSIONS)}"
        return f"GET /pick/chat HTTP/1.1\r\n{session}\r\nx-lbctl-body-length: 4000\r\n\r\n".encode()
    prompt = body(number)
    return f"POST /pick/chat HTTP/1.1\r\ncontent-length: {len(prompt)}\r\n\r\n".encode() + prompt


async def ask(port: int, rate: float, seconds: float, every_minute: Callable[[int], None]) -> None:
    """Send `rate` queries per second for this number of seconds, and report the end of each request except for the lost
    ones."""
    loop = asyncio.get_running_loop()
    ends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ends.connect((HOST, port + 1))
    started, asked = loop.time(), 0

    async def client() -> None:
        nonlocal asked
        reader, writer = await asyncio.open_connection(HOST, port + 1)
        while (due := started + asked / rate) < started + seconds:
            asked += 1
            await asyncio.sleep(due - loop.time())
            writer.write(question(asked))
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
            name = head.partition(b"x-lbctl-pick-id: ")[2].partition(b"\r")[0]
            if random.random() >= _LOST:
                end = b'<190>Nov 23 19:00:00 lbctl: {"pick":"%s"}' % name
                loop.call_later(random.expovariate(1 / _MEAN_SECONDS), ends.send, end)
        writer.close()

    async def watch() -> None:
        for _ in range(int(seconds // 60)):
            await asyncio.sleep(60)
            every_minute(asked)

    with ends:
        await asyncio.gather(watch(), *(client() for _ in range(_CONNECTIONS)))
        await asyncio.sleep(5 * _MEAN_SECONDS)


def open_picks(port: int) -> str:
    """Return how many picks the picker counts as running."""
    with socket.create_connection((HOST, port + 1), 10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nconnection: close\r\n\r\n")
        page = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return page.partition("\nlbctl_pick_open ")[2].partition("\n")[0]


def main() -> None:
    """Print a row for each minute, and the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pick_soak")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=200.0)
    options = parser.parse_args()
    print(f"{'TIME':<9} {'ASKED':>9} {'MEMORY':>9} {'CPU/PICK':>11} {'OPEN':>6}")
    rows: list[tuple[float, float]] = []
    with picker() as (port, pid):
        before = [0.0, 0.0]

        def row(asked: int) -> None:
            used = cpu(pid)
            each = (used - before[0]) / max(1.0, asked - before[1])
            before[:] = used, asked
            rows.append((resident(pid), each))
            shown = time.strftime("%H:%M:%S")
            print(f"{shown:<9} {asked:9,} {rows[-1][0]:6.1f} MB {each * 1e3:8.3f} ms {open_picks(port):>6}", flush=True)

        asyncio.run(ask(port, options.rate, options.minutes * 60.0, row))
    sixth = max(1, len(rows) // 6)
    early, late = rows[sixth : 2 * sixth] or rows, rows[-sixth:]
    memory, cost = (sum(item[at] for item in late) / sum(item[at] for item in early) for at in (0, 1))
    print(f"the last {sixth} minutes ÷ the second {sixth}: memory {memory:.2f}, processor time {cost:.2f}")


if __name__ == "__main__":
    main()
