"""Files of a fleet, which other programs may write while `serve` runs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from lbctl.base import foreign_json
from lbctl.base.diagnostics import Diagnostics
from lbctl.compile import discovery, secrets
from lbctl.compile.files import read_regular
from lbctl.model import load, text, yaml
from lbctl.serve.fleet import certificates
from lbctl.xds.build.key_pairs import authority_problem
from tests.support.bounds import Case, Reader, mib
from tests.support.processes.certs import Authority

_HUGE = 3 << 30


def _read(file: Callable[[Path], object], read: Callable[[Path], bool]) -> Case:
    """Return the case in which a thread reads the file that `file` makes."""

    async def case() -> bool:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "file.yaml")
            file(path)
            return await asyncio.to_thread(read, path)

    return case


def _with(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, _HUGE)


def _fleet(path: Path) -> bool:
    diagnostics = Diagnostics()
    files = load.texts([str(path)], diagnostics)
    roots = [yaml.read(item.data, item.name, diagnostics) for item in files]
    return not list(diagnostics) and all(root is not None for root in roots)


def _targets(path: Path) -> bool:
    try:
        return bool(discovery.target_groups(str(path), (discovery.read_targets(path) or b"").decode(errors="replace")))
    except discovery.NotAListError:
        return False


def _jwks(path: Path) -> bool:
    try:
        return not secrets._jwks_problem(read_regular(path, secrets.MAX_BYTES).decode(errors="replace"))
    except OSError:
        return False


def _authority(path: Path) -> bool:
    try:
        return not authority_problem(read_regular(path, certificates.MAX_BYTES))
    except OSError:
        return False


@cache
def _authority_pem() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return Authority(Path(directory)).ca.read_bytes()


def _write_authority(path: Path) -> None:
    path.write_bytes(_authority_pem())


_COMMON = {"endless": _endless, "endless device": lambda path: path.symlink_to("/dev/zero"), "slow pipe": os.mkfifo}


def _cases(read: Callable[[Path], bool], **contents: bytes) -> dict[str, Case]:
    cases = {name: _read(make, read) for name, make in _COMMON.items()}
    return cases | {name.replace("_", " "): _read(_with(content), read) for name, content in contents.items()}


READERS = (
    Reader(
        "fleet file",
        f"{mib(text.MAX_BYTES)}, {yaml.MAX_NODES} keys and values, {yaml.MAX_DEPTH} levels",
        _read(_with(b"version: 1\n"), _fleet),
        _cases(
            _fleet,
            deep=b"a: " + b"[" * 100_000,
            malformed_aliases=b"a: &a [b]\nc: &c [*a, *a, *a, *a]\nd: [*c, *c, *c, *c]\n",
            malformed_bytes=b"\xff\xfe\xff",
            malformed_size=b"a:\n" + b"- b\n" * 210_000,
        ),
    ),
    Reader(
        "target file",
        f"{mib(discovery.MAX_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels",
        _read(_with(b'[{"targets":["10.0.0.1:8000"]}]'), _targets),
        _cases(
            _targets,
            deep=b"[" * 100_000,
            malformed_bytes=b"\xff" * 1000,
            malformed_number=b"[" + b"9" * 5000 + b"]",
            malformed_size=b"[" + b"{}," * 1_000_000 + b"{}]",
        ),
    ),
    Reader(
        "key file and JWKS",
        f"{mib(secrets.MAX_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels",
        _read(_with(b'{"keys":[]}'), _jwks),
        _cases(
            _jwks,
            deep=b'{"keys":' + b"[" * 100_000,
            malformed_types=b'{"keys":[{"kty":[1]}]}',
            malformed_bytes=b"\xff" * 1000,
        ),
    ),
    Reader(
        "certificate, key, authority and revocation list",
        mib(certificates.MAX_BYTES),
        _read(_write_authority, _authority),
        _cases(_authority, malformed_bytes=b"\xff" * 1000, malformed_pem=b"-----BEGIN CERTIFICATE-----\n" * 30_000),
    ),
)
