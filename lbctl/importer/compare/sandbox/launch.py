"""`python -m lbctl.importer.compare.sandbox.launch SPECIFICATION`, which enters the sandbox and runs a proxy.

The launcher is a separate program, because the comparison has threads, and a process with threads cannot enter a user
namespace.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from lbctl.importer.compare.sandbox import calls, kernel, landlock, root

NOT_CONFINED = 125
"""Exit code if the sandbox could not be set up."""
_NOBODY = 65534
_MAX_FILE_BYTES = 64 << 20
"""Maximum size of a file that a proxy can write during the comparison."""
_LIMITS = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES))


def main(arguments: list[str]) -> None:
    """Enter the specified sandbox and run the command. If no command is given, only test the sandbox."""
    specification = json.loads(arguments[0])
    parent = os.getppid()
    try:
        _confine(specification)
        kernel.end_with_parent()
        if os.getppid() != parent:
            raise OSError("the comparison has ended")
        if specification["filtered"]:
            kernel.filter_calls(calls.program(os.getpid()))
    except (OSError, KeyError) as error:
        print(f"the sandbox cannot be set up: {error}", file=sys.stderr)
        raise SystemExit(NOT_CONFINED) from None
    if command := specification["command"]:
        # Without /proc, a loader cannot find the program's directory, which may contain its libraries.
        os.execve(command[0], command, {"LD_ORIGIN_PATH": str(Path(command[0]).parent)})


def _confine(specification: dict[str, Any]) -> None:
    """Drop all access that the sandboxing method removes."""
    directory, programs = specification["directory"], specification["programs"]
    for limit, value in _LIMITS:
        resource.setrlimit(limit, (value, value))
    becomes_nobody = os.geteuid() == 0 and _own(directory)
    if os.geteuid() == 0 and not becomes_nobody and specification["method"] != "none":
        kernel.enter_user_namespace(_NOBODY, _NOBODY)
    kernel.forbid_new_privileges()
    if specification["method"] == "namespaces":
        root.enter(specification["place"], directory, programs)
    if specification["method"] == "landlock":
        landlock.restrict(directory, programs, root.DEVICES, specification["listen"], specification["connect"])
    kernel.drop_capabilities()
    if becomes_nobody:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _own(directory: str) -> bool:
    """Make `nobody`, as which root's proxies run, own a directory and its contents. Returns whether that user exists.

    In some containers, root is the only user. In that case, a user namespace gives the proxies another user ID.
    """
    try:
        os.chown(directory, _NOBODY, _NOBODY)
    except OSError:
        return False
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.chown(Path(place, name), _NOBODY, _NOBODY, follow_symlinks=False)
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
