"""`systemctl.py ROOT VERB UNIT…` in the place of systemctl: it starts and ends `lbctl serve` as its unit says.

Every call is a line of ROOT/systemctl.log; other units than lbctl-serve are only written there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

_UNIT = "lbctl-serve"
_TIMEOUT = 60.0


def main(root: Path, verb: str, *words: str) -> None:
    with (root / "systemctl.log").open("a") as log:
        log.write(" ".join((verb, *words)) + "\n")
    if _UNIT in words:
        if verb in ("stop", "restart", "disable"):
            _stop(root / "serve.pid")
        if verb in ("start", "restart", "enable"):
            _start(root)


def _start(root: Path) -> None:
    unit = (root / f"etc/systemd/system/{_UNIT}.service").read_text()
    here = re.sub(r"(?<![\w.])/(opt|etc|var)/", rf"{root}/\1/", unit)
    ((name, source),) = re.findall(r"^LoadCredential=(\S+):(\S+)$", here, re.MULTILINE)
    credentials = root / "run/credentials" / f"{_UNIT}.service"
    credentials.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, credentials / name)
    (root / "var/lib/lbctl").mkdir(parents=True, exist_ok=True)
    (command,) = re.findall(r"^ExecStart=(.*)$", here, re.MULTILINE)
    with (root / "serve.log").open("ab") as log:
        process = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    (root / "serve.pid").write_text(str(process.pid))
    _await_ready(process)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"http://{os.environ['LBCTL_SERVE_API_BIND']}/readyz", timeout=5):
            return
        time.sleep(0.05)
    sys.exit(f"lbctl serve is not ready: {process.poll()}")


def _stop(file: Path) -> None:
    if not file.exists():
        return
    pid = int(file.read_text())
    file.unlink()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _TIMEOUT
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has reaped has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
