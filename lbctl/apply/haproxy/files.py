"""Compares, checks, replaces and restores HAProxy's files on disk.

New files are written next to the old files, checked with `haproxy -c`, and only then moved into place. This module does
not reload HAProxy.
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
from lbctl.apply.command import run
from lbctl.apply.files import write_bundle
from lbctl.apply.haproxy import host
from lbctl.apply.host import Checkable, HostError
from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import TARGET
from lbctl.targets.target import Bundle, Complaint

_WEIGHT = re.compile(r"(?m)^(    server .*? weight )[1-9]\d*\b")
_CHECK_TIMEOUT = 60.0
"""Time limit for the checker, in seconds."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """The differences between a bundle and the files on disk."""

    any: bool
    """Whether the bundle differs from the files on disk."""
    weights_alone: bool
    """Whether only weights differ, all of which are positive on both sides."""


class Files:
    """A proxy's files: the main file, `config`, and the other files in the same directory."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._config = Path(proxy.config or "")

    def difference(self, bundle: Bundle) -> FileDifference:
        """Compare the bundle with the files on disk."""
        on_disk = self._read(bundle)
        wanted = {item.name: item.text for item in self._named(bundle).files}
        same_text = on_disk.keys() == wanted.keys() and all(
            _without_weights(text) == _without_weights(wanted[name]) for name, text in on_disk.items()
        )
        return FileDifference(on_disk != wanted, same_text)

    async def check(self, bundle: Bundle) -> tuple[Complaint, ...]:
        """Return the errors from HAProxy's own checker, or an empty tuple if it accepts the bundle."""
        binary = find_binary(TARGET)
        if binary is None:
            return (Complaint(f"the program {TARGET.binary} is not installed on this machine"),)
        self._config.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lbctl-", dir=self._config.parent) as directory:
            try:
                checkable = await asyncio.to_thread(self._checkable, binary, bundle, Path(directory))
            except HostError as error:
                return (Complaint(str(error)),)
            result = await run(checkable.command, _CHECK_TIMEOUT)
        result = replace(result, output=checkable.readable(result.output))
        if result.code == 0:
            return ()
        return tuple(TARGET.complaints(result.output, bundle)) or (Complaint(result.message),)

    def _checkable(self, binary: str, bundle: Bundle, directory: Path) -> Checkable:
        """Write the bundle to a separate directory, and return the command that checks it there."""
        fragment = directory / bundle.main.name
        if not self._proxy.is_fragment:
            write_bundle(bundle, str(directory))
            return Checkable(tuple(TARGET.check_command(binary, str(directory), str(fragment))), {})
        text = bundle.main.text
        for item in bundle.files[1:]:
            text = text.replace(str(self._config.parent / item.name), str(directory / item.name))
        moved = replace(bundle, files=(replace(bundle.main, text=text), *bundle.files[1:]))
        write_bundle(moved, str(directory))
        return host.checkable(binary, directory, fragment, self._proxy, host.main_of(self._proxy))

    def install(self, bundle: Bundle) -> Bundle:
        """Replace the files with the bundle, and return the old files for use with `restore`. Raises OSError."""
        named = self._named(bundle)
        on_disk = self._read(bundle)
        write_bundle(named, str(self._config.parent))
        return Bundle(tuple(replace(item, text=on_disk[item.name]) for item in named.files if item.name in on_disk))

    def restore(self, before: Bundle) -> None:
        """Restore the files that `install` returned. Raises OSError."""
        if before.files:
            write_bundle(before, str(self._config.parent))

    def _named(self, bundle: Bundle) -> Bundle:
        return replace(bundle, files=(replace(bundle.main, name=self._config.name), *bundle.files[1:]))

    def _read(self, bundle: Bundle) -> Mapping[str, str]:
        names = (item.name for item in self._named(bundle).files)
        paths = ((name, self._config.parent / name) for name in names)
        readable = ((name, path) for name, path in paths if path.is_file() and os.access(path, os.R_OK))
        return {name: path.read_text(errors="replace") for name, path in readable}


def without_weights(bundle: Bundle) -> str:
    """Return the text of all files with the weights removed."""
    return "\x00".join(_without_weights(item.text) for item in bundle.files)


def _without_weights(text: str) -> str:
    return _WEIGHT.sub(r"\g<1>1", text)
