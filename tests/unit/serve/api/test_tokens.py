"""Token files: names and roles, and whose a token is."""

from __future__ import annotations

import pytest

from lbctl.serve.api.tokens import OPERATOR, Principal, parse, principal_of

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
def test_a_token_is_its_owners(given: bytes, expected: Principal | None) -> None:
    assert principal_of(parse(_FILE), given) == expected


def test_a_line_with_an_unknown_role_lets_nobody_in_with_its_last_part() -> None:
    known = parse(b"anna:admin:s3cret\n")
    assert principal_of(known, b"s3cret") is None


def test_an_empty_file_has_no_tokens() -> None:
    assert parse(b"\n# nothing\n \n") == ()
