"""`lbctl lint --fix`: safe fixes are applied in the file, and nothing else in it changes."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.lint.fix import apply_fixes
from lbctl.lint.rules import rules
from lbctl.model.load import SourceText
from tests.support.lint import LLM, codes, linted, sample

FIXED = [code for code, item in rules().items() if linted(item.page.before).fixes]
FLEET = """\
# The fleet of the first floor.
version: 1

listeners:
    public:   {bind: "127.0.0.1:8080"}   # behind the balancer

defaults:
    pool:
        health: {passive: {consecutive_5xx: 1}}     # one, since then

routes:
    chat:
        match: {path_prefix: '/v1/chat'}
        pool:  llama
        timeouts:
            # Nobody waits longer.
            request: 30s   # seconds
            idle: 60s

pools:
    llama:
        balance: {algorithm: round_robin,   hash: null}
        replicas:
        -   {name: a, address: "10.0.0.1:8000", gpu: H100-SXM}   # rack 1
        -   name: b
            address: "10.0.0.2:8000"
            gpu: H100-SXM
        # the end
""".replace(",   hash: null", "")
AFTER = (
    FLEET.replace("consecutive_5xx: 1}}     #", "consecutive_5xx: 5}}     #")
    .replace("request: 30s   #", "request: unlimited   #")
    .replace("idle: 60s", "idle: 5m")
    .replace("algorithm: round_robin}", "algorithm: least_request}")
)


@pytest.mark.parametrize("code", FIXED)
def test_a_fixed_fleet_has_no_findings(code: str) -> None:
    fleet = rules()[code].page.before
    text = SourceText("fleet.yaml", fleet.encode(), ".")
    (new,) = apply_fixes([text], linted(fleet).fixes)
    assert new.data != text.data
    assert codes(new.data.decode()) == []
    assert len(new.data.splitlines()) - len(text.data.splitlines()) in (0, -1)


def test_these_rules_have_a_safe_fix() -> None:
    assert {"LB210", "LB213", "LB310", "LB313", "LB321", "LB325", "LB612", "LB614", "LB615", "LB711"} <= set(FIXED)


def run_fix(file: Path, *more: str) -> int:
    return run(["lint", "--fix", *more, str(file)])


def test_only_values_change_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    file.chmod(0o640)
    assert run_fix(file) == 0
    assert file.read_text() == AFTER
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "form",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("  ", "   "),
        lambda text: "\ufeff" + text,
    ],
    ids=["line ends of Windows", "no last line end", "another indent", "byte order mark"],
)
def test_line_ends_indent_and_byte_order_mark_are_kept(form: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    text = sample(LLM + "connections: {idle: 60s}\n# why not\n")
    file.write_bytes(form(text).encode())
    assert run_fix(file) == 0
    assert file.read_bytes() == form(text.replace("idle: 60s}", "idle: 4s}")).encode()


def test_a_second_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(AFTER)
    before = file.stat().st_mtime_ns
    assert run_fix(file) == 0
    assert file.stat().st_mtime_ns == before
    assert "fixed" not in capsys.readouterr().err


def test_only_the_chosen_codes_are_fixed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    run_fix(file, "--select", "LB311")
    assert file.read_text() == FLEET.replace("idle: 60s", "idle: 5m")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("idle: '60s'", "idle: '5m'"),
        ('idle: "60s"', 'idle: "5m"'),
        ("idle: 60s, request: unlimited", "idle: 5m, request: unlimited"),
        ("request: unlimited,  idle:  60s ", "request: unlimited,  idle:  5m "),
        ("idle:\n        60s", "idle:\n        5m"),
        ("request: unlimited,\n      idle: 60s", "request: unlimited,\n      idle: 5m"),
        ("\n      idle: 60s, request: unlimited", "\n      idle: 5m, request: unlimited"),
    ],
)
def test_a_value_keeps_its_quotes_and_neighbours(before: str, after: str) -> None:
    text, expected = (
        sample(routes=f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama, timeouts: {{{timeouts}}}}}\n")
        for timeouts in (before, after)
    )
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hash: {key: {header: x-s}}", "hash: {key: {header: x-s}, bounded_load: 1.25}"),
        ("hash: { key: {header: x-s} }", "hash: { key: {header: x-s}, bounded_load: 1.25 }"),
        ("hash: {key: {header: x-s},}", "hash: {key: {header: x-s}, bounded_load: 1.25}"),
        ("hash: {key: {header: x-s},\n  }", "hash: {bounded_load: 1.25, key: {header: x-s},\n  }"),
        ("hash: {\n    key: {header: x-s}}", "hash: {bounded_load: 1.25,\n    key: {header: x-s}}"),
    ],
)
def test_an_added_key_follows_the_style_of_its_map(before: str, after: str) -> None:
    text, expected = (sample(f"balance: {{algorithm: hash, {settings}}}\n") for settings in (before, after))
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == expected
    assert codes(new.data.decode()) == []


def test_a_query_keeps_its_quotes_inside_quotes() -> None:
    query = 'max(vllm:gpu_cache_usage_perc{pod=\\"a\\"})'
    source = f'    - {{kind: prometheus, url: "http://prom:9090", signal: kv_cache, query: "{query}"}}   # why\n'
    text = sample(LLM + source)
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == text.replace("gpu_cache_usage_perc", "kv_cache_usage_perc")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    key:\n      header: x-s\n", "    bounded_load: 1.25\n    key:\n      header: x-s\n"),
        (
            "    # by session\n    key: {header: x-s}\n",
            "    # by session\n    key: {header: x-s}\n    bounded_load: 1.25\n",
        ),
        ("    key: {header: x-s}   # session\n", "    key: {header: x-s}   # session\n    bounded_load: 1.25\n"),
    ],
)
def test_an_added_key_is_a_line_of_a_block_map(before: str, after: str) -> None:
    text = sample(f"balance:\n  algorithm: hash\n  hash:\n{before}")
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == sample(f"balance:\n  algorithm: hash\n  hash:\n{after}")


def test_a_key_is_added_below_a_last_line_without_end() -> None:
    text = sample("balance:\n  algorithm: hash\n  hash:\n    key: {header: x-s}\n").rstrip("\n")
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == f"{text}\n        bounded_load: 1.25"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("deep: {min_free_memory: 2GiB, max_temperature: 85C}\n", "deep: {max_temperature: 85C}\n"),
        ("deep: {min_free_memory: 2GiB}\n", "deep: {}\n"),
        (
            "deep:\n    # both\n    min_free_memory: 2GiB   # old\n    max_temperature: 85C   # new\n",
            "deep:\n    # both\n    max_temperature: 85C   # new\n",
        ),
        ("deep:\n    min_free_memory: 2GiB   # old\n", "deep:\n    {}   # old\n"),
        (
            "deep: {\n    max_temperature: 85C,\n    min_free_memory: 2GiB,\n  }\n",
            "deep: {\n    max_temperature: 85C,\n  }\n",
        ),
    ],
)
def test_a_removed_key_leaves_its_neighbours(before: str, after: str) -> None:
    text = sample(f"{LLM}health:\n  {before}")
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == sample(f"{LLM}health:\n  {after}")


@pytest.mark.parametrize(
    "query",
    [
        ">-\n        max(vllm:gpu_cache_usage_perc)\n        by (pod)",
        '"max(vllm:gpu_cache_usage_perc)\n        by (pod)"',
        "max(vllm:gpu_cache_usage_perc)\n        by (pod)",
    ],
)
def test_a_query_keeps_its_lines(query: str) -> None:
    source = f'    - kind: prometheus\n      url: "http://prom:9090"\n      signal: kv_cache\n      query: {query}\n'
    text = sample(LLM + source)
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == text.replace("gpu_cache_usage_perc", "kv_cache_usage_perc")


def test_a_fix_that_the_layout_does_not_permit_is_left_out() -> None:
    health = "health:\n  deep:\n    max_temperature: 85C\n    min_free_memory:\n      2GiB\n"
    text = sample(f"{LLM}{health}connections: {{idle: 60s}}\n")
    (new,) = apply_fixes([SourceText("fleet.yaml", text.encode(), ".")], linted(text).fixes)
    assert new.data.decode() == text.replace("idle: 60s", "idle: 4s")
    assert codes(new.data.decode()) == ["LB615"]


def test_line_ends_are_kept_where_a_comment_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(
        sample().replace("version: 1\n", "version: 1   # lbctl: ignore LB210 (old)\n").replace("\n", "\r\n").encode()
    )
    assert run_fix(file) == 0
    assert file.read_bytes() == sample().replace("\n", "\r\n").encode()


def test_a_symlink_remains_a_symlink(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "fleet.yaml"
    real.write_text(FLEET)
    link.symlink_to("real")
    assert run_fix(link) == 0
    assert link.is_symlink()
    assert real.read_text() == AFTER


def test_each_file_of_a_directory_is_fixed_separately(tmp_path: Path) -> None:
    fleet = sample(LLM + "connections: {idle: 60s}\n")
    (tmp_path / "a.yaml").write_text(fleet)
    (tmp_path / "b.yaml").write_text("# nothing here\nversion: 1\n")
    assert run_fix(tmp_path) == 0
    assert (tmp_path / "a.yaml").read_text() == fleet.replace("idle: 60s", "idle: 4s")
    assert (tmp_path / "b.yaml").read_text() == "# nothing here\nversion: 1\n"


def test_unused_ignore_comments_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    line = "    balance: {algorithm: round_robin}"
    text = sample("balance: {algorithm: round_robin}\n")
    file.write_text(text.replace(line, f"{line}   # lbctl: ignore LB210, LB213 (measured)"))
    assert run_fix(file) == 0
    assert file.read_text() == text.replace(line, f"{line}   # lbctl: ignore LB210 (measured)")
    file.write_text(sample().replace("version: 1\n", "version: 1   # lbctl: ignore LB210 (old)\n"))
    assert run_fix(file) == 0
    assert file.read_text() == sample()


def test_a_fleet_with_errors_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    text = FLEET.replace("pool:  llama", "pool:  lama")
    file.write_text(text)
    assert run_fix(file) == 1
    assert file.read_text() == text


def test_an_unwritable_file_is_reported_and_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    file = folder / "fleet.yaml"
    file.write_text(FLEET)
    folder.chmod(0o555)
    try:
        (folder / "probe").touch()
    except OSError:
        assert run_fix(file) == 1
        assert "cannot write" in capsys.readouterr().err
    finally:
        folder.chmod(0o755)
    assert file.read_text() in (FLEET, AFTER)


def test_standard_input_cannot_be_fixed() -> None:
    assert run(["lint", "--fix", "-"]) == 64
