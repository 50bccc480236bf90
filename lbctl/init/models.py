"""Parses the models that a server reports. The server's responses are untrusted.

Only names that can be expressed in a fleet are written to the file. Other names, such as a path on the server's disk or
a string with quotes, are used only to find servers that have the same model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from lbctl.init.probe import REPOSITORY_INDEX, ServerResponses

MAX_NAMES = 64
"""Maximum number of names accepted from one server."""
_MAX_CHARACTERS = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}")


@dataclass(frozen=True, slots=True)
class Models:
    """A server's models."""

    raw: tuple[str, ...] = ()
    """All reported names, sorted."""
    names: tuple[str, ...] = ()
    """Names that can be expressed in a fleet."""
    single: str = ""
    """Name of the single model to which all names refer, or ""."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters."""
    owners: tuple[str, ...] = ()
    """Owners of the models, if reported."""
    omitted: int = 0
    """Number of omitted names."""

    @classmethod
    def of(
        cls, reported: Iterable[Any], adapters: Iterable[Any] = (), owners: Iterable[Any] = (), roots: int = 0
    ) -> Self:
        """Collect reported names. `roots` is the number of distinct models to which they refer, if known."""
        bases, adapter_names = _texts(reported), _texts(adapters)
        raw = sorted({*bases, *adapter_names})
        names = tuple(name for name in raw if _NAME.fullmatch(name))
        single = next((name for name in bases if name in names), "") if (roots or len(bases)) == 1 else ""
        used = names[:MAX_NAMES]
        return cls(
            tuple(raw),
            used,
            single,
            tuple(name for name in adapter_names if name in used),
            _texts(owners),
            len(raw) - len(used),
        )


NONE = Models()


def openai_models(data: Any) -> Models:
    """Parse OpenAI's `/v1/models`. Adapters have a parent, and names with the same root belong to one model."""
    entries = _entries(data, "data")
    parents = [entry for entry in entries if entry.get("parent")]
    bases = [entry for entry in entries if not entry.get("parent")]
    roots = {base.get("root") for base in bases if isinstance(base.get("root"), str)}
    return Models.of(
        (base.get("id") for base in bases),
        (entry.get("id") for entry in parents),
        (entry.get("owned_by") for entry in entries),
        1 if len(roots) == 1 and all(base.get("root") for base in bases) else 0,
    )


def v2_models(answers: ServerResponses) -> Models:
    """Return the models that are ready according to the repository index of a v2 server.

    A KServe server without an index returns a list of names.
    """
    index = answers.data(REPOSITORY_INDEX)
    entries = [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []
    ready = [entry.get("name") for entry in entries if entry.get("state") in (None, "", "READY")]
    return Models.of(ready) if ready else v1_models(answers.data("/v1/models"))


def v1_models(data: Any) -> Models:
    """Parse KServe's `/v1/models`, which is a list of names."""
    names = data.get("models") if isinstance(data, dict) else None
    return Models.of(name for name in names if isinstance(name, str)) if isinstance(names, list) else Models()


def management_models(data: Any) -> Models:
    """Parse `/models` from TorchServe's management port."""
    return Models.of(entry.get("modelName") for entry in _entries(data, "models"))


def _entries(data: Any, key: str) -> list[dict[str, Any]]:
    entries = data.get(key) if isinstance(data, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the distinct strings in their original order."""
    return tuple(dict.fromkeys(value[:_MAX_CHARACTERS] for value in values if isinstance(value, str) and value))
