from __future__ import annotations

import errno

import pytest

from lbctl.base.errors import reason_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/etc/secret"), "Permission denied"),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError(errno.EINVAL, "not a regular file"), "not a regular file"),
        (OSError("not a regular file"), "not a regular file"),
        (OSError(), "OSError"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("two\n  lines"), "two lines"),
        (ValueError("x" * 300), "x" * 200),
        (ValueError(" \n"), "ValueError"),
    ],
)
def test_the_reason_is_one_line_and_never_empty(error: Exception, expected: str) -> None:
    assert reason_of(error) == expected


def test_an_exception_without_a_text_gets_the_given_text() -> None:
    assert reason_of(TimeoutError(), "no response within 5 s") == "no response within 5 s"
    assert reason_of(OSError(errno.EACCES, "Permission denied"), "no response within 5 s") == "Permission denied"
