"""What is generated from the code is current, and the capability table behind it is complete."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from lbctl.targets import KINDS, capability_page, target
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Since, Unsupported
from tests.docs.regenerate import PAGES, ROOT, orphans
from tests.support.tools import require_tool


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_file_says_what_the_code_says(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run `python -m tests.docs.regenerate`"


def test_nothing_in_share_belongs_to_a_command_that_has_gone() -> None:
    assert orphans() == [], "run `python -m tests.docs.regenerate`"


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/share/man/")])
def test_groff_reads_a_manual_page_without_a_warning(name: str) -> None:
    done = subprocess.run(
        [require_tool("groff"), "-k", "-man", "-ww", "-z", "-Tutf8", ROOT / name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", KINDS)
def test_every_target_answers_for_every_feature_and_for_nothing_else(kind: str) -> None:
    assert Counter(target(kind).capabilities.keys()) == Counter(feature.id for feature in FEATURES)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_says_no_says_why_and_what_happens_instead(kind: str) -> None:
    refusals = {
        name: capability.below if isinstance(capability, Since) else capability
        for name, capability in target(kind).capabilities.items()
    }
    silent = [
        name
        for name, held in refusals.items()
        if isinstance(held, Unsupported) and not (held.reason.strip() and held.instead.strip())
    ]
    assert silent == []


def test_every_feature_has_a_code_of_its_own() -> None:
    shared = [code for code, count in Counter(feature.code for feature in FEATURES).items() if count > 1]
    assert shared == []
    assert "LB499" not in {feature.code for feature in FEATURES}


def test_every_feature_of_every_proxy_stands_in_the_table() -> None:
    rows = [line.split(" | ") for line in capability_page.page().splitlines() if line.startswith("| ")]
    titles = Counter(row[0].removeprefix("| ").removesuffix(" †") for row in rows)
    assert {feature.title: titles[feature.title] for feature in FEATURES} == dict.fromkeys(
        (feature.title for feature in FEATURES), 1
    )
    assert {len(row) for row in rows} == {2 + len(KINDS)}
