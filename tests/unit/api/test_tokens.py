"""Token files: names, roles and the principal of a token."""

from __future__ import annotations

import pytest

from lbctl.api.tokens import OPERATOR, Principal, parse, token_of

_FILE = b"""# who may do what
plain-token-of-old

anna:operate:s3cret-of-anna
grafana:read:s3cret:with:colons
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"plain-token-of-old", OPERATOR),
        (b"s3cret-of-anna", Principal("anna", "operate")),
        (b"s3cret:with:colons", Principal("grafana", "read")),
        (b"anna:operate:s3cret-of-anna", None),
        (b"# who may do what", None),
        (b"", None),
    ],
)
def test_token_belongs_to_its_principal(given: bytes, expected: Principal | None) -> None:
    token = token_of(parse(_FILE), given)
    assert (token.principal if token else None) == expected


def test_line_with_unknown_role_grants_no_access() -> None:
    tokens = parse(b"anna:admin:s3cret\n")
    assert token_of(tokens, b"s3cret") is None


def test_empty_file_has_no_tokens() -> None:
    assert parse(b"\n# nothing\n \n") == ()
