"""Checks a fragment within the main file of the host's nginx or a minimal main file.

The main file and all included files are copied to a private directory, with the old fragment replaced by the new one.
`nginx -t` checks the copy, so the host's files are not changed.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lbctl.apply.host import Checkable, HostError
from lbctl.base.paths import is_file, without_links
from lbctl.ir.proxies import Proxy
from lbctl.targets.nginx.own_lines import Word, statements

_MINIMAL = """\
events { }
http {
    variables_hash_bucket_size 256; map_hash_bucket_size 4096; server_names_hash_bucket_size 512;
    include "%s";
}
"""
_PATTERN = re.compile(r"[*?\[]")
_MAX_FILES = 10_000
"""Maximum number of files that a main file may include."""


def main_of(proxy: Proxy) -> tuple[str, ...]:
    """Return a fragment's main file: the `-c` argument of the reload command, or the nearest nginx.conf above it."""
    command = proxy.reload.command if proxy.reload else ()
    named = (after for flag, after in itertools.pairwise(command) if flag == "-c")
    parents = Path(proxy.config or "/").absolute().parents
    nearest = (str(parent / "nginx.conf") for parent in parents if is_file(parent / "nginx.conf"))
    return tuple(itertools.islice((*named, *nearest), 1))


def checkable(binary: str, directory: Path, fragment: Path, proxy: Proxy, main: Sequence[str]) -> Checkable:
    """Prepare a check in which `fragment` replaces the file at `config`.

    Raises HostError and OSError.
    """
    if not main:
        host = directory / "host.conf"
        host.write_text(_MINIMAL % fragment)
        command = [binary, "-t", "-q", "-e", "stderr", "-p", str(directory), "-c", str(host)]
        return Checkable((*command, "-g", "pid lbctl-check.pid;"), {})
    copy = HostCopy(Path(main[0]), Path(proxy.config or "").absolute(), fragment, directory / "host")
    host = copy.write()
    if not copy.reads_fragment:
        raise HostError(f"{main[0]} does not include {proxy.config}, so nginx would not read it")
    options = () if copy.has_pid else ("-g", f"pid {directory / 'lbctl-check.pid'};")
    return Checkable((binary, "-t", "-q", "-e", "stderr", "-c", str(host), *options), copy.originals)


class HostCopy:
    """A copy of a main file and of all files that it includes."""

    def __init__(self, main: Path, config: Path, fragment: Path, directory: Path) -> None:
        self._main = main.absolute()
        self._config = config
        self._fragment = fragment
        self._directory = directory
        self.originals: dict[str, str] = {}
        """Maps the path of each copy to the path of its original."""
        self.reads_fragment = False
        """Whether an `include` matches the fragment's path."""
        self.has_pid = False
        """Whether the main file sets a pid file, in which case the copy sets a different one."""

    def write(self) -> Path:
        """Write the copy and return its main file.

        Relative paths still refer to the original files. Raises OSError.
        """
        self._directory.mkdir()
        for sibling in self._main.parent.iterdir():
            if sibling.name != self._main.name:
                (self._directory / sibling.name).symlink_to(sibling)
        return self._copy(self._main, self._directory / self._main.name)

    def _copy(self, source: Path, target: Path) -> Path:
        self.originals[str(target)] = str(source)
        if len(self.originals) > _MAX_FILES:
            raise HostError(f"{self._main} includes more than {_MAX_FILES} files, or itself")
        target.write_text(self._rewritten(source.read_text(errors="surrogateescape")), errors="surrogateescape")
        return target

    def _rewritten(self, text: str) -> str:
        parts, end = [], 0
        for directive in statements(text):
            replacement = self._replacement(directive)
            if replacement is not None:
                parts += [text[end : directive[1].start], f'"{replacement}"']
                end = directive[1].end
        return "".join((*parts, text[end:]))

    def _replacement(self, directive: list[Word]) -> str | None:
        """Return the new second word of a directive in the copy, or None if the word is unchanged."""
        if len(directive) != 2:
            return None
        if directive[0].text == "pid":
            self.has_pid = True
            return str(self._directory / "host.pid")
        return self._included(directive[1].text) if directive[0].text == "include" else None

    def _included(self, argument: str) -> str | None:
        pattern = str(self._main.parent / argument)
        files = list(self._files(pattern))
        if not files and not _PATTERN.search(pattern):
            return None
        folder = self._directory / f".included-{len(self.originals)}"
        folder.mkdir()
        self.originals[str(folder)] = str(Path(pattern).parent)
        for file in files:
            if file == self._config:
                self.reads_fragment = True
                (folder / file.name).symlink_to(self._fragment)
                self.originals[str(folder / file.name)] = str(self._fragment)
            elif is_file(file):
                self._copy(file, folder / file.name)
            else:
                (folder / file.name).symlink_to(file)
        return f"{folder}/*"

    def _files(self, pattern: str) -> Iterator[Path]:
        """Yield the files that nginx would read for an `include`, and the fragment even if it does not exist yet."""
        names = {str(_plain(Path(name))) for name in glob.glob(pattern)}  # noqa: PTH207 -- the pattern may be absolute
        if fnmatch.fnmatchcase(str(_plain(self._config)), str(_plain(Path(pattern)))):
            names.add(str(_plain(self._config)))
        yield from (self._config if name == str(_plain(self._config)) else Path(name) for name in sorted(names))


def _plain(path: Path) -> Path:
    """Resolve links in the directory, but not in the file name, because the file may be one of lbctl's links."""
    return without_links(path.parent) / path.name
