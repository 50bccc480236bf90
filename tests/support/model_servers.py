"""Two vLLM servers without a model, to try `lbctl up` on: `python -m tests.support.model_servers`.

They answer chat requests, also as a stream, and their metrics count the requests, as those of real servers do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

from aiohttp import web

from tests.support import init as it

ANSWER = ("Hello", "!")
"""The tokens of every answer."""
_STEP = 0.02
"""Seconds of one step of the engine, which makes one token of each answer."""
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
    """A handler of requests that answers as a vLLM does."""

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
            streams = bool(json.loads(body).get("stream"))
        except (ValueError, AttributeError):
            error = {"message": "the body is not a JSON object", "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        self.running += 1
        try:
            self.prompt_tokens += max(1, len(body) // 4)
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"}) if streams else None
            if stream is not None:
                await stream.prepare(request)
            for place, token in enumerate(ANSWER):
                await self._step(place == 0)
                if stream is not None:
                    await stream.write(_event({"choices": [{"index": 0, "delta": {"content": token}}]}))
            self.finished += 1
            if stream is None:
                message = {"role": "assistant", "content": "".join(ANSWER)}
                return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
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


def _event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _serve(url: Connection) -> None:
    with it.serving(ModelServer()) as (server,):
        url.send(server.url)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def main() -> None:
    """Run two servers, each in its own process, so that one of them can be killed."""
    argparse.ArgumentParser(prog="python -m tests.support.model_servers", description=__doc__).parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    servers: dict[str, Process] = {}
    for _ in range(2):
        receiver, sender = Pipe(duplex=False)
        process = Process(target=_serve, args=(sender,), daemon=True)
        process.start()
        servers[receiver.recv()] = process
    print("lbctl up --from", *servers, flush=True)
    for url, process in servers.items():
        print(f"kill -9 {process.pid}   # ends {url}", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
