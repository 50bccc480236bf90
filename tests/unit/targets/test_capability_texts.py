"""The texts of capabilities, which the capability page and the rule pages complete with a full stop."""

from __future__ import annotations

import pytest

from lbctl.targets import TARGETS, target
from lbctl.targets.target import Capability, NotYet, Rendered, Since, Unsupported


def texts(capability: Capability) -> list[str]:
    match capability:
        case Unsupported():
            return [capability.reason, capability.instead]
        case Since():
            return [*texts(capability.below), capability.note]
        case Rendered() | NotYet():
            return [capability.note]


@pytest.mark.parametrize("kind", TARGETS)
def test_texts_are_complete(kind: str) -> None:
    for feature, capability in target(kind).capabilities.items():
        for text in texts(capability):
            assert text == text.strip(" ."), (feature, text)


def test_envoy_gateway_supports_locality_in_part() -> None:
    locality = target("envoy-gateway").capabilities["pool.locality"]
    assert isinstance(locality, Rendered)
    assert locality.in_part
