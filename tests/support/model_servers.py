"""Two vLLM servers without a model, to try `lbctl up` on: `python -m tests.support.model_servers`."""

from __future__ import annotations

import argparse
import signal

from aiohttp import web

from tests.support import init as it


async def model_server(request: web.Request) -> web.StreamResponse:
    """Answer as a vLLM that answers chat requests too."""
    if request.method == "POST":
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "Hello!"}}]})
    return await it.answering({**it.vllm(), "/health": ""})(request)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tests.support.model_servers", description=__doc__).parse_args()
    with it.serving(model_server, model_server) as servers:
        print("lbctl up --from", *(server.url for server in servers), flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
