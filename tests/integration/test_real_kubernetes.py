"""The fake Kubernetes API server of the tests, compared with a real one. Opt-in, because CI cannot install a real one.

KUBE_API names a directory with a `run.sh` that starts a Kubernetes API server for custom resources with an etcd, and
writes `kubeconfig`, `api.pid` and `etcd.pid` next to itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import ApiClient, ApiError
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from tests.support.paths import ROOT

_VARIABLE = "KUBE_API"
_TIMEOUT = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_VARIABLE not in os.environ, reason=f"{_VARIABLE} names no API server to compare with"),
]


async def _serves_resources(file: Path) -> bool:
    client = ApiClient(lambda: kubeconfig.read(file))
    try:
        await client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    except (ApiError, ClusterError):
        return False
    finally:
        await client.close()
    return True


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a real API server, and return the path of its kubeconfig."""
    directory = tmp_path_factory.mktemp("kube-api")
    for file in Path(os.environ[_VARIABLE]).iterdir():
        shutil.copy(file, directory)
        (directory / file.name).chmod(0o700)
    subprocess.run(["/bin/sh", "run.sh"], cwd=directory, check=True, timeout=_TIMEOUT)
    try:
        deadline = time.monotonic() + _TIMEOUT
        while not asyncio.run(_serves_resources(directory / "kubeconfig")):
            assert time.monotonic() < deadline, (directory / "api.log").read_text()[-2000:]
            time.sleep(0.5)
        yield directory / "kubeconfig"
    finally:
        for name in ("api.pid", "etcd.pid"):
            with suppress(ProcessLookupError):
                os.kill(int((directory / name).read_text()), signal.SIGKILL)


@pytest.mark.parametrize("module", ["kubernetes_semantics", "kubernetes_store"])
def test_the_fake_api_server_behaves_like_a_real_one(module: str, real: Path) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", str(real)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
