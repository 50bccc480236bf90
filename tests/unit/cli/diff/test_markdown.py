"""`lbctl diff -o markdown`: a comment for a merge request, in which no text of the fleet acts as markup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from lbctl.base.printable import plain
from lbctl.cli import run
from lbctl.cli.markdown import MarkdownTable, code, document

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes:
  chat: {match: {path_prefix: /}, pool: llama}
pools:
  llama:
    replicas:
      - {name: a, address: "10.0.0.1:8000", weight: 1}
      - {name: b, address: "10.0.0.2:8000", weight: 1}
"""
HOSTILE = "</details>|`<img src=x>``[a](http://evil.example) @everyone \\| #1 $`x`$"


def comment_on(old: str, new: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the comment on the change from one fleet to another."""
    for name, text in (("old", old), ("new", new)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / "fleet.yaml").write_text(text)
    paths = [str(directory / name / "fleet.yaml") for name in ("new", "old")]
    assert run(["diff", paths[0], "--against", paths[1], "-o", "markdown"]) == 0
    return capsys.readouterr().out


def tokens(text: str) -> Iterator[Token]:
    """Yield every token, including those within a line, with the tables and HTML that GitHub and GitLab accept."""
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


def rows(text: str) -> list[list[str]]:
    """Return the displayed cells of all tables, including their heads."""
    table: list[list[str]] = []
    in_cell = False
    for token in tokens(text):
        if token.type == "tr_open":
            table.append([])
        elif token.type in ("th_open", "td_open"):
            table[-1].append("")
        in_cell = (in_cell or token.type in ("th_open", "td_open")) and token.type not in ("th_close", "td_close")
        if in_cell and token.type in ("text", "code_inline"):
            table[-1][-1] += token.content
    return table


def test_comment_has_a_summary_and_a_table_of_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = FLEET.replace("weight: 1}\n      - {name: b", "weight: 2}\n      - {name: c")
    new = new.replace("path_prefix: /}", "path_prefix: /v1/}")
    shown = comment_on(FLEET, new, tmp_path, capsys)
    file = tmp_path / "new" / "fleet.yaml"
    summary = "1 added, 1 removed, 2 settings changed, 1 group of requests rerouted, 3 shares changed"
    assert shown.startswith(f"**lbctl diff:** {summary}\n\n")
    assert rows(shown) == [
        ["Change", "Object", "Name", "Details"],
        ["removed", "replica", "llama/b", "10.0.0.2:8000, capacity 1"],
        ["added", "replica", "llama/c", "10.0.0.2:8000, capacity 1"],
        ["Route", "Pool or replica", "Before", "After", "Change"],
        ["chat", "llama/b", "50.00 %", "0.00 %", "-50.00"],
        ["chat", "llama/c", "0.00 %", "33.33 %", "+33.33"],
        ["chat", "llama/a", "50.00 %", "66.67 %", "+16.67"],
        ["Listener", "Requests", "Route before", "Route after"],
        ["gateway", "/…", "chat", "404"],
        ["Setting", "Before", "After", "Source"],
        ["pools.llama.replicas.a.capacity", "1", "2", f"{file}:8"],
        ["routes.chat.match.path_prefix", "/", "/v1", f"{file}:4"],
    ]


def test_no_difference_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert comment_on(FLEET, f"# a comment\n{FLEET}", tmp_path, capsys) == "**lbctl diff:** no difference\n"


def test_long_list_is_folded_and_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added = "".join(
        f'      - {{name: n{index:03}, address: "10.0.1.{index}:8000", weight: 1}}\n' for index in range(100)
    )
    shown = comment_on(FLEET, FLEET + added, tmp_path, capsys)
    assert "<details>\n<summary>Added and removed (100)</summary>\n\n| Change" in shown
    assert shown.count("<details>") == shown.count("\n\n</details>\n") == 2
    assert [row[2] for row in rows(shown)[1:101]] == [f"llama/n{index:03}" for index in range(100)]


def test_comment_is_below_the_size_limit_of_github(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added = "".join(
        f'      - {{name: n{index:04}, address: "10.1.{index // 200}.{index % 200}:8000", weight: 1}}\n'
        for index in range(2000)
    )
    shown = comment_on(FLEET, FLEET + added, tmp_path, capsys)
    assert len(shown) < 65_536
    listed = sum(row[0] == "added" for row in rows(shown))
    assert f"… and {2000 - listed} more: `lbctl diff -o json` shows all." in shown


def test_text_of_the_fleet_is_never_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked for a header's value, a path, and the name of the file. No line begins with the text of a fleet."""
    value = HOSTILE.replace("\\", "\\\\")
    new = FLEET.replace("path_prefix: /}", f'path_regex: "^/(a|`b`)/<i>$", headers: {{x-team: "{value}"}}}}')
    shown = comment_on(FLEET, new, tmp_path / "a|b`<b>@x", capsys)
    assert any(HOSTILE in cell for row in rows(shown) for cell in row)
    assert f"{tmp_path / 'a|b`<b>@x' / 'new' / 'fleet.yaml'}:4" in [row[-1] for row in rows(shown)]
    kinds = {token.type for token in tokens(shown)}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "s_open"}
    for token in tokens(shown):
        assert token.type != "text" or not any(sign in token.content for sign in "<@#`$[")
    assert {line[0] for line in shown.splitlines() if line} == {"*", "|"}


@given(st.text(st.sampled_from("`|\\ a<>[]()*_~@#$&;/\n\u202e") | st.characters(codec="utf-8"), max_size=20))
def test_any_text_stays_one_unchanged_cell(text: str) -> None:
    text_shown = document("x", [MarkdownTable("T", ("A", "B"), [(code(text), "end")])])
    assert [[cell.strip(" ") for cell in row] for row in rows(text_shown)] == [
        ["A", "B"],
        [plain(text).strip(" "), "end"],
    ]
    spans = [token.type for token in tokens(text_shown) if token.type not in ("text", "inline")]
    assert spans.count("code_inline") == bool(text)
    assert not {"html_inline", "link_open", "image", "em_open", "s_open"} & set(spans)


def test_markdown_has_the_usual_exit_codes(tmp_path: Path) -> None:
    for name, text in (("old", FLEET), ("new", FLEET.replace("weight: 1", "weight: 2", 1))):
        (tmp_path / name).write_text(text)
    arguments = ["diff", str(tmp_path / "new"), "--against", str(tmp_path / "old"), "-o", "markdown", "--exit-code"]
    assert run(arguments) == 2
    assert run([*arguments, "-t", "nginx"]) == 64
