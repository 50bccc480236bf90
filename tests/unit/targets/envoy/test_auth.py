from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.apply.binaries import find_binary
from lbctl.apply.files import write_bundle
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.envoy import TARGET
from lbctl.targets.target import Bundle
from tests.support.fleet import compiled

_FLEET = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080"}
  internal: {bind: "127.0.0.1:8081"}
routes:
  chat: {listeners: [public], match: {path_prefix: /chat}, pool: p, auth: {api_keys: {file: keys, header: x-key}}}
  open: {listeners: [internal], match: {path_prefix: /}, pool: p}
pools:
  p: {replicas: [{name: a, address: "127.0.0.1:9001"}]}
"""
_KEY = "sk-0123456789"


def _view(*keys: ApiKey, config: str | None = None) -> View:
    secrets = Secrets(api_keys={"keys": keys})
    return view(Snapshot(compiled(_FLEET).topology, secrets=secrets), Proxy("e", "envoy", (1, 40), config=config))


def _bundle(form: str = "yaml", config: str | None = None) -> Bundle:
    return TARGET.render(_view(ApiKey("acme", key=_KEY), config=config), form)


def _checked(bundle: Bundle, folder: Path) -> tuple[int, str]:
    binary = find_binary(TARGET)
    assert binary is not None
    write_bundle(bundle, str(folder))
    command = TARGET.check_command(binary, str(folder), str(folder / bundle.main.name))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _listeners(bundle: Bundle) -> list[list[str]]:
    main, apart = (yaml.safe_load(file.text) for file in bundle.files)
    return [[item["name"] for item in items] for items in (main["static_resources"]["listeners"], apart["resources"])]


def test_the_listener_with_keys_stands_in_a_secret_file_and_the_others_do_not() -> None:
    bundle = _bundle()
    assert [(file.name, file.secret) for file in bundle.files] == [
        ("envoy.yaml", False),
        ("envoy-listeners.yaml", True),
    ]
    assert _listeners(bundle) == [["internal"], ["public"]]
    assert _KEY not in bundle.main.text


def test_without_keys_there_is_one_file() -> None:
    assert [file.name for file in TARGET.render(_view()).files] == ["envoy.yaml"]


@pytest.mark.parametrize(
    ("config", "path"),
    [(None, "./envoy-listeners.json"), ("/etc/envoy/envoy.json", "/etc/envoy/envoy-listeners.json")],
)
def test_the_secret_file_is_named_beside_the_configuration(config: str | None, path: str) -> None:
    main: dict[str, Any] = yaml.safe_load(_bundle("json", config).main.text)
    assert main["dynamic_resources"]["lds_config"]["path_config_source"] == {"path": path}


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_envoys_checker_sees_the_secret_file_too(form: str, tmp_path: Path) -> None:
    bundle = _bundle(form)
    assert _checked(bundle, tmp_path)[0] == 0
    assert (tmp_path / "checked.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("path_separated_prefix: /chat", 'path_separated_prefix: "/x?"', ("routes", "chat")),
        (f"client: acme, key: {_KEY}", f"nonsense: acme, key: {_KEY}", ()),
        (f"key: {_KEY}", f"key: [{_KEY}]", ()),
    ],
)
def test_what_is_wrong_there_is_found_and_no_key_is_told(old: str, new: str, path: Any, tmp_path: Path) -> None:
    main, apart = _bundle().files
    old = old if old in apart.text else ", ".join(reversed(old.split(", ")))
    assert old in apart.text
    broken = Bundle((main, dataclasses.replace(apart, text=apart.text.replace(old, new))))
    code, output = _checked(broken, tmp_path)
    found = list(TARGET.complaints(output, broken))
    assert code == 1
    assert found
    assert not [item for item in found if _KEY in item.message]
    if path:
        assert [(item.path, item.file) for item in found] == [(path, "envoy-listeners.yaml")]


def test_a_key_of_which_only_the_hash_is_known_is_reported_without_it() -> None:
    bundle = TARGET.render(_view(ApiKey("acme", sha256="ab" * 32), ApiKey("b", key=_KEY)))
    (found,) = bundle.diagnostics
    assert (found.code, found.severity, found.path) == ("LB443", "warning", ("routes", "chat", "auth", "api_keys"))
    assert "abab" not in found.message + found.hint
    assert "abab" not in "".join(file.text for file in bundle.files)
