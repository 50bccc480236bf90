"""The diagram script rejects diagrams that would be unreadable."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.docs.diagrams import DIAGRAMS, WIDTH, Arrow, Box, Diagram, Row


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagram_is_valid_and_fits_a_phone(name: str) -> None:
    root = ElementTree.fromstring(DIAGRAMS[name].svg())
    assert root.get("viewBox", "").startswith(f"0 0 {WIDTH} ")
    assert WIDTH <= 390


def test_diagram_has_colours_for_dark_mode() -> None:
    assert "prefers-color-scheme: dark" in Diagram([Row([Box("a")])]).svg()


@pytest.mark.parametrize(
    ("diagram", "message"),
    [
        (Diagram([Row([Box("w" * 80)])]), "wider than its box"),
        (Diagram([Row([Box("a")]), Row([Box("b")])], [Arrow("a", "b", "label " * 20)]), "outside of the diagram"),
        (Diagram([Row([Box("a"), Box("b")])], [Arrow("a", "b", "long label")]), "overlaps"),
        (Diagram([Row([Box("a")]), Row([Box("b")]), Row([Box("c")])], [Arrow("a", "c")]), "not neighbours"),
        (Diagram([Row([Box("a"), None]), Row([None, Box("b")])], [Arrow("a", "b")]), "not above one another"),
    ],
)
def test_unreadable_diagram_is_refused(diagram: Diagram, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diagram.svg()
