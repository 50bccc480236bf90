"""Envoy reads its listeners with keys from a secret file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lbctl.targets.envoy import TARGET
from lbctl.targets.target import Bundle
from tests.support.envoy import API_KEY, bundle_with_key, check_bundle


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_checker_reads_the_secret_file(form: str, tmp_path: Path) -> None:
    bundle = bundle_with_key(form)
    assert check_bundle(bundle, tmp_path)[0] == 0
    assert (tmp_path / "checked.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("path_separated_prefix: /chat", 'path_separated_prefix: "/x?"', ("routes", "chat")),
        (f"client: acme, key: {API_KEY}", f"nonsense: acme, key: {API_KEY}", ()),
        (f"key: {API_KEY}", f"key: [{API_KEY}]", ()),
    ],
)
def test_errors_in_the_secret_file_contain_no_key(old: str, new: str, path: Any, tmp_path: Path) -> None:
    main, apart = bundle_with_key().files
    old = old if old in apart.text else ", ".join(reversed(old.split(", ")))
    assert old in apart.text
    broken = Bundle((main, dataclasses.replace(apart, text=apart.text.replace(old, new))))
    code, output = check_bundle(broken, tmp_path)
    complaints = list(TARGET.complaints(output, broken))
    assert code == 1
    assert complaints
    assert not [item for item in complaints if API_KEY in item.message]
    if path:
        assert [(item.path, item.file) for item in complaints] == [(path, "envoy-listeners.yaml")]
