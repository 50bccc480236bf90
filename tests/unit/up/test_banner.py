"""The request to try: one that a replica of the fleet answers, with the key where it was just made."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.serve.settings import Options, settings
from lbctl.targets.load import load
from lbctl.up.banner import banner
from lbctl.up.keys import KeyFiles
from lbctl.up.prepare import PreparedRun

FLEET = """\
version: 1
listeners: {{gateway: {{bind: "{bind}"}}}}
routes: {{chat: {{match: {{{match}}}, pool: llama{auth}}}}}
pools: {{llama: {{{model}replicas: [{{address: "127.0.0.1:9001"}}]}}}}
"""
CHAT = """curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \
-d '{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}'"""


@pytest.mark.parametrize(
    ("match", "model", "shown"),
    [
        ("path_prefix: /v1/", "model: {name: m}, ", CHAT),
        ("path_prefix: /, model: [m]", "", CHAT),
        ("path: /v1/chat/completions", "model: {name: m}, ", CHAT),
        ("path_prefix: /v1/", "", "curl http://127.0.0.1:8080/v1/models"),
        ("path_prefix: /v2/models/a", "model: {name: m}, ", "curl http://127.0.0.1:8080/v2/models/a"),
        ("path: /predict, hosts: [a.example]", "", "curl -H 'host: a.example' http://127.0.0.1:8080/predict"),
    ],
)
def test_a_request_fits_the_route(tmp_path: Path, match: str, model: str, shown: str) -> None:
    assert f"  try        {shown}\n" in text(tmp_path, match, model)


def test_all_addresses_are_reached_from_this_machine(tmp_path: Path) -> None:
    assert "curl http://127.0.0.1:8080/v1/models" in text(tmp_path, "path_prefix: /v1/", bind="0.0.0.0:8080")
    by_socket = "curl --unix-socket /run/in.sock http://localhost/v1/models"
    assert by_socket in text(tmp_path, "path_prefix: /v1/", bind="unix:/run/in.sock")


def test_the_key_is_in_it_only_where_it_was_just_made(tmp_path: Path) -> None:
    auth, file = ", auth: {api_keys: {file: keys}}", tmp_path / "keys"
    file.write_text("")
    made = text(tmp_path, "path_prefix: /v1/", auth=auth, keys=KeyFiles({file: "sk-new"}, {"chat": file}))
    assert '/v1/models -H "authorization: Bearer sk-new"\n' in made
    assert f"  key        sk-new   (shown only now; its line is in {file})\n" in made
    earlier = text(tmp_path, "path_prefix: /v1/", auth=auth, keys=KeyFiles({}, {"chat": file}))
    assert '/v1/models -H "authorization: Bearer $KEY"\n' in earlier
    assert f"  key        one of those in {file};" in earlier


def text(
    tmp_path: Path,
    match: str,
    model: str = "",
    *,
    bind: str = "127.0.0.1:8080",
    auth: str = "",
    keys: KeyFiles | None = None,
) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(bind=bind, match=match, model=model, auth=auth))
    diagnostics = Diagnostics()
    loaded = load([str(file)], diagnostics)
    assert loaded is not None, [str(item) for item in diagnostics]
    prepared = PreparedRun([], (str(file),), loaded, keys or KeyFiles({}, {}), None)
    return banner(prepared, settings(Options((str(file),), str(tmp_path)), loaded.source))
