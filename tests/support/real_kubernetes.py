"""A real Kubernetes API server for custom resources. Opt-in, because CI cannot install one.

KUBE_API names a directory with a `run.sh` that starts such a server with an etcd, and writes `kubeconfig`, `admin.crt`,
`admin.key`, `api.pid` and `etcd.pid` next to itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.waiting import eventually

VARIABLE = "KUBE_API"
OPT_IN = [
    pytest.mark.slow,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no API server"),
]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
START_TIMEOUT = 120.0


class RealApiServer:
    """A running API server."""

    def __init__(self, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        self._url = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._tls.load_cert_chain(directory / "admin.crt", directory / "admin.key")

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of the response. The status is 0 if the server cannot be reached."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"content-type": content_type}, method=method)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            with suppress(ValueError):
                return error.code, json.loads(text)
            return error.code, {"message": text}
        except OSError as error:
            return 0, {"message": str(error)}

    @property
    def is_ready(self) -> bool:
        """Return whether the server serves resources."""
        return self.call("GET", DEFINITIONS)[0] == 200


@contextmanager
def real_api_server(directory: Path) -> Iterator[RealApiServer]:
    """Start the API server in `directory`, and end it."""
    for file in Path(os.environ[VARIABLE]).iterdir():
        shutil.copy(file, directory)
        (directory / file.name).chmod(0o700)
    subprocess.run(["/bin/sh", "run.sh"], cwd=directory, check=True, timeout=START_TIMEOUT)
    try:
        server = RealApiServer(directory)
        eventually(lambda: server.is_ready, START_TIMEOUT, 0.5)
        yield server
    finally:
        for name in ("api.pid", "etcd.pid"):
            with suppress(ProcessLookupError):
                os.kill(int((directory / name).read_text()), signal.SIGKILL)
