"""A system-call filter that allows only TCP, and blocks other processes and calls that bypass file and port rules.

The filter is needed because Landlock has no rules for Unix sockets, UDP, signals on older kernels, or file attributes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "x86_64": {
        "socket": 41, "socketpair": 53, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "clone": 56, "fork": 57,
        "vfork": 58, "clone3": 435, "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "prlimit64": 302, "setpriority": 141, "ioprio_set": 251, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "process_mrelease": 448,
        "migrate_pages": 256, "move_pages": 279, "kcmp": 312, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pidfd_getfd": 438, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "unshare": 272,
        "setns": 308, "mknod": 133, "mknodat": 259, "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452,
        "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utime": 132, "utimes": 235, "futimesat": 261,
        "utimensat": 280, "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66,
        "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    },
    "aarch64": {
        "socket": 198, "socketpair": 199, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "clone": 220, "clone3": 435,
        "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261,
        "setpriority": 140, "ioprio_set": 30, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
        "process_madvise": 440, "process_mrelease": 448, "migrate_pages": 238, "move_pages": 239, "kcmp": 272,
        "pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438, "io_uring_setup": 425, "io_uring_enter": 426,
        "io_uring_register": 427, "unshare": 97, "setns": 268, "mknodat": 33, "fchmod": 52, "fchmodat": 53,
        "fchmodat2": 452, "fchown": 55, "fchownat": 54, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "utimensat": 88, "shmget": 194, "shmctl": 195,
        "shmat": 196, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "msgget": 186, "msgctl": 187,
        "msgrcv": 188, "msgsnd": 189, "mq_open": 180, "mq_unlink": 181, "add_key": 217, "request_key": 218,
        "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
    },
}  # fmt: skip
"""System calls that are rejected unless `_allowed` lists their arguments."""

_X32 = 0x40000000
"""First number of the second system-call set on x86_64."""
_THREAD = 0x00010000
_FAST_OPEN = 0x20000000
_TYPE = 0xF
_WHOLE = 0xFFFFFFFF

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_Instruction = tuple[int, int, int, int]
_Condition = tuple[int, int, Sequence[int]]
"""Index of an argument, bits to compare, and allowed values."""


def program(process: int) -> bytes:
    """Return a process's filter as a classic BPF program. Raises OSError on an unknown architecture."""
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise OSError(f"unknown system calls for architecture {machine}")
    return b"".join(struct.pack("<HBBI", *item) for item in _program(machine, process))


def _allowed(process: int) -> dict[str, Sequence[_Condition]]:
    """Return the arguments with which a listed call is allowed."""
    families, tcp = (socket.AF_INET, socket.AF_INET6), (0, socket.IPPROTO_TCP)
    return {
        "socket": ((0, _WHOLE, families), (1, _TYPE, (socket.SOCK_STREAM,)), (2, _WHOLE, tcp)),
        "socketpair": ((1, _TYPE, (socket.SOCK_STREAM,)),),
        "sendto": ((3, _FAST_OPEN, (0,)),),
        "sendmsg": ((2, _FAST_OPEN, (0,)),),
        "sendmmsg": ((3, _FAST_OPEN, (0,)),),
        "clone": ((0, _THREAD, (_THREAD,)),),
        "kill": ((0, _WHOLE, (process,)),),
        "tgkill": ((0, _WHOLE, (process,)),),
        "prlimit64": ((0, _WHOLE, (0, process)),),
    }


def _program(machine: str, process: int) -> Iterator[_Instruction]:
    refused = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    yield (_LOAD, 0, 0, _ARCHITECTURE)
    yield (_EQUAL, 1, 0, _ARCHITECTURES[machine])
    yield refused
    yield (_LOAD, 0, 0, _NUMBER)
    if machine == "x86_64":
        yield (_AT_LEAST, 0, 1, _X32)
        yield refused
    allowed = _allowed(process)
    for name, number in _NUMBERS[machine].items():
        # If a library does not find clone3, it falls back to clone, whose flags the filter can inspect.
        otherwise = (_RETURN, 0, 0, _FAIL | errno.ENOSYS) if name == "clone3" else refused
        body = [*_checked(allowed[name], refused)] if name in allowed else [otherwise]
        yield (_EQUAL, 0, len(body), number)
        yield from body
    yield (_RETURN, 0, 0, _ALLOW)


def _checked(conditions: Sequence[_Condition], refused: _Instruction) -> Iterator[_Instruction]:
    """Yield instructions that allow a call if all conditions are met."""
    for index, bits, values in conditions:
        yield (_LOAD, 0, 0, _ARGUMENTS + 8 * index)
        yield (_AND, 0, 0, bits)
        for position, value in enumerate(values):
            yield (_EQUAL, len(values) - position, 0, value)
        yield refused
    yield (_RETURN, 0, 0, _ALLOW)
