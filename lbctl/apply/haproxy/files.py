"""HAProxy's files on disk: what is there, what is new, and the way back.

New files lie beside the old ones, are read by `haproxy -c`, and only then take their places. Nothing is reloaded here.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lbctl.apply.binaries import find_binary
from lbctl.apply.files import write_bundle
from lbctl.apply.haproxy import processes
from lbctl.targets import target
from lbctl.targets.target import Bundle, Complaint

_WEIGHT = re.compile(r"(?m)^(    server .*? weight )[1-9]\d*\b")
_SECONDS = 60.0
"""The longest that the checker may take."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Between a bundle and the disk. `weights_alone`: no more than weights, none of them from or to 0."""

    any: bool
    weights_alone: bool


class Files:
    """`config`: where the main file lies; the others lie beside it."""

    def __init__(self, config: str) -> None:
        self._config = Path(config)

    def difference(self, bundle: Bundle) -> Difference:
        there = self._read(bundle)
        wanted = {item.name: item.text for item in self._named(bundle).files}
        alike = there.keys() == wanted.keys() and all(
            _bare(text) == _bare(wanted[name]) for name, text in there.items()
        )
        return Difference(there != wanted, alike)

    async def check(self, bundle: Bundle) -> tuple[Complaint, ...]:
        """What HAProxy's own checker says against it; empty where it accepts."""
        binary = find_binary("haproxy")
        if binary is None:
            return (Complaint("the program haproxy is not on this machine"),)
        self._config.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lbctl-", dir=self._config.parent) as directory:
            await asyncio.to_thread(write_bundle, bundle, directory)
            known = target("haproxy")
            command = known.check_command(binary, directory, str(Path(directory) / bundle.main.name))
            done = await processes.run(command, _SECONDS)
        if done.code == 0:
            return ()
        return tuple(known.complaints(done.output, bundle)) or (Complaint(done.words),)

    def put(self, bundle: Bundle) -> Bundle:
        """The bundle takes its place; what was there is returned, for `put_back`. OSError"""
        named = self._named(bundle)
        there = self._read(bundle)
        write_bundle(named, str(self._config.parent))
        return Bundle(tuple(replace(item, text=there[item.name]) for item in named.files if item.name in there))

    def put_back(self, before: Bundle) -> None:
        """OSError"""
        if before.files:
            write_bundle(before, str(self._config.parent))

    def _named(self, bundle: Bundle) -> Bundle:
        return replace(bundle, files=(replace(bundle.main, name=self._config.name), *bundle.files[1:]))

    def _read(self, bundle: Bundle) -> Mapping[str, str]:
        names = (item.name for item in self._named(bundle).files)
        found = ((name, self._config.parent / name) for name in names)
        readable = ((name, path) for name, path in found if path.is_file() and os.access(path, os.R_OK))
        return {name: path.read_text(errors="replace") for name, path in readable}


def bare(bundle: Bundle) -> str:
    """All that it says, without weights."""
    return "\x00".join(_bare(item.text) for item in bundle.files)


def _bare(text: str) -> str:
    return _WEIGHT.sub(r"\g<1>1", text)
