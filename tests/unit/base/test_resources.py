from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from lbctl.base import resources
from tests.support.paths import ROOT


def copied_to(root: Path) -> ModuleType:
    """The module as it is, but lying in `root`/lbctl/base."""
    file = root / "lbctl" / "base" / "resources.py"
    file.parent.mkdir(parents=True)
    shutil.copy(resources.__file__, file)
    spec = importlib.util.spec_from_file_location("resources_elsewhere", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkout_uses_its_own_directories() -> None:
    assert resources.templates() == ROOT / "templates"
    assert resources.schemas() == ROOT / "schemas"


def test_a_wheel_uses_what_it_carries(tmp_path: Path) -> None:
    elsewhere = copied_to(tmp_path)
    for name in ("templates", "schemas"):
        (tmp_path / "lbctl" / "_data" / name).mkdir(parents=True)
    assert elsewhere.templates() == tmp_path / "lbctl" / "_data" / "templates"
    assert elsewhere.schemas() == tmp_path / "lbctl" / "_data" / "schemas"


def test_a_stranger_s_directory_beside_the_installed_package_is_not_taken(tmp_path: Path) -> None:
    elsewhere = copied_to(tmp_path)
    (tmp_path / "templates").mkdir()
    with pytest.raises(FileNotFoundError, match="templates are missing"):
        elsewhere.templates()


def test_missing_files_are_one_error_that_names_both_places(tmp_path: Path) -> None:
    elsewhere = copied_to(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        elsewhere.schemas()
    assert str(tmp_path / "lbctl" / "_data" / "schemas") in str(caught.value)
    assert str(tmp_path / "schemas") in str(caught.value)
