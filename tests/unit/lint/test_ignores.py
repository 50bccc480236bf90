"""Comments `# lbctl: ignore LBnnn (reason)`: their scope, and findings about unused or malformed comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.lint.run import CodeFilter
from tests.support.lint import codes, findings, linted, pointed, sample

LINE = "    balance: {algorithm: round_robin}"
FLEET = sample("balance: {algorithm: round_robin}\n")


def with_comment(comment: str) -> str:
    return FLEET.replace(LINE, f"{LINE}   {comment}")


def test_a_comment_silences_its_code_on_its_line() -> None:
    assert codes(FLEET) == ["LB210"]
    assert codes(with_comment("# lbctl: ignore LB210 (all requests are alike)")) == []
    assert codes(with_comment("# lbctl: ignore LB218, LB210 (alike)")) == ["LB017"]


def test_an_unused_comment_is_a_finding() -> None:
    text = with_comment("# lbctl: ignore LB310 (no)")
    diagnostics = findings(text)
    assert [(item.code, pointed(text, item)[:1]) for item in diagnostics] == [("LB210", "r"), ("LB017", "#")]
    above = FLEET.replace(LINE, f"    # lbctl: ignore LB210 (above)\n{LINE}")
    assert codes(above) == ["LB017", "LB210"]


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("# lbctl: ignore", "no code follows `ignore`"),
        ("# lbctl: ignore (why)", "no code follows `ignore`"),
        ("# lbctl: ignore LB210", "it needs a reason in parentheses after the code"),
        ("# lbctl: ignore LB210 ()", "its reason is empty"),
        ("# lbctl: ignore LB210 (why", "its reason has no closing parenthesis"),
        ("# lbctl: ignore LB210 (why) until May", "but 'until May' follows"),
        ("# lbctl: ignore LB21 (why)", "'LB21' is not a code"),
        ("# lbctl: ignore all (why)", "'all' is not a code"),
        ("# lbctl: ignore LB210 LB310 (why)", "codes must be separated by commas"),
        ("# lbctl: ignore LB299 (why)", "code LB299 does not exist"),
    ],
)
def test_a_malformed_comment_is_a_finding_with_a_reason(comment: str, why: str) -> None:
    diagnostics = findings(with_comment(comment))
    assert [item.code for item in diagnostics] == ["LB210", "LB018"]
    assert why in diagnostics[1].message


def test_a_word_that_starts_with_ignore_is_an_ordinary_comment() -> None:
    assert codes(with_comment("# lbctl: ignored LB210 (why)")) == ["LB210"]


@pytest.mark.parametrize("comment", ["ignore lb210 (alike)", "ignore LB210(alike)", "ignore LB210 (alike (all))  "])
def test_case_and_spacing_of_a_comment_are_flexible(comment: str) -> None:
    assert codes(with_comment(f"# lbctl: {comment}")) == []


def test_quoted_text_is_not_a_comment() -> None:
    quoted = sample(
        routes='chat: {match: {path_prefix: /v1/chat}, respond: {status: 410, body: "# lbctl: ignore x"}}\n'
        "all: {match: {path_prefix: /}, pool: llama}\n"
    )
    assert codes(quoted) == []


def test_a_comment_for_an_unchecked_code_is_accepted() -> None:
    text = sample().replace("version: 1\n", "version: 1   # lbctl: ignore LB222 (no load is stated here)\n")
    assert codes(text) == []
    chosen = CodeFilter(ignore=("LB210",))
    assert [item.code for item in linted(with_comment("# lbctl: ignore LB210 (x)"), choice=chosen).findings] == []


def test_errors_cannot_be_ignored() -> None:
    text = sample().replace("pool: llama}\n", "pool: lama}   # lbctl: ignore LB101 (it will come)\n")
    diagnostics = findings(text)
    assert [item.code for item in diagnostics] == ["LB101", "LB017"]
    assert "LB101: errors cannot be ignored" in diagnostics[1].message
    assert codes(with_comment("# lbctl: ignore LB101, LB210 (no)")) == ["LB017"]


SLOW_RING = sample(
    "balance: {algorithm: hash, hash: {key: {header: x}, bounded_load: 1.25}}\nslow_start: {window: 60s}\n"
)


@pytest.mark.parametrize("command", [["validate"], ["render", "-t", "haproxy"], ["lint", "--select", "LB303"]])
def test_a_comment_applies_to_validate_render_and_lint(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    for text, times in (
        (SLOW_RING, 1),
        (SLOW_RING.replace("window: 60s}", "window: 60s}   # lbctl: ignore LB303 (left out is right)"), 0),
    ):
        file.write_text(text)
        assert run([*command, str(file)]) == 0
        printed = capsys.readouterr()
        assert (printed.out + printed.err).count("LB303") == times


def test_render_omits_ignored_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    route = "chat: {match: {path_prefix: /v1/chat}, pool: llama, retry: {budget: 20%}}"
    file.write_text(sample(routes=f"{route}   # lbctl: ignore LB439 (known)\n"))
    assert run(["render", "-t", "nginx", str(file)]) == 0
    assert "LB439" not in capsys.readouterr().err
    assert codes(file.read_text()) == []
    assert codes(file.read_text().replace("LB439", "LB457")) == ["LB017"]


def test_a_missing_file_may_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = "tls: {certificates: [{certificate: tls/a.crt, key: tls/a.key}]}"
    listener = f'gateway: {{bind: "127.0.0.1:8443", {tls}}}   # lbctl: ignore LB110 (the proxy has it)\n'
    file = tmp_path / "fleet.yaml"
    file.write_text(sample(listener=listener))
    assert run(["validate", str(file)]) == 0
    assert "LB110" not in capsys.readouterr().err
    assert run(["render", "-t", "nginx", "--require-files", str(file)]) == 1
    assert "error LB110" in capsys.readouterr().err
    assert codes(file.read_text()) == []
    assert codes(FLEET.replace("version: 1\n", "version: 1   # lbctl: ignore LB110, LB902 (x)\n")) == ["LB017", "LB210"]


def test_a_comment_silences_one_place_of_a_proxy_loss() -> None:
    envoy = "proxies: {edge: {kind: envoy}}\n"
    least = "balance: {algorithm: least_time}\n"
    other = 'other:\n  replicas: [{name: c, address: "10.0.0.3:80"}, {name: d, address: "10.0.0.4:80"}]\n'
    fleet = sample(
        least, pools=f"{other}  balance: {{algorithm: least_time}}\n", more=envoy,
        routes="chat: {match: {path_prefix: /v1/chat}, split: {llama: 1, other: 1}}\n",
    )  # fmt: skip
    (both,) = linted(fleet).lines
    assert (both.code, "1 more place" in both.message) == ("LB457", True)
    line = next(line for line in fleet.splitlines() if "least_time" in line)
    (one,) = linted(fleet.replace(line, f"{line}   # lbctl: ignore LB457 (so be it)", 1)).lines
    assert (one.code, "more place" in one.message) == ("LB457", False)
