#!/usr/bin/env python3
"""Write the model servers that run as Slurm jobs to a target file for lbctl (`discovery.file`).

Each job is a model server on its first node, at `--port` or at the port in its comment (`sbatch --comment port=8001`).
In this way, several jobs can share a node. With `--ports N`, the server has data-parallel ranks on N ports. Every user
of the cluster can give a job any name, so the script uses only the jobs of the listed users or accounts. It skips jobs
with an invalid comment.

The script replaces the file atomically, and only if its content changes. If Slurm does not answer, the file does not
change, and the exit code is 1. The script needs only Python 3.9. Run it with a timer (docs/how-to/slurm.md).
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_FORMAT = "%i|%N|%k"
"""Job id, node list and comment. The comment is the last field, because it may contain any text."""
_LINE = re.compile(r"(\d+(?:[_+]\d+)?)\|([A-Za-z0-9][A-Za-z0-9._,\[\]-]*)?\|(.*)")
_PORT = re.compile(r"\bport=(\d{1,5})\b")
_LAST_PORT = 65_535
_TIMEOUT = 20
"""Time limit of each Slurm command, in seconds."""


def main() -> int:
    """Write the file, and return the exit code."""
    options = _options()
    try:
        jobs = _run("squeue", "--noheader", "--states=RUNNING", *_filters(options), f"--format={_FORMAT}")
        lines = [line for line in jobs.splitlines() if line.strip()]
        groups = [_groups(line, options) for line in lines]
        if lines and all(group is None for group in groups):
            raise ValueError("squeue did not list any valid job")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _report(f"{error}; {options.output} is not changed")
        return 1
    found = [target for group in groups for target in group or ()]
    _replace(options.output, json.dumps(sorted(found, key=lambda group: group["targets"]), indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", required=True, help="name of the jobs (squeue --name)")
    parser.add_argument("--user", help="users of the jobs, separated by commas (squeue --user); default: this user")
    parser.add_argument("--account", help="accounts of the jobs, separated by commas (squeue --account); default: any")
    parser.add_argument("--partition", help="partition of the jobs (squeue --partition)")
    parser.add_argument("--port", type=int, required=True, help="port of a server if its job comment sets none")
    parser.add_argument("--ports", type=int, default=1, help="number of ranks of a job, on consecutive ports")
    parser.add_argument("--gpu", help="GPU type, as listed by `lbctl gpus`")
    parser.add_argument("--output", type=Path, required=True, help="target file to write")
    options = parser.parse_args()
    if not options.user and not options.account:
        options.user = pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            _report("only jobs of root are used: set --user or --account")
    return options


def _filters(options: argparse.Namespace) -> list[str]:
    names = ("name", "user", "account", "partition")
    given = {name: getattr(options, name) for name in names}
    return [f"--{key}={value}" for key, value in given.items() if value]


def _groups(line: str, options: argparse.Namespace) -> list[dict[str, object]] | None:
    """Return a target group for each rank of the job in a line of the squeue output.

    Return None if the line is not a job with valid ports. A comment may contain any text, including line feeds.
    """
    match = _LINE.fullmatch(line.strip())
    if match is None:
        _report(f"skipped a line that is not a job: {line.strip()[:80]!r}")
        return None
    job, nodes, comment = match.groups()
    if not nodes:
        return []
    named = _PORT.search(comment)
    port = int(named[1]) if named else options.port
    if not 0 < port <= _LAST_PORT - options.ports + 1:
        _report(f"skipped job {job}: there are not {options.ports} valid ports from {port} upwards")
        return None
    host = _run("scontrol", "show", "hostnames", nodes).split()[0]
    return [_group(job, host, port, rank, options) for rank in range(options.ports)]


def _group(job: str, host: str, port: int, rank: int, options: argparse.Namespace) -> dict[str, object]:
    name = f"job-{job.lower()}" + (f"-{rank}" if options.ports > 1 else "")
    labels = {"name": name, "slurm_job": job, **({"gpu": options.gpu} if options.gpu else {})}
    return {"targets": [f"{host}:{port + rank}"], "labels": labels}


def _report(message: str) -> None:
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise ValueError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically, so that no process reads a partially written file."""
    if path.exists() and path.read_text() == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


if __name__ == "__main__":
    sys.exit(main())
