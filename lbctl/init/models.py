"""The models that a server names. What it says is anybody's: names are kept only where a fleet can write them.

A name that a fleet cannot write (a path of the server's disk, a joke with quotes) still tells servers with the same
model from others; it never reaches the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from lbctl.init.ask import INDEX, Answers

MOST = 64
"""Names of one server."""
_LONGEST = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}")


@dataclass(frozen=True, slots=True)
class Models:
    """`raw`: all names as they were said, sorted. `names`: those that a fleet can write. `one`: the name of the one
    model behind all of them, or "". `adapters`: names of LoRA adapters on it. `owners`: who made the server, where it
    says so. `more`: how many names were left out."""

    raw: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    one: str = ""
    adapters: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    more: int = 0

    @classmethod
    def of(cls, said: Iterable[Any], adapters: Iterable[Any] = (), owners: Iterable[Any] = (), roots: int = 0) -> Self:
        """`roots`: of how many models these are the names, where that is known."""
        bases, loras = _texts(said), _texts(adapters)
        raw = sorted({*bases, *loras})
        names = tuple(item for item in raw if _NAME.fullmatch(item))
        one = next((item for item in bases if item in names), "") if (roots or len(bases)) == 1 else ""
        kept = names[:MOST]
        return cls(
            tuple(raw), kept, one, tuple(item for item in loras if item in kept), _texts(owners), len(raw) - len(kept)
        )


NONE = Models()


def listed(data: Any) -> Models:
    """Of OpenAI's `/v1/models`: adapters are those with a parent; several names of one root are one model."""
    entries = _entries(data, "data")
    parents = [item for item in entries if item.get("parent")]
    bases = [item for item in entries if not item.get("parent")]
    roots = {item.get("root") for item in bases if isinstance(item.get("root"), str)}
    return Models.of(
        (item.get("id") for item in bases),
        (item.get("id") for item in parents),
        (item.get("owned_by") for item in entries),
        1 if len(roots) == 1 and all(item.get("root") for item in bases) else 0,
    )


def repository(answers: Answers) -> Models:
    """Of the index of a v2 server: the models that are ready. KServe without an index has a list of names."""
    index = answers.data(INDEX)
    entries = [item for item in index if isinstance(item, dict)] if isinstance(index, list) else []
    ready = [item.get("name") for item in entries if item.get("state") in (None, "", "READY")]
    return Models.of(ready) if ready else v1_names(answers.data("/v1/models"))


def v1_names(data: Any) -> Models:
    """Of KServe's `/v1/models`: a list of names."""
    names = data.get("models") if isinstance(data, dict) else None
    return Models.of(item for item in names if isinstance(item, str)) if isinstance(names, list) else Models()


def management(data: Any) -> Models:
    """Of TorchServe's `/models` on its port for management."""
    return Models.of(item.get("modelName") for item in _entries(data, "models"))


def _entries(data: Any, key: str) -> list[dict[str, Any]]:
    found = data.get(key) if isinstance(data, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _texts(said: Iterable[Any]) -> tuple[str, ...]:
    """Each once, in their order."""
    return tuple(dict.fromkeys(item[:_LONGEST] for item in said if isinstance(item, str) and item))
