"""The settings as JSON, which `lbctl agent` passes to the agent's process."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lbctl.agent.settings import AgentSettings, EngineRequest
from lbctl.ir.address import Address


def encoded(settings: AgentSettings) -> str:
    """Return the settings as JSON. Characters are not escaped, because a process argument is limited to 128 KiB."""
    return json.dumps(asdict(settings), ensure_ascii=False)


def decoded(text: str) -> AgentSettings:
    """Return the settings from a string returned by `encoded`."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    for name in ("bind", "check_bind"):
        fields[name] = Address(**fields[name])
    return AgentSettings(**{**fields, "request": EngineRequest(**fields["request"])})
