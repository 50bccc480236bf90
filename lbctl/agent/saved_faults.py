"""Saves the remembered faults and any drain to a file, so that they survive an agent restart.

The file contains the system's boot ID, because saved faults and drains must not survive a reboot, which also restarts
the engine and the driver. It also contains the engine's URL, because an agent can be reconfigured for another engine.
The start time of the engine process reveals whether the engine restarted while the agent was not running. If the start
time is unknown, a drain is not saved, because it could last forever.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from lbctl.agent.assessment import Reason
from lbctl.agent.memory import NEVER, Memory
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse_object, shaped

FILE = "faults.json"
MAX_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Code = Literal["xid", "ecc", "gpu_lost", "driver"]
_INDEX = re.compile(r"\d+(:\d+)?", re.ASCII)
_CODES: tuple[_Code, ...] = get_args(_Code)
_SHAPE = {
    "boot": str,
    "engine": str,
    "faults": [{"code": str, "message": str, "device": str}],
    "accepted_remaps": [str],
    "started_at": float,
    "draining": bool,
}


def load(directory: str, engine: str, devices: tuple[str, ...] | None) -> Memory:
    """Return an agent's initial memory, with the faults and the drain that were saved for this engine.

    Faults on GPUs that are not among the monitored `devices` are omitted. If the file cannot be read, the memory
    contains a note and no faults.
    """
    try:
        with (Path(directory) / FILE).open("rb") as opened:
            text = opened.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise InvalidJsonError(f"larger than {MAX_BYTES >> 20} MiB")
        return _memory(shaped(parse_object(text), _SHAPE), engine, devices)
    except FileNotFoundError:
        return Memory()
    except (OSError, InvalidJsonError) as error:
        note = f"earlier faults are unknown, because {FILE} cannot be read: {reason_of(error)}"
        return Memory(load_note=note)


def _memory(saved: dict[str, Any], engine: str, devices: tuple[str, ...] | None) -> Memory:
    """Return the memory stored in the file's content. Raises InvalidJsonError."""
    if not {"boot", "engine", "faults", "accepted_remaps"} <= saved.keys():
        raise InvalidJsonError("it is incomplete")
    if saved["boot"] != _boot_id():
        return Memory()
    accepted = frozenset(saved["accepted_remaps"])
    if saved["engine"] != engine:
        return Memory(accepted_remaps=accepted)
    faults = tuple(fault for item in saved["faults"] if _is_watched((fault := _fault(item)).device, devices))
    is_draining, started_at = saved.get("draining", False), saved.get("started_at")
    since = NEVER if is_draining else None
    return Memory(
        faults=faults, accepted_remaps=accepted, started_at=started_at, draining_since=since, is_drain_saved=is_draining
    )


def _is_watched(device: str, devices: tuple[str, ...] | None) -> bool:
    """Return whether a device could be monitored. A UUID in `devices` could refer to any device."""
    if not device or devices is None or not all(map(_INDEX.fullmatch, devices)):
        return True
    return device in devices


def _fault(item: dict[str, str]) -> Reason:
    code = next((code for code in _CODES if code == item.get("code")), None)
    if code is None or "message" not in item:
        raise InvalidJsonError("it contains an unknown fault")
    return Reason(code, item["message"], item.get("device", ""))


def save(directory: str, engine: str, memory: Memory) -> Memory:
    """Save this engine's faults and drain if they differ from the file's content.

    If there is nothing to save, the file is removed. Return the memory, with a note if saving failed.
    """
    try:
        _write(Path(directory) / FILE, engine, memory)
        note = ""
    except OSError as error:
        note = f"the faults will not survive a restart of the agent: {reason_of(error)}"
    return memory if memory.save_note == note else replace(memory, save_note=note)


def _write(file: Path, engine: str, memory: Memory) -> None:
    is_draining = memory.is_drain_saved and memory.started_at is not None
    if not memory.faults and not memory.accepted_remaps and not is_draining:
        if not memory.load_note:  # the next start reports a damaged file again
            file.unlink(missing_ok=True)
        return
    content = {
        "boot": _boot_id(),
        "engine": engine,
        "faults": [asdict(fault) for fault in memory.faults],
        "accepted_remaps": sorted(memory.accepted_remaps),
        "started_at": memory.started_at,
        "draining": is_draining,
    }
    text = json.dumps(content).encode()
    with contextlib.suppress(FileNotFoundError):
        if file.read_bytes() == text:
            return
    handle, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(text)
        os.replace(temporary, file)  # noqa: PTH105 -- a str and a Path
    except OSError:
        os.unlink(temporary)  # noqa: PTH108 -- a str
        raise


def _boot_id() -> str:
    """Return the current boot ID, or an empty string if the system does not provide it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
