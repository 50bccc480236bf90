"""Implements `python -m lbctl.agent SETTINGS`, which runs the agent with settings given as JSON.

`lbctl agent` replaces itself with this process.
"""

from __future__ import annotations

import asyncio
import sys

from lbctl.agent.process import AgentProcess, CannotStartError
from lbctl.agent.settings_json import decoded
from lbctl.runtime import log
from lbctl.runtime.descriptors import raise_limit


def main() -> int:
    """Run the agent and return its exit code."""
    handler = log.start(sys.stderr)
    raise_limit()
    settings = decoded(sys.argv[1])

    async def run() -> int:
        return await AgentProcess(settings).run()

    try:
        return asyncio.run(run())
    except CannotStartError as error:
        log.error(str(error))
        return 1
    finally:
        log.stop(handler)


if __name__ == "__main__":
    sys.exit(main())
