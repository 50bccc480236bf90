"""The section `control` can be read from files with errors in other sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.model.control_section import ControlSection, control_alone, without_control
from lbctl.model.load import SourceText

CONTROL = """\
control:
  # where it listens
  api: {bind: 127.0.0.1:19090}
  state: state
  xds:
    bind: 127.0.0.1:19001
"""
POOLS = "pools:\n  llama:\n    replicas: [{address: 10.0.0.1:8000}]\n"


def section_of(text: str) -> ControlSection:
    return control_alone([SourceText("fleet.yaml", text.encode(), ".")])


def bind_of(section: ControlSection) -> str:
    assert section.source is not None
    bind = section.source.fleet.control.api.bind
    return f"{bind.host}:{bind.port}"


@pytest.mark.parametrize(
    "text",
    [
        f"version: 1\npools: [\n{CONTROL}",
        f"version: 1\n{CONTROL}pools:\n  a: {{replicas: [\n",
        f"version: 1\n{CONTROL}pools:\n  a:\n   b: 1\n  \tc: 2\n",
        f"version: 2\n{CONTROL}{POOLS}",
        f"<<<<<<< ours\n{CONTROL}=======\n{POOLS}",
        f"{POOLS}{CONTROL}",
        'version: 1\npools: [\n"control": {\n  api: {bind: 127.0.0.1:19090}, state: state\n}\n',
    ],
    ids=["before", "after", "tab", "version", "merge conflict", "no version", "flow"],
)
def test_section_is_read_from_a_broken_file(text: str) -> None:
    section = section_of(text)
    assert bind_of(section) == "127.0.0.1:19090"
    assert section.lost is None
    assert not section.lacks("state")


def test_file_that_is_not_text_still_has_its_section() -> None:
    section = control_alone([SourceText("fleet.yaml", b"version: 1\npools: \xff\xfe\n" + CONTROL.encode(), ".")])
    assert bind_of(section) == "127.0.0.1:19090"


def test_keys_next_to_a_broken_key_remain() -> None:
    section = section_of(f"version: 1\n{CONTROL.replace('state: state', 'state: [')}")
    assert bind_of(section) == "127.0.0.1:19090"
    assert section.lost is not None
    assert section.lost.position is not None
    assert section.lost.position.line == 7
    assert (section.lacks("state"), section.lacks("api"), section.lacks("store")) == (True, False, False)


def test_key_with_a_wrong_value_is_lost() -> None:
    section = section_of(CONTROL.replace("127.0.0.1:19090", "nowhere"))
    assert section.lost is not None
    assert section.lost.path == ("control", "api", "bind")
    assert not section.lacks("state")


def test_files_without_the_section_lack_nothing() -> None:
    section = section_of("version: 1\npools: [\n")
    assert section.source is None
    assert not section.lacks("state")


def test_relative_paths_and_positions_stay(tmp_path: Path) -> None:
    section = control_alone([SourceText("fleet.yaml", f"pools: [\n{CONTROL}".encode(), str(tmp_path))])
    assert section.source is not None
    assert section.source.roots == {"fleet.yaml": str(tmp_path)}
    assert isinstance(section.source.root.value, dict)
    assert section.source.root.value["control"].key_line == 2


def test_files_that_differ_in_the_section_are_the_same_fleet() -> None:
    one, other = (
        SourceText("fleet.yaml", f"version: 1\n{CONTROL.replace('19090', port)}{POOLS}".encode(), ".")
        for port in ("19090", "19091")
    )
    assert without_control(one) == without_control(other)
    assert POOLS.encode() in without_control(one).data


def test_comment_above_the_next_key_is_outside_of_the_section() -> None:
    text = SourceText("fleet.yaml", f"version: 1\n{CONTROL}\n# the pools\n{POOLS}".encode(), ".")
    assert without_control(text).data == f"version: 1\n\n# the pools\n{POOLS}".encode()
    last = SourceText("fleet.yaml", f"version: 1\n{POOLS}{CONTROL}# one line more\n".encode(), ".")
    assert without_control(last).data == f"version: 1\n{POOLS}# one line more\n".encode()
