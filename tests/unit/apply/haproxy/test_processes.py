"""The processes that read a file: those started with it, not with another file of the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbctl.apply.haproxy import processes


@contextmanager
def _started(directory: Path, *arguments: str, first: str = "pass") -> Iterator[int]:
    """Start a process named haproxy in `directory`. `first` is code that it runs before it is ready."""
    command = ["haproxy", "-c", f"import os, sys; {first}; print(flush=True); sys.stdin.read()", *arguments]
    with subprocess.Popen(
        command, executable=sys.executable, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("one", "other"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "haproxy.cfg").touch()
    (tmp_path / "link").symlink_to(tmp_path / "one" / "out")
    (tmp_path / "main.cfg").symlink_to(tmp_path / "one" / "out" / "haproxy.cfg")
    return tmp_path / "one" / "out" / "haproxy.cfg"


@pytest.mark.parametrize(
    ("argument", "reads"),
    [
        ("{root}/one/out/haproxy.cfg", True),
        ("one/out/haproxy.cfg", True),
        ("one/out/../out/haproxy.cfg", True),
        ("link/haproxy.cfg", True),
        ("one/out", True),
        ("main.cfg", True),
        ("{root}/other/out/haproxy.cfg", False),
        ("other/out", False),
        ("one/out/other.cfg", False),
        ("gone/haproxy.cfg", False),
    ],
)
def test_file_of_a_process(config: Path, argument: str, reads: bool) -> None:
    root = config.parents[2]
    with _started(root, "-f", "first.cfg", argument.format(root=root)) as pid:
        assert (pid in processes.haproxies(str(config))) == reads
        files = (str(root / "first.cfg"), str(root / argument.format(root=root))) if reads else ()
        assert processes.files_beside(str(config)) == files


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot and setuid are for root")
@pytest.mark.parametrize("first", ["os.chroot('.')", "os.setuid(65534)"])
def test_process_with_other_rights_is_known(config: Path, first: str) -> None:
    """A worker is confined to a directory, and may run as a user whose files `serve` cannot read."""
    with _started(config.parent, "-f", str(config), first=first) as pid:
        assert pid in processes.haproxies(str(config))
        assert processes.files_beside(str(config)) == (str(config),)
    with _started(config.parents[2], "-f", "other.cfg", first=first) as pid:
        assert pid not in processes.haproxies(str(config))


def test_other_argument_is_not_a_file(config: Path) -> None:
    with _started(config.parent, "-p", "haproxy.cfg") as pid:
        assert pid not in processes.haproxies(str(config))
