"""Two vLLM servers without a model, to try `lbctl up`: `python -m tests.support.model_servers`.

They answer chat requests, including streams, and their metrics count the requests, as in real servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

from aiohttp import web

from tests.support import init as it

_STEP = 0.02
"""Duration of one step of the engine in seconds. A step generates one token of each response."""
_PAGE = """\
vllm:num_requests_running{{model_name="m"}} {running}
vllm:num_requests_waiting{{model_name="m"}} 0
vllm:kv_cache_usage_perc{{model_name="m"}} {cache}
vllm:iteration_tokens_total_count{{model_name="m"}} {steps}
vllm:prompt_tokens_total{{model_name="m"}} {prompt_tokens}
vllm:generation_tokens_total{{model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {later_seconds}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {later_tokens}
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {first_seconds}
vllm:time_to_first_token_seconds_count{{model_name="m"}} {first_tokens}
vllm:request_success_total{{model_name="m",finished_reason="stop"}} {finished}
"""


class ModelServer:
    """A request handler that responds like vLLM."""

    def __init__(self) -> None:
        self.running = 0
        self.finished = 0
        self.prompt_tokens = 0
        self.first_tokens = 0
        self.later_tokens = 0
        self.first_seconds = 0.0
        self.later_seconds = 0.0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return await self._complete(request)
        return await it.answering({**it.vllm(), "/health": "", "/metrics": self.page()})(request)

    def page(self) -> str:
        """Return the text of `/metrics`."""
        tokens = self.first_tokens + self.later_tokens
        return _PAGE.format(**vars(self), cache=min(1.0, 0.01 * self.running), steps=tokens, tokens=tokens)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            asked = json.loads(body)
            streams, tokens = bool(asked.get("stream")), int(asked.get("max_tokens") or 2)
        except (ValueError, TypeError, AttributeError):
            return _error(400, "the body is not a JSON object")
        if asked.get("model", it.LLAMA) != it.LLAMA:
            return _error(404, f"The model `{asked['model']}` does not exist.")
        self.running += 1
        try:
            prompt = max(1, len(body) // 4)
            self.prompt_tokens += prompt
            answer = _Answer(chat=not request.path.endswith("/v1/completions"), streams=streams)
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"}) if streams else None
            if stream is not None:
                await stream.prepare(request)
            for place in range(tokens):
                await self._step(place == 0)
                if stream is not None:
                    await stream.write(_event(answer.of(_token(place))))
            self.finished += 1
            if stream is None:
                usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
                return web.json_response(answer.of("".join(map(_token, range(tokens))), "stop") | {"usage": usage})
            await stream.write(b"data: [DONE]\n\n")
            return stream
        finally:
            self.running -= 1

    async def _step(self, first: bool) -> None:
        began = time.monotonic()
        await asyncio.sleep(_STEP)
        seconds = time.monotonic() - began
        if first:
            self.first_tokens += 1
            self.first_seconds += seconds
        else:
            self.later_tokens += 1
            self.later_seconds += seconds


@dataclass(frozen=True)
class _Answer:
    """The format of a response: chat API or completions, whole or as a stream."""

    chat: bool
    streams: bool
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(8)}")

    def of(self, text: str, finish_reason: str | None = None) -> dict[str, object]:
        """Return the object with this text."""
        message = {"delta" if self.streams else "message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **(message if self.chat else {"text": text}), "finish_reason": finish_reason}
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if self.streams else "chat.completion"
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": it.LLAMA, "choices": [choice]}


def _token(place: int) -> str:
    return "!" if place else "Hello"


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


async def _serve(port: int, url: Connection) -> None:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", ModelServer())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    url.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await runner.cleanup()


def _run(port: int, url: Connection) -> None:
    asyncio.run(_serve(port, url))


def main() -> None:
    """Run the servers, each in its own process, so that one of them can be killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.model_servers", description=__doc__)
    parser.add_argument(
        "ports", metavar="PORT", type=int, nargs="*", default=[0, 0],
        help="a server on each port, for example the one that was killed (default: two on free ports)",
    )  # fmt: skip
    ports = parser.parse_args().ports
    print(f"starting {len(ports)} simulated model servers", file=sys.stderr, flush=True)
    servers: dict[str, Process] = {}
    for port in ports:
        receiver, sender = Pipe(duplex=False)
        process = Process(target=_run, args=(port, sender), daemon=True)
        process.start()
        servers[receiver.recv()] = process
    print("lbctl up --from", *servers, flush=True)
    for url, process in servers.items():
        print(f"kill -9 {process.pid}   # ends {url}", file=sys.stderr, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
