"""An incremental parse, which reuses unchanged parts of the previous text, equals a full parse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.model.load import ParsedFiles, SourceText
from lbctl.model.node import Node
from lbctl.model.reparse import Parsed, reparse
from lbctl.model.yaml import MAX_NODES, read_counted

_TEXT = """\
version: 1
# of the whole fleet
listeners:
  public: {bind: "127.0.0.1:8080"}

routes:
  first: {match: {path_prefix: /}, pool: one}
  second:
    match: {path_prefix: /x}   # a comment
    pool: two
pools:
  # about one
  one:
    replicas:
      - {name: a, address: "127.0.0.1:9001"}
      - {name: b, address: "127.0.0.1:9002"}
  two:
    labels: {text: "of two
      lines"}
    replicas:
    - address: "127.0.0.1:9003"
  three:
    labels:
      note: |
        pools:
          one: text
    replicas: []
gpus: {X1: 3}
"""
_LINES = (
    "  four: {replicas: []}", "  one: {}", "    more: 1", "    more: 1\r", "   more: 1", " more: 1",
    "more: 1", "  - item", "    - item", "    text", '  "quoted": 1', "    note: 'open", '    note: "open',
    "    note: {open: 1,", "  }", "    ]", "    note: |", "    note: |2+", "    note: >-", "  ? key",
    "  : value", "---", "...", "%TAG ! tag:x", "    x: &a 1", "    y: *a", "    z: !tag 1", "    <<: {}",
    "\t", "    \tx: 1", "    x: \t1", "#", "      # deep", "  {flow: 1}", "  five: {a: 1}, six: 2",
    "    bad: \u2028", "    bad: \x07", "# -----BEGIN RSA", "  PRIVATE KEY: 1", "pools: {}", "pools:",
    "routes:", "    version: 2", "version: 2", "    é: ü", "  é:", "    a: 1: 2", "  one:two",
    "    0x10: 1e400",
)  # fmt: skip


def _shown(node: Node | None) -> Any:
    if node is None:
        return None
    value: Any = node.value
    if isinstance(value, dict):
        value = [(key, _shown(child)) for key, child in value.items()]
    elif isinstance(value, list):
        value = [_shown(child) for child in value]
    return type(node.value), value, node.file, node.line, node.column, node.key_line, node.key_column


def _parsed(files: ParsedFiles, text: str) -> tuple[Any, tuple[str, ...]]:
    diagnostics = Diagnostics()
    roots = files.parse([SourceText("fleet.yaml", text.encode(), ".")], diagnostics)
    return [_shown(root) for root in roots], tuple(map(str, diagnostics))


def parsed_text(text: str) -> Parsed:
    root, count = read_counted(text.encode(), "fleet.yaml", Diagnostics())
    assert root is not None
    return Parsed(text.encode(), root, count)


@st.composite
def _edits(draw: st.DrawFn) -> list[str]:
    """Draw texts; each one replaces a few adjacent lines of the previous one."""
    lines, texts = _TEXT.split("\n"), []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(lines)))
        end = draw(st.integers(first, min(len(lines), first + 2)))
        line = st.sampled_from(_TEXT.split("\n")) | st.sampled_from(_LINES)
        lines = [*lines[:first], *draw(st.lists(line, max_size=2)), *lines[end:]]
        texts.append("\n".join(lines))
    return texts


@given(_edits())
@example([_TEXT.replace("  two:\n", "  two:\n    x: 'open\n"), _TEXT])
@example([_TEXT.replace("replicas: []\n", "replicas: []\n...\n")])
@example([_TEXT.replace("\ngpus: {X1: 3}\n", "")])
@example([_TEXT.replace("          one: text\n    replicas: []\n", "")])
@pytest.mark.slow
def test_an_incremental_parse_equals_a_full_parse(texts: list[str]) -> None:
    files = ParsedFiles()
    for text in (_TEXT, *texts, _TEXT):
        assert _parsed(files, text) == _parsed(ParsedFiles(), text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("9001", "9000"),
        ("9003", "9000"),
        ("    pool: two\n", "    pool: two\n    queue_priority: high\n"),
        ("  two:\n", "  half: {replicas: []}\n  two:\n"),
        ("   # a comment\n", "\n\n    # comments\n"),
        ('      - {name: b, address: "127.0.0.1:9002"}\n', ""),
        ("    replicas: []\n", "    replicas: []\n  four: {}\n"),
        ("  first: {match: {path_prefix: /}, pool: one}\n  second:\n", "  both:\n"),
    ],
)  # fmt: skip
def test_only_the_changed_section_is_parsed(old: str, new: str) -> None:
    before, text = parsed_text(_TEXT), _TEXT.replace(old, new)
    after = reparse(before, text.encode())
    assert after is not None
    assert _shown(after.root) == _shown(parsed_text(text).root)
    assert isinstance(after.root.value, dict)
    assert isinstance(before.root.value, dict)
    assert after.root.value["listeners"] is before.root.value["listeners"]


def test_nodes_above_the_change_are_reused() -> None:
    before = parsed_text(_TEXT)
    after = reparse(before, _TEXT.replace("9003", '9000"\n    - address: "127.0.0.1:9004').encode())
    assert after is not None
    assert isinstance(after.root.value, dict)
    assert isinstance(before.root.value, dict)
    pools, earlier = after.root.value["pools"].value, before.root.value["pools"].value
    assert isinstance(pools, dict)
    assert isinstance(earlier, dict)
    assert pools["one"] is earlier["one"]
    assert pools["three"].line == earlier["three"].line + 1


def test_changes_do_not_exceed_the_maximum_number_of_values() -> None:
    before = parsed_text(_TEXT)._replace(nodes=MAX_NODES - 3)
    assert reparse(before, _TEXT.replace("{X1: 3}", "{X1: 3}\n").encode()) is None
    assert reparse(before, _TEXT.replace("9001", "9000").encode()) is None
