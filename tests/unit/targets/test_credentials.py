"""The file modes of rendered configurations with and without credentials."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lbctl.apply.files import write_bundle
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import target
from lbctl.targets.target import Bundle
from tests.support.fleet import OLDEST, compiled

_FLEET = """\
version: 1
listeners: {{main: {{bind: "127.0.0.1:8080"}}}}
routes: {{all: {{match: {{path_prefix: /{matched}}}, pool: p{headers}}}}}
pools: {{p: {{replicas: [{{address: "127.0.0.1:9001"}}]}}}}
"""
_SET = ", headers: {request: {set: {authorization: Bearer not-a-real-key-1}}}"
_MATCHED = ", headers: {x-api-key: not-a-real-key-1}"
_OWN_NAME = ", headers: {x-internal-access-token: not-a-real-key-1}"


def bundle_of(kind: str, text: str) -> Bundle:
    return target(kind).render(view(Snapshot(compiled(text).topology), Proxy("edge", kind, OLDEST[kind])))


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
@pytest.mark.parametrize(("matched", "headers"), [("", _SET), (_MATCHED, ""), (_OWN_NAME, "")])
def test_configuration_with_a_credential_is_private(kind: str, matched: str, headers: str, tmp_path: Path) -> None:
    write_bundle(bundle_of(kind, _FLEET.format(matched=matched, headers=headers)), str(tmp_path))
    secret_files = [item for item in tmp_path.iterdir() if "not-a-real-key-1" in item.read_text().replace("\\", "")]
    assert [stat.S_IMODE(item.stat().st_mode) for item in secret_files] == [0o600]


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_configuration_without_credentials_is_readable(kind: str, tmp_path: Path) -> None:
    write_bundle(bundle_of(kind, _FLEET.format(matched="", headers="")), str(tmp_path))
    assert {stat.S_IMODE(item.stat().st_mode) for item in tmp_path.iterdir()} == {0o644}
