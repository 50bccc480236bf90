from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from lbctl.base import resources
from tests.support.paths import ROOT


def module_copied_to(root: Path) -> ModuleType:
    """Return a copy of the module `resources` that is located in `root`/lbctl/base."""
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


def test_a_wheel_uses_its_packaged_directories(tmp_path: Path) -> None:
    elsewhere = module_copied_to(tmp_path)
    for name in ("templates", "schemas"):
        (tmp_path / "lbctl" / "_data" / name).mkdir(parents=True)
    assert elsewhere.templates() == tmp_path / "lbctl" / "_data" / "templates"
    assert elsewhere.schemas() == tmp_path / "lbctl" / "_data" / "schemas"


def test_an_unrelated_templates_directory_is_not_used(tmp_path: Path) -> None:
    elsewhere = module_copied_to(tmp_path)
    (tmp_path / "templates").mkdir()
    with pytest.raises(FileNotFoundError, match="templates are missing"):
        elsewhere.templates()


def test_a_missing_directory_is_an_error_with_both_paths(tmp_path: Path) -> None:
    elsewhere = module_copied_to(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        elsewhere.schemas()
    assert str(tmp_path / "lbctl" / "_data" / "schemas") in str(caught.value)
    assert str(tmp_path / "schemas") in str(caught.value)
