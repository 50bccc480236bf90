"""Creates a Unix socket that, from the moment it exists, only its owner can connect to.

The socket is created in a temporary directory (0700), given its mode there, and moved into place. Whatever the umask
and the mode of the target directory, no other user can connect in between, and a stale socket is replaced atomically.
"""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lbctl.base.errors import reason_of

MAX_PATH_BYTES = 107
"""Maximum length of a path in Linux's `sockaddr_un`, without the terminating NUL."""
_BESIDE = len("/.12345678/s")
"""Length of the socket's temporary path, not counting the directory."""
_MODE = 0o600
_CONNECT_TIMEOUT = 1.0
"""Seconds to wait for a process that may already listen at the path."""


class BindError(Exception):
    """The address cannot be bound. The message contains the address."""


class PrivateSocket:
    """A Unix socket at `path`. `open` creates it; `close` removes it if it is still the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._created: tuple[int, int] | None = None

    def open(self, bind: Callable[[str], object]) -> None:
        """Create the socket. `bind` must listen on the gRPC address that is passed to it.

        Raises BindError, and RuntimeError if `bind` does.
        """
        _check_encoding(self.path)
        _check_length(self.path)
        _check_free(self.path)
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=self.path.parent, ignore_cleanup_errors=True) as directory:
                beside = Path(directory) / "s"
                bind(f"unix:{beside}")
                beside.chmod(_MODE)
                self._created = _identity(beside)
                beside.rename(self.path)
        except OSError as error:
            raise BindError(f"cannot listen on unix:{self.path}: {reason_of(error)}") from None

    def close(self) -> None:
        """Remove the socket, unless another process has replaced it."""
        with suppress(OSError):
            if self._created == _identity(self.path):
                self.path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _check_encoding(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BindError(f"cannot listen on unix:{path}: gRPC accepts only UTF-8 paths") from None


def _check_length(path: Path) -> None:
    longest = max(len(bytes(path)), len(bytes(path.parent)) + _BESIDE)
    if longest > MAX_PATH_BYTES:
        raise BindError(
            f"cannot listen on unix:{path}: the path of a Unix socket has at most {MAX_PATH_BYTES} bytes, and this "
            f"directory makes it {longest - MAX_PATH_BYTES} bytes too long"
        )


def _check_free(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise BindError(f"cannot listen on unix:{path}: the path exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_TIMEOUT)
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except OSError as error:
        raise BindError(f"cannot listen on unix:{path}: {reason_of(error)}") from None
    raise BindError(f"cannot listen on unix:{path}: another process is already listening there")
