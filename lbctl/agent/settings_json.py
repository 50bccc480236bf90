"""The settings as JSON, with which `lbctl agent` starts the process of the agent."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lbctl.agent.settings import AgentSettings, EngineRequest
from lbctl.ir.address import Address


def encoded(settings: AgentSettings) -> str:
    """Return the settings as JSON. Text is not escaped, because an argument of a process has at most 128 KiB."""
    return json.dumps(asdict(settings), ensure_ascii=False)


def decoded(text: str) -> AgentSettings:
    """Return the settings from the text that `encoded` returned."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    for name in ("bind", "check_bind"):
        fields[name] = Address(**fields[name])
    return AgentSettings(**{**fields, "request": EngineRequest(**fields["request"])})
