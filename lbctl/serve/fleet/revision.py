"""The commit that a fleet's files belong to, if they are in a git checkout.

The published contents are compared with the commit by hash, so that a file that changes in the meantime is not treated
as clean. lbctl reads only data stored by git: none of the checkout's hooks, filters or monitors run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lbctl.model.load import SourceText, is_fleet_file
from lbctl.store.history import Revision

_TIMEOUT = 5.0
"""Timeout for a single git command, in seconds."""


def revision_of(paths: Sequence[str], files: Iterable[SourceText]) -> Revision:
    """Return the commit checked out in the files' directories, or an empty revision if there is none.

    The function blocks.

    The revision is dirty if a file differs from the commit, is not part of it, or is missing on disk.
    """
    contents = {Path(os.path.realpath(text.name)): text.data for text in files}
    folders = sorted({file.parent for file in contents})
    commits = {_git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").strip() for folder in folders}
    if len(commits) != 1 or commits == {""}:
        return Revision()
    given = {Path(os.path.realpath(path)) for path in paths}
    dirty = any(_differs(folder, contents, folder in given) for folder in folders)
    return Revision(commits.pop(), dirty)


def _differs(folder: Path, contents: Mapping[Path, bytes], is_whole: bool) -> bool:
    """Return whether any file in this folder differs from the commit.

    `is_whole`: whether the fleet consists of all YAML files in the folder.
    """
    rows = (row.partition("\t") for row in _git(folder, "ls-tree", "-z", "HEAD").split("\0") if row)
    stored = {name: head.split()[-1] for head, _, name in rows if " blob " in head}
    files = {file.name: data for file, data in contents.items() if file.parent == folder}
    if is_whole and {name for name in stored if is_fleet_file(name)} - files.keys():
        return True
    return any(stored.get(name, "") != _blob(data, stored.get(name, "")) for name, data in files.items())


def _blob(data: bytes, like: str) -> str:
    """Return git's object name for these contents, using the same hash function as the name `like`."""
    hashed = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    hashed.update(b"blob %d\0" % len(data))
    hashed.update(data)
    return hashed.hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    """Return git's output; empty if git is not installed, there is no checkout, or git does not trust the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT,
            check=False, env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="surrogateescape") if answer.returncode == 0 else ""
