"""Every sample becomes a fleet, and every directive of it is carried over, done anyway, or a comment."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from lbctl.base.system_ca import PLACES
from lbctl.cli import run as command
from lbctl.importer.run import KINDS
from tests.benchmarks.imports import counts
from tests.support.importer import directives, imported, samples
from tests.support.paths import ROOT

pytestmark = pytest.mark.no_cover  # many of one kind, in which a trace would be most of the time

CASES = [pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind in KINDS for file in samples(kind)]
VALUES = re.compile(r"/\S+\.(?:pem|crt|key|crl)|\d+(?:\.\d+){3}/\d+")
"""Files of TLS and networks: what protects is made of them."""
SECRETS = re.compile(r"sk-[a-z0-9-]{6,}|team-[ab]-[0-9a-f]+|hunter2|s3cr3t")


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_every_directive_has_a_fate_and_comments_name_the_line(kind: str, file: Path) -> None:
    result, _ = imported(kind, file)
    fates = list(result.draft.ledger.fates())
    parents = {id(child): item for item, _ in fates for child in item.block}
    found = Counter((Path(item.position.file).name, item.position.line) for item, _ in fates)
    if file.suffix != ".json":  # of a dump, what Envoy notes about its resources is none of the configuration
        assert found == Counter(directives(kind, file))
    assert [str(item.position) for item, fate in fates if fate not in {"key", "lbctl", "comment"}] == []
    comments = "\n".join(line for line in result.text.splitlines() if line.lstrip().startswith("#"))
    for item, fate in fates:
        around = [item]
        while kind == "envoy" and id(around[-1]) in parents:  # there one comment stands for a block and its content
            around.append(parents[id(around[-1])])
        places = [f"{Path(each.position.file).name}:{each.position.line} " for each in around]
        assert fate != "comment" or any(place in comments for place in places), f"{item.position}: {item.text}"


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_the_result_is_a_fleet_that_its_proxy_renders(kind: str, file: Path, tmp_path: Path) -> None:
    result, _ = imported(kind, file)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(result.text, encoding="utf-8")
    for name, text in result.own.items():
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert command(["render", "-t", kind, str(fleet), "-d", str(tmp_path / "out")]) == 0
    assert result.draft.fleet["routes"]


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_a_file_or_a_network_that_counts_as_carried_over_is_in_the_fleet(kind: str, file: Path) -> None:
    result, _ = imported(kind, file)
    values = [line for line in result.text.splitlines() if not line.lstrip().startswith("#")]
    named = {
        word: item
        for item, fate in result.draft.ledger.fates()
        for word in item.args
        if fate == "key" and word not in PLACES and VALUES.fullmatch(word)
    }
    assert [str(item.position) for word, item in named.items() if not any(word in line for line in values)] == []


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_no_secret_of_the_source_is_in_the_fleet_or_in_a_message(kind: str, file: Path) -> None:
    result, diagnostics = imported(kind, file)
    output = "\n".join([result.text, *map(str, diagnostics)])
    assert SECRETS.findall(output) == []
    if SECRETS.search(file.read_text()):
        assert "LB984" in output


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_an_import_is_the_same_twice_and_its_lines_can_be_read(kind: str, file: Path) -> None:
    first, second = imported(kind, file)[0].text, imported(kind, file)[0].text
    assert first == second
    assert [line for line in first.splitlines()[4:] if len(line) > 130] == []


def test_the_table_of_the_documentation_is_current() -> None:
    table = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    rows = [counts(str(case.values[0]), Path(str(case.values[1]))) for case in CASES]
    assert [row for row in rows if row not in table] == []
    assert all(len(samples(kind)) >= 10 for kind in KINDS)
