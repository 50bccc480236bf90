"""Linux system calls that the sandbox needs but Python does not provide."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
_NEW_USER = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
RECURSIVE, PRIVATE = 16384, 1 << 18
_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 22, 24, 38, 47
_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_MAX_CAPABILITY = 63
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_libc = ctypes.CDLL(None, use_errno=True)


def _done(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """Make a system call by its number. Raises OSError with the name of the call."""
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return _done(_libc.syscall(ctypes.c_long(number), *converted), what)


def _prctl(what: str, option: int, *arguments: object) -> int:
    converted = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in arguments]
    padding = [ctypes.c_ulong(0)] * (4 - len(converted))
    return _done(_libc.prctl(ctypes.c_int(option), *converted, *padding), what)


def end_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, int(signal.SIGKILL))


def forbid_new_privileges() -> None:
    """Prevent all programs that this process starts from gaining privileges."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Remove all capabilities from this process's bounding set."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _CLEAR_ALL)
    for capability in range(_MAX_CAPABILITY + 1):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError:
            return  # The kernel does not support this capability, or this process has none to drop.


def filter_calls(program: bytes) -> None:
    """Filter this process's system calls with a classic BPF program."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    of_kernel = Program(len(program) // 8, program)
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(of_kernel))


def unshare(namespaces: int) -> None:
    """Enter new namespaces.

    A non-root user also gets a user namespace that contains the same user and group.
    """
    if os.geteuid() != 0:
        enter_user_namespace(os.geteuid(), os.getegid())
    _done(_libc.unshare(ctypes.c_int(namespaces)), "unshare")


def enter_user_namespace(user: int, group: int) -> None:
    """Enter a user namespace in which only this process's user and group exist."""
    outer_user, outer_group = os.geteuid(), os.getegid()
    _done(_libc.unshare(ctypes.c_int(_NEW_USER)), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outer_user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {outer_group} 1")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or change an existing mount."""
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    _done(result, f"mount {target}")


def change_root(directory: str) -> None:
    """Make a mounted directory the root, and detach the old root."""
    os.chdir(directory)
    syscall("pivot_root", _PIVOT_ROOT[os.uname().machine], b".", b".")
    _done(_libc.umount2(b".", ctypes.c_int(_DETACH)), "umount2")
    os.chdir("/")
