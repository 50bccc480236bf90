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
from lbctl.ir.snapshot import Snapshot, view
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


def _bundle(form: str = "yaml", config: str | None = None) -> Bundle:
    secrets = Secrets(api_keys={"keys": (ApiKey("acme", key=_KEY),)})
    proxy = Proxy("e", "envoy", (1, 40), config=config)
    return TARGET.render(view(Snapshot(compiled(_FLEET).topology, secrets=secrets), proxy), form)


def _checked(bundle: Bundle, folder: Path) -> tuple[int, str]:
    binary = find_binary(TARGET)
    assert binary is not None
    write_bundle(bundle, str(folder))
    command = TARGET.check_command(binary, str(folder), str(folder / bundle.main.name))
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


def _listeners(bundle: Bundle) -> list[list[str]]:
    main, apart = (yaml.safe_load(file.text) for file in bundle.files)
    return [[item["name"] for item in items] for items in (main["static_resources"]["listeners"], apart["resources"])]


def test_listener_with_keys_is_in_a_secret_file() -> None:
    bundle = _bundle()
    assert [(file.name, file.secret) for file in bundle.files] == [
        ("envoy.yaml", False),
        ("envoy-listeners.yaml", True),
    ]
    assert _listeners(bundle) == [["internal"], ["public"]]
    assert _KEY not in bundle.main.text


@pytest.mark.parametrize(
    ("config", "path"),
    [(None, "./envoy-listeners.json"), ("/etc/envoy/envoy.json", "/etc/envoy/envoy-listeners.json")],
)
def test_secret_file_is_next_to_the_configuration(config: str | None, path: str) -> None:
    main: dict[str, Any] = yaml.safe_load(_bundle("json", config).main.text)
    assert main["dynamic_resources"]["lds_config"]["path_config_source"] == {"path": path}


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_checker_reads_the_secret_file(form: str, tmp_path: Path) -> None:
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
def test_errors_in_the_secret_file_contain_no_key(old: str, new: str, path: Any, tmp_path: Path) -> None:
    main, apart = _bundle().files
    old = old if old in apart.text else ", ".join(reversed(old.split(", ")))
    assert old in apart.text
    broken = Bundle((main, dataclasses.replace(apart, text=apart.text.replace(old, new))))
    code, output = _checked(broken, tmp_path)
    complaints = list(TARGET.complaints(output, broken))
    assert code == 1
    assert complaints
    assert not [item for item in complaints if _KEY in item.message]
    if path:
        assert [(item.path, item.file) for item in complaints] == [(path, "envoy-listeners.yaml")]
