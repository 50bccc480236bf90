"""Every sample becomes a fleet. Each of its directives is imported, covered by a default, or left as a comment."""

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

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

CASES = [pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind in KINDS for file in samples(kind)]
VALUES = re.compile(r"/\S+\.(?:pem|crt|key|crl)|\d+(?:\.\d+){3}/\d+")
"""Files of TLS and networks, which protections use."""
SECRETS = re.compile(r"sk-[a-z0-9-]{6,}|team-[ab]-[0-9a-f]+|hunter2|s3cr3t")


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_every_directive_has_a_result_or_a_comment(kind: str, file: Path) -> None:
    result, _ = imported(kind, file)
    fates = list(result.draft.ledger.fates())
    parents = {id(child): item for item, _ in fates for child in item.block}
    lines = Counter((Path(item.position.file).name, item.position.line) for item, _ in fates)
    if file.suffix != ".json":  # a dump also contains Envoy's notes about its resources
        assert lines == Counter(directives(kind, file))
    assert [str(item.position) for item, fate in fates if fate not in {"key", "lbctl", "comment"}] == []
    comments = "\n".join(line for line in result.text.splitlines() if line.lstrip().startswith("#"))
    for item, fate in fates:
        enclosing = [item]
        while kind == "envoy" and id(enclosing[-1]) in parents:  # in Envoy, one comment covers a block and its content
            enclosing.append(parents[id(enclosing[-1])])
        places = [f"{Path(each.position.file).name}:{each.position.line} " for each in enclosing]
        assert fate != "comment" or any(place in comments for place in places), f"{item.position}: {item.text}"


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_imported_fleet_renders_for_its_proxy(kind: str, file: Path, tmp_path: Path) -> None:
    result, _ = imported(kind, file)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(result.text, encoding="utf-8")
    for name, text in result.own.items():
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert command(["render", "-t", kind, str(fleet), "-d", str(tmp_path / "out")]) == 0
    assert result.draft.fleet["routes"]


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_imported_files_and_networks_are_in_the_fleet(kind: str, file: Path) -> None:
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
def test_secrets_of_the_source_are_not_written(kind: str, file: Path) -> None:
    result, diagnostics = imported(kind, file)
    output = "\n".join([result.text, *map(str, diagnostics)])
    assert SECRETS.findall(output) == []
    if SECRETS.search(file.read_text()):
        assert "LB984" in output


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file"), CASES)
def test_import_is_deterministic_with_short_lines(kind: str, file: Path) -> None:
    first, second = imported(kind, file)[0].text, imported(kind, file)[0].text
    assert first == second
    assert [line for line in first.splitlines()[4:] if len(line) > 130] == []


@pytest.mark.slow
def test_table_of_the_documentation_is_current() -> None:
    table = (ROOT / "docs" / "develop" / "import-samples.md").read_text(encoding="utf-8")
    rows = [counts(str(case.values[0]), Path(str(case.values[1]))) for case in CASES]
    assert [row for row in rows if row not in table] == []
    assert all(len(samples(kind)) >= 10 for kind in KINDS)
