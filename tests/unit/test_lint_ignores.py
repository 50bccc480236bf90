"""`# lbctl: ignore LBnnn (reason)`: what it silences, and what is said of one that silences nothing."""

from __future__ import annotations

import pytest

from lbctl.lint.run import Choice
from lbctl.lint.sample import sample
from tests.support_lint import codes, findings, linted, pointed

LINE = "    balance: {algorithm: round_robin}"
FLEET = sample("balance: {algorithm: round_robin}\n")


def with_comment(comment: str) -> str:
    return FLEET.replace(LINE, f"{LINE}   {comment}")


def test_it_silences_its_code_on_its_line() -> None:
    assert codes(FLEET) == ["LB210"]
    assert codes(with_comment("# lbctl: ignore LB210 (all requests are alike)")) == []
    assert codes(with_comment("# lbctl: ignore LB218, LB210 (alike)")) == ["LB017"]


def test_elsewhere_or_with_another_code_it_is_a_finding_itself() -> None:
    text = with_comment("# lbctl: ignore LB310 (no)")
    found = findings(text)
    assert [(item.code, pointed(text, item)[:1]) for item in found] == [("LB210", "r"), ("LB017", "#")]
    above = FLEET.replace(LINE, f"    # lbctl: ignore LB210 (above)\n{LINE}")
    assert codes(above) == ["LB017", "LB210"]


@pytest.mark.parametrize(
    "comment",
    ["# lbctl: ignore LB210", "# lbctl: ignore", "# lbctl: ignore (why)", "# lbctl: ignore LB210 ()",
     "# lbctl: ignore LB21 (why)", "# lbctl: ignore all (why)", "# lbctl: ignored LB210 (why)"],
)  # fmt: skip
def test_without_code_or_reason_it_silences_nothing(comment: str) -> None:
    expected = ["LB210"] if "ignored" in comment else ["LB210", "LB018"]
    assert codes(with_comment(comment)) == expected


def test_text_that_only_looks_so_is_no_comment() -> None:
    quoted = sample(
        routes='chat: {match: {path_prefix: /v1/chat}, respond: {status: 410, body: "# lbctl: ignore x"}}\n'
    )
    assert codes(quoted) == []


def test_a_code_that_was_not_judged_is_not_held_against_its_comment() -> None:
    text = sample().replace("version: 1\n", "version: 1   # lbctl: ignore LB222 (no load is stated here)\n")
    assert codes(text) == []
    chosen = Choice(ignore=("LB210",))
    assert [item.code for item in linted(with_comment("# lbctl: ignore LB210 (x)"), choice=chosen).findings] == []


def test_it_cannot_silence_an_error_of_the_fleet() -> None:
    text = sample().replace("pool: llama}\n", "pool: lama}   # lbctl: ignore LB101 (it will come)\n")
    assert codes(text) == ["LB101"]


def test_it_silences_one_place_of_what_a_proxy_cannot_say() -> None:
    envoy = "proxies: {edge: {kind: envoy}}\n"
    least = "balance: {algorithm: least_time}\n"
    other = 'other:\n  replicas: [{name: c, address: "10.0.0.3:80"}, {name: d, address: "10.0.0.4:80"}]\n'
    fleet = sample(
        least, pools=f"{other}  balance: {{algorithm: least_time}}\n", more=envoy,
        routes="chat: {match: {path_prefix: /v1/chat}, split: {llama: 1, other: 1}}\n",
    )  # fmt: skip
    (both,) = findings(fleet)
    assert (both.code, "1 more place" in both.message) == ("LB457", True)
    line = next(line for line in fleet.splitlines() if "least_time" in line)
    (one,) = findings(fleet.replace(line, f"{line}   # lbctl: ignore LB457 (so be it)", 1))
    assert (one.code, "more place" in one.message) == ("LB457", False)
