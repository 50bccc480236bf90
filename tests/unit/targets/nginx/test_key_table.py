"""The table in which nginx looks API keys up."""

from __future__ import annotations

from lbctl.ir.secrets import ApiKey
from lbctl.targets.nginx.key_table import END, table


def test_each_key_is_one_string_without_expressions() -> None:
    many = table(ApiKey(f"t{number}", key=f"sk-{number:06}") for number in range(10_000))
    assert len(many.lines) == 10_000
    assert many.lines[7] == '"\\\\sk-000007" "t7 sk-000007";\n'
    assert not any(line.startswith('"~') for line in many.lines)


def test_keys_with_the_same_end_share_a_line() -> None:
    words = {"a": "Key", "b": "KEY", "c": "x" * END, "d": "y" + "x" * END}
    keys = [ApiKey(tenant, key=key) for tenant, key in words.items()]
    lines = table(keys).lines
    assert lines == (
        '"\\\\key" "a Key b KEY";\n',
        f'"\\\\{"x" * END}" "c {"x" * END} d y{"x" * END}";\n',
    )


def test_keys_that_fit_no_token_are_refused_and_counted() -> None:
    keys = [ApiKey("t", key=f"{number:02}{'x' * 254}") for number in range(20)]
    assert table(keys).lines == ()
    assert table(keys).refused == 20
