"""Two directories cannot use the same file name for different files."""

from __future__ import annotations

from pathlib import Path

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import check_files
from lbctl.model.fleet import read
from tests.support.fleet import places


def test_same_name_for_different_files_is_an_error(tmp_path: Path) -> None:
    auth = "auth: {api_keys: {file: keys}}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f"sk-{name}: {name}\n")
        (tmp_path / name / "fleet.yaml").write_text(f"version: 1\nroutes: {{{name}: {{pool: p, {auth}}}}}\n")
    (tmp_path / "p.yaml").write_text('version: 1\npools: {p: {replicas: [{address: "127.0.0.1:1"}]}}\n')
    diagnostics = Diagnostics()
    source = read([str(tmp_path / name) for name in ("a", "b", "p.yaml")], diagnostics)
    assert source is not None
    check_files(source, False, diagnostics)
    assert places(list(diagnostics)) == ["2:47 LB118"]
