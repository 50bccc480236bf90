"""The fake Kubernetes API server of the tests, compared with a real one (`tests.support.real_kubernetes`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.real_kubernetes import OPT_IN, START_TIMEOUT, real_api_server

pytestmark = OPT_IN


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a real API server, and return the path of its kubeconfig."""
    with real_api_server(tmp_path_factory.mktemp("kube-api")) as server:
        yield server.kubeconfig


@pytest.mark.parametrize("module", ["kubernetes_semantics", "kubernetes_store"])
def test_the_fake_api_server_behaves_like_a_real_one(module: str, real: Path) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", str(real)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_TIMEOUT, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
