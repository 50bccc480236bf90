"""Files generated from the code are current, and the capability table behind them is complete."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from lbctl.targets import KINDS, MANIFESTS, TARGETS, capability_page, target
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Since, Unsupported
from tests.docs.regenerate import PAGES, ROOT, orphans
from tests.support.tools import require_tool


@pytest.mark.parametrize("name", PAGES)
def test_generated_file_is_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run `python -m tests.docs.regenerate`"


def test_share_has_no_files_of_removed_commands() -> None:
    assert orphans() == [], "run `python -m tests.docs.regenerate`"


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/share/man/")])
def test_groff_reads_a_manual_page_without_warnings(name: str) -> None:
    process = subprocess.run(
        [require_tool("groff"), "-k", "-man", "-ww", "-z", "-Tutf8", ROOT / name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("kind", TARGETS)
def test_every_target_lists_exactly_the_features(kind: str) -> None:
    assert Counter(target(kind).capabilities.keys()) == Counter(feature.id for feature in FEATURES)


@pytest.mark.parametrize("kind", TARGETS)
def test_unsupported_features_have_a_reason_and_an_alternative(kind: str) -> None:
    refusals = {
        name: capability.below if isinstance(capability, Since) else capability
        for name, capability in target(kind).capabilities.items()
    }
    incomplete = [
        name
        for name, refusal in refusals.items()
        if isinstance(refusal, Unsupported) and not (refusal.reason.strip() and refusal.instead.strip())
    ]
    assert incomplete == []


def test_every_feature_has_a_unique_code() -> None:
    shared = [code for code, count in Counter(feature.code for feature in FEATURES).items() if count > 1]
    assert shared == []
    assert "LB499" not in {feature.code for feature in FEATURES}


def test_table_has_every_feature_of_every_proxy() -> None:
    rows = [line.split(" | ") for line in capability_page.page().splitlines() if line.startswith("| ")]
    titles = Counter(row[0].removeprefix("| ").removesuffix(" †") for row in rows)
    assert {feature.title: titles[feature.title] for feature in FEATURES} == dict.fromkeys(
        (feature.title for feature in FEATURES), 2
    )
    assert {len(row) for row in rows} == {2 + len(KINDS), 2 + len(MANIFESTS.names)}
