"""`lbctl picker` reports files that it cannot use, and exits."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.processes.ports import HOST, free_pair

TLS = ("--tls-cert", "--tls-key", "--tls-client-ca")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tls-ca", "missing"), "--tls-ca: missing: No such file or directory"),
        (("--tls-ca", "nonsense"), "--tls-ca: nonsense: "),
        ([word for option in TLS for word in (option, "missing")], "missing: "),
        ([word for option in TLS for word in (option, "nonsense")], "nonsense "),
    ],
)
def test_unusable_tls_file_is_reported(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nonsense").write_text("nonsense")
    command = ["picker", "--bind", f"{HOST}:{free_pair()}", "--server", "https://127.0.0.1:1", *options]
    assert run(command) == 1
    assert message in capsys.readouterr().err
