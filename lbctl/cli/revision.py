"""Loads a fleet from a revision in its git repository, with its YAML files and the files to which they refer.

Nothing is checked out. git prints each file's content, and no shell is involved. While the fleet is being read, the
files to which it refers are in a temporary directory.
"""

from __future__ import annotations

import os
import posixpath
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.base.paths import is_directory, without_links
from lbctl.compile.files import named_files
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import SourceText, is_fleet_file
from lbctl.targets.load import Loaded, complete

_TIMEOUT = 60
_FILES = ("100", "120")
"""Mode prefixes for regular files and symbolic links."""


class NoGitError(click.ClickException):
    """git is not available."""

    exit_code = 4


class _AbsentError(Exception):
    """The requested path does not exist in the revision. The message contains the path."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A path in a repository.

    `top` is the repository's directory, `commit` the full hash of the revision, and `inside` the path relative to `top`
    ("" for `top` itself).
    """

    top: str
    commit: str
    inside: str

    def git(self, *arguments: str) -> bytes:
        return _git(self.top, *arguments)

    def content(self, inside: str) -> bytes:
        """Return the file's content, following symbolic links."""
        request = f"{self.commit}:{inside}\n".encode()
        head, _, content = _git(self.top, "cat-file", "--batch", "--follow-symlinks", stdin=request).partition(b"\n")
        _, kind, size = head.rsplit(b" ", 2) if head.count(b" ") > 1 else (b"", b"", b"0")
        if kind != b"blob":
            raise _AbsentError(f"{show(inside)} is not a file at this revision, or is outside the repository")
        return content[: int(size)]

    def named(self, inside: str) -> _Place:
        return _Place(self.top, self.commit, inside)


def load(paths: Sequence[str], revision: str, diagnostics: Diagnostics) -> Loaded | None:
    """Load the fleet in `paths` at `revision`, or return None if it has errors. Missing paths are reported as LB001."""
    with tempfile.TemporaryDirectory(prefix="lbctl-diff-") as workspace:
        files = [item for path in paths for item in _texts(path, revision, workspace, diagnostics)]
        places = {text.name: (place, text) for place, text in files}
        if diagnostics.failed:
            return None
        source = parse([text for _, (_, text) in sorted(places.items())], diagnostics)
        if source is None:
            return None
        _fetch(source, {name: place for name, (place, _) in places.items()})
        return complete(source, diagnostics)


def _texts(path: str, revision: str, workspace: str, diagnostics: Diagnostics) -> Iterator[tuple[_Place, SourceText]]:
    try:
        place = _placed(path, revision)
        for inside in _files(place, revision):
            root = Path(workspace) / posixpath.dirname(inside)
            root.mkdir(parents=True, exist_ok=True)
            yield place.named(inside), SourceText(f"git:{revision}:{inside}", place.content(inside), str(root))
    except _AbsentError as absent:
        diagnostics.add(Diagnostic("LB001", str(absent), Position(path)))


def _placed(path: str, revision: str) -> _Place:
    if path == "-":
        raise _AbsentError("standard input has no revisions")
    if not revision or revision.startswith("-"):
        raise _AbsentError(f"{show(revision)} is not a revision")
    resolved = without_links(path)
    directory = next(item for item in (resolved, *resolved.parents) if is_directory(item))
    try:
        top = _git(str(directory), "rev-parse", "--show-toplevel").decode().rstrip("\n")
    except _AbsentError as error:
        raise _AbsentError(f"not in a git repository: {error}") from None
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except _AbsentError:
        raise _AbsentError(f"revision {show(revision)} does not exist{_shallow(top)}") from None
    inside = os.path.relpath(resolved, os.path.realpath(top))
    return _Place(top, commit, "" if inside == "." else inside)


def _shallow(top: str) -> str:
    """Return a hint if the clone is shallow, as in most pipelines."""
    shallow = _git(top, "rev-parse", "--is-shallow-repository").strip() == b"true"
    return " in this shallow clone (`git fetch --unshallow` or `--depth` fetches more)" if shallow else ""


def _files(place: _Place, revision: str) -> list[str]:
    """Return the file at a place, or the YAML files if it is a directory."""
    try:
        kind = place.git("cat-file", "-t", f"{place.commit}:{place.inside}").decode().strip()
    except _AbsentError:
        raise _AbsentError(f"it does not exist at {show(revision)}") from None
    if kind != "tree":
        return [place.inside]
    rows = place.git("ls-tree", "-z", f"{place.commit}:{place.inside}").decode(errors="replace").split("\0")
    split = (row.partition("\t") for row in rows if row.startswith(_FILES))
    files = [posixpath.join(place.inside, name) for _, _, name in split if is_fleet_file(name)]
    if not files:
        raise _AbsentError(f"the directory has no YAML files at {show(revision)}")
    return files


def _fetch(source: FleetSource, places: dict[str, _Place]) -> None:
    """Write files with relative paths to the temporary directory that is used instead of the fleet's directory."""
    for _, node in named_files(source.root):
        written, place = str(node.value), places[node.file]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(place.inside), written))
        if written.startswith("/") or inside.startswith(".."):
            continue
        try:
            content = place.content(inside)
        except _AbsentError:
            continue
        target = Path(source.roots[node.file]) / posixpath.relpath(inside, posixpath.dirname(place.inside) or ".")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _git(directory: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git and return the output.

    Raises NoGitError if git is missing or too slow, and _AbsentError if it fails.
    """
    try:
        process = subprocess.run(
            ["git", "-C", directory, *arguments],
            input=stdin,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            env={**_environment(), "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        raise NoGitError("git is not installed, so the revision cannot be read") from None
    except subprocess.TimeoutExpired:
        raise NoGitError(f"git did not finish within {_TIMEOUT} seconds") from None
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise _AbsentError(lines[0].removeprefix("fatal: ") if lines else "git failed")
    return process.stdout


def _environment() -> dict[str, str]:
    """Return the environment without git's variables, because a git hook sets them for its own repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
