"""The style checker finds each pattern, and reports new text alone."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from tests.docs import regenerate
from tests.style import __main__ as command
from tests.style import check, rules
from tests.support.paths import ROOT

PAGE = PurePath("docs/page.md")
LONG = "lbctl reads " + "and writes " * 20 + "files."
BAD = {
    "is-no": "PATH is no regular file.",
    "who": "The picker knows who asks.",
    "mended": "The file was mended.",
    "told": "The proxy is told the new weight.",
    "says": "The rule says which key is missing.",
    "stands": "The key stands in a section.",
    "beside": "The file is beside the fleet.",
    "all-the-same": "A rollback applies all the same.",
    "of-its-own": "The replica has a key of its own.",
    "so-many": "The picker waits so long.",
    "back": "The store came back.",
    "nobody": "The pool is served by nobody.",
    "last-valid": "The reload kept what was good.",
    "that-of": "The address is that of the listener.",
    "one-that": "The request goes to one that is idle.",
    "such-that": "The weights are set such that none is zero.",
    "headless": "What a code means, offline.",
    "fragment": "Of the newest sample.",
    "long-sentence": LONG,
}
GOOD = (
    "PATH is not a regular file.",
    "There is no pool of this name, and the member is no longer the leader.",
    "The operator who started the rollout gets an event.",
    "A proxy stands in front of its replicas.",
    "What does a code mean? `lbctl rule` explains it.",
    "Of 20 replicas, three are drained.",
    "The key `who is no` is code.",
    "As for files, the one that is newer wins.",
    " ".join(f"`{number}`" for number in range(rules.MAX_WORDS)) + ".",
)


def names(path: PurePath, content: str) -> list[str]:
    """Return the rules with a finding, one for each finding."""
    return [finding.rule.name for finding in check.findings(path, content)]


def test_each_rule_has_an_example() -> None:
    assert set(BAD) == {rule.name for rule in (*rules.PROSE, rules.SENTENCE)}


@pytest.mark.parametrize("name", BAD)
def test_each_pattern_is_found_in_each_kind_of_text(name: str) -> None:
    text = BAD[name]
    assert names(PAGE, text) == [name]
    assert names(PAGE, f"| key | {text} |") == [name]
    assert names(PurePath("examples/fleet.yaml"), f"# {text}\nversion: 1\n") == [name]
    assert names(PurePath("lbctl/page.py"), f'"""{text}"""\n') == [name]
    assert names(PurePath("lbctl/page.py"), f'help = "{text}"\n') == [name]
    assert names(PurePath("lbctl/page.py"), f'text = f"{{pool}}: {text}"\n') == [name] or name == "fragment"
    assert names(PurePath("tests/page.py"), f"x = 1  # {text}\n") == [name]


def test_front_matter_is_read_value_by_value() -> None:
    assert names(PAGE, "---\ncode: LB101\ntitle: 'a file that is no page'\nseverity: note\n---\n\nText.\n") == ["is-no"]
    assert fingerprints("docs/a.md", "---\ntitle: it is no page\n---\n") == fingerprints("docs/a.md", "it is no page\n")


@pytest.mark.parametrize("text", GOOD)
def test_plain_sentences_are_not_reported(text: str) -> None:
    assert names(PAGE, text) == []


def test_code_and_test_data_are_not_reported() -> None:
    assert names(PAGE, "Run this:\n\n```console\n$ echo told\n```\n") == []
    assert names(PurePath("tests/unit/test_page.py"), 'assert page() == "PATH is no file"\n') == []
    assert names(PurePath("lbctl/page.py"), 'KEY = "told"\n') == []


@pytest.mark.parametrize(
    "name", ["MOST_BYTES", "_LARGEST_FILE", "BODY_LONGEST_LINE", "SHORTEST", "SMALLEST_SHARE", "_POLL_PACE", "PATIENCE"]
)
def test_names_of_constants_are_checked(name: str) -> None:
    assert names(PurePath("lbctl/page.py"), f"{name} = 1\n") == ["constant"]
    assert names(PurePath("lbctl/page.py"), f"class Page:\n    {name}: int = 1\n") == ["constant"]


@pytest.mark.parametrize("name", ["MAX_BYTES", "_POLL_INTERVAL", "ALMOST_FULL", "LEAST_REQUEST", "ROOMS"])
def test_standard_names_of_constants_are_accepted(name: str) -> None:
    assert names(PurePath("lbctl/page.py"), f"{name} = 1\n") == []


def test_names_of_tests_are_checked() -> None:
    path = PurePath("tests/unit/test_page.py")
    assert names(path, f"def test_{'a' * 55}() -> None: ...\n") == []
    assert names(path, f"def test_{'a' * 56}() -> None: ...\n") == ["long-test-name"]
    assert names(path, "async def test_proxy_is_told() -> None: ...\n") == ["told"]


def test_finding_has_the_line_and_the_better_word() -> None:
    docstring = '"""Read a file.\n\nThe path is that\nof the fleet, and is\nno directory.\n"""\n'
    found = [str(finding) for finding in check.findings(PurePath("lbctl/a.py"), docstring)]
    assert found[0] == 'lbctl/a.py:4: is-no: “is no”: write "is not a" or "are not"'
    assert found[1].startswith("lbctl/a.py:3: that-of: ")
    joined = 'x = 1\ntext = (\n    "a file "\n    "was mended"\n)\n'
    assert [finding.line for finding in check.findings(PurePath("lbctl/a.py"), joined)] == [4]


def fingerprints(path: str, content: str) -> set[str]:
    return {finding.fingerprint for finding in check.findings(PurePath(path), content)}


def test_fingerprint_survives_moves_wraps_and_renames() -> None:
    old = fingerprints("lbctl/serve/state.py", '"""Read lbctl/serve/state.py, which is no file of the user."""\n')
    assert old == fingerprints("docs/state.md", "Read `lbctl/store.py`, which is\nno file of the user.\n")
    assert old != fingerprints("docs/state.md", "Read `lbctl/store.py`, which is no directory of the user.\n")
    long = fingerprints("docs/a.md", LONG)
    wrapped = LONG.replace("writes and", "writes\nand", 1)
    assert long == fingerprints("lbctl/a.py", f'"""{wrapped}"""\n')


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one known finding and one that has been removed."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "old.md").write_text("PATH is no regular file.\n")
    entries = fingerprints("docs/old.md", "PATH is no regular file.\n") | {"0123456789"}
    (tmp_path / "baseline.txt").write_text(command.HEAD + "".join(f"{entry}\n" for entry in entries))
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "BASELINE", tmp_path / "baseline.txt")
    return tmp_path


def test_only_new_findings_fail(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    (tree / "docs" / "old.md").rename(tree / "README.md")
    assert command.main([]) == 0
    (tree / "docs" / "new.md").write_text("The file was\nmended.\n")
    capsys.readouterr()
    assert command.main([]) == 1
    assert capsys.readouterr().out == "docs/new.md:2: mended: “mended”: fixed\n"
    assert command.main(["README.md"]) == 0
    assert command.main(["--all", "README.md"]) == 1


def test_prune_removes_entries_and_adds_none(tree: Path) -> None:
    (tree / "docs" / "new.md").write_text("The file was mended.\n")
    known = check.baseline()
    assert command.main(["--prune"]) == 0
    assert check.baseline() == known - {"0123456789"}
    assert command.main([]) == 1


def test_generated_pages_are_read_in_their_source() -> None:
    read = {str(path.relative_to(ROOT)) for path in check.files()}
    assert {"README.md", "lbctl/cli/__init__.py", "docs/serve.md"} <= read
    assert read.isdisjoint(regenerate.PAGES.keys() - {"README.md"})  # a part of the README is generated


def test_each_exception_has_a_reason() -> None:
    assert [name for name in rules.SKIPPED if not (ROOT / name).exists()] == []
    assert all(rules.SKIPPED.values())
    assert all(allowed.reason for allowed in rules.ALLOWED)
    known = {rule.name for rule in rules.PROSE}
    assert {allowed.rule for allowed in rules.ALLOWED} <= known
