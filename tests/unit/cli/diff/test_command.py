"""`lbctl diff` against files and git, as native text; its exit codes, and invalid input."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from lbctl.api import client as api_client
from lbctl.cli import run

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes:
  chat: {match: {path_prefix: /}, pool: llama, auth: {api_keys: {file: keys.txt}}}
pools:
  llama:
    replicas:
      - {name: a, address: "10.0.0.1:8000", weight: 1}
      - {name: b, address: "10.0.0.2:8000", weight: 1}
"""
CHANGED = FLEET.replace('8000", weight: 1}\n      - {name: b', '8000", weight: 3}\n      - {name: b')


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_fleet(tmp_path / "old", FLEET)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_fleet(tmp_path / "new", CHANGED)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A fleet in a subdirectory of a git repository: the tag `first` has FLEET, the working tree has CHANGED."""
    fleet = write_fleet(tmp_path / "repository" / "fleet", FLEET)
    _git(fleet, "init", "-q", "..")
    _git(fleet, "add", ".")
    _git(fleet, "commit", "-q", "-m", "one")
    _git(fleet, "tag", "first")
    write_fleet(fleet, CHANGED)
    return fleet


def write_fleet(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(text)
    (directory / "keys.txt").write_text("sk-secret: acme\n")
    (directory / "keys.txt").chmod(0o600)
    return directory


def test_one_changed_setting_is_counted_once(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fleet(new, FLEET.replace("weight: 1}\n      - {name: b", "weight: 1, zone: z}\n      - {name: b"))
    assert run(["diff", str(new), "--against", str(old)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 setting changed"


def _git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


def _diff(*arguments: str | Path) -> int:
    return run(["diff", *map(str, arguments)])


def test_shares_and_settings_have_the_line_of_the_new_file(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(new, "--against", old) == 0
    shown = capsys.readouterr().out
    assert "llama/a   50.00% →  75.00%  +25.00" in shown
    assert f"pools.llama.replicas.a.capacity: 1 → 3  {new / 'fleet.yaml'}:8:53" in shown


def test_exit_code_reports_a_difference_only_on_request(old: Path, new: Path) -> None:
    assert [_diff(new, "--against", old), _diff(old, "--against", old, "--exit-code")] == [0, 0]
    assert _diff(new, "--against", old, "--exit-code") == 2
    assert _diff(new, "--against", old, "--exit-code", "-o", "json") == 2
    assert _diff(new, "--against", old, "--exit-code", "-t", "nginx") == 2


def test_json_output_lists_settings_and_traffic(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(new, "--against", old, "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["same"] is False
    assert document["settings"] == [
        {"path": "pools.llama.replicas.a.capacity", "old": "1", "new": "3", "at": f"{new / 'fleet.yaml'}:8:53"}
    ]
    assert document["traffic"][0] == {"route": "chat", "pool": "llama", "replica": "a", "old": 0.5, "new": 0.75}
    assert _diff(old, "--against", old, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


# ── git ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["", "fleet.yaml"], ids=["directory", "file"])
@pytest.mark.parametrize("against", [(), ("--against", "git:first"), ("--against", "git:HEAD")])
def test_working_tree_is_compared_with_a_git_revision(
    repository: Path, path: str, against: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(repository / path, *against, "--exit-code") == 2
    assert "pools.llama.replicas.a.capacity: 1 → 3" in capsys.readouterr().out


def test_referenced_files_are_read_at_the_revision(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    discovered = FLEET.replace(FLEET[FLEET.index("    replicas:") :], "    discovery: {file: {path: targets.json}}\n")
    write_fleet(repository, discovered)
    (repository / "targets.json").write_text('[{"targets": ["10.0.0.1:1"]}]')
    _git(repository, "add", ".")
    _git(repository, "commit", "-q", "-m", "two")
    assert _diff(repository, "--exit-code") == 0
    (repository / "targets.json").write_text('[{"targets": ["10.0.0.1:1", "10.0.0.9:1"]}]')
    assert _diff(repository, "--exit-code") == 2
    assert "+ llama/10.0.0.9-1" in capsys.readouterr().out


def test_symbolic_links_are_followed_at_the_revision(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links within the repository work for the fleet and for the files that it names. Links out of it are refused."""
    top, elsewhere = repository.parent, tmp_path / "elsewhere.yaml"
    for name, place in (("fleet.yaml", "../fleet.yaml"), ("keys.txt", "keys/of-acme")):
        (repository / place).parent.mkdir(exist_ok=True)
        (repository / name).rename(repository / place)
        (repository / name).symlink_to(place)
    _git(repository, "add", "..")
    _git(repository, "commit", "-q", "-m", "two")
    assert _diff(repository, "--exit-code") == 0
    assert _diff(repository, "-t", "haproxy", "--exit-code") == 0
    (top / "fleet.yaml").write_text(FLEET)
    assert _diff(repository, "--exit-code") == 2
    elsewhere.write_text(FLEET)
    (repository / "fleet.yaml").unlink()
    (repository / "fleet.yaml").symlink_to(elsewhere)
    _git(repository, "add", "..")
    _git(repository, "commit", "-q", "-m", "three")
    capsys.readouterr()
    assert _diff(repository) == 1
    assert "is outside the repository" in capsys.readouterr().err


def test_missing_revision_of_a_shallow_clone_is_explained(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _git(repository, "commit", "-q", "-a", "-m", "two")
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "-q", "--depth", "1", repository.parent.as_uri(), str(clone))
    assert _diff(clone / "fleet", "--exit-code") == 0
    assert _diff(clone / "fleet", "--against", "git:HEAD~1") == 1
    assert "revision 'HEAD~1' does not exist in this shallow clone (`git fetch" in capsys.readouterr().err


def test_deleted_file_is_compared_with_its_revision(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "fleet.yaml").rename(repository / "other.yaml")
    assert _diff(repository, "--against", "git:first", "--exit-code") == 2
    assert _diff(repository / "other.yaml", "--against", "git:first") == 1
    assert "LB001: it does not exist at 'first'" in capsys.readouterr().err


def test_circular_links_are_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a.yaml").symlink_to("b.yaml")
    (repository / "b.yaml").symlink_to("a.yaml")
    assert _diff(repository / "a.yaml", "--against", "git:HEAD") == 1
    assert "too many levels of symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize("revision", ["nowhere", "--help", "", "HEAD:fleet", "HEAD~9"])
def test_unknown_revision_is_an_error(repository: Path, revision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(repository, "--against", f"git:{revision}", "--exit-code") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "LB001" in output.err
    assert "revision" in output.err


def test_missing_repository_or_missing_git_is_reported(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _diff(old) == 1
    assert "not in a git repository" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert _diff(old) == 4
    assert "git is not installed" in capsys.readouterr().err


def test_git_variables_of_a_hook_are_ignored(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", "nowhere")
    assert _diff(repository, "--exit-code") == 2


# ── Bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_errors_of_both_sides_are_shown_in_one_run(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in (old, new):
        (side / "fleet.yaml").write_text(FLEET.replace("pool: llama", "pool: lama"))
    assert _diff(new, "--against", old, "--exit-code") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.partition(":")[0] for line in output.err.splitlines() if "LB101" in line] == [
        str(new / "fleet.yaml"),
        str(old / "fleet.yaml"),
    ]


def test_missing_path_is_an_error(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(old, "--against", "nowhere.yaml", "--exit-code") == 1
    assert "nowhere.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--against", "live", "--against", "git:HEAD"],
        ["--against", "live", "-t", "nginx"],
        ["-t", "nginx", "-o", "json"],
        ["--proxy", "edge"],
        ["-t", "nginx", "--proxy", "edge"],
    ],
)
def test_incompatible_options_are_a_usage_error(old: Path, arguments: list[str]) -> None:
    against = [] if "--against" in arguments else ["--against", str(old)]
    assert _diff(old, *arguments, *against) == 64


def test_unreachable_server_has_exit_code_4(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(old, "--against", "live", "--server", "http://127.0.0.1:9") == 4
    assert "is not responding" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>hello</html>", "returned status 200 without JSON"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b" " * 2_000_000, "its response is too large"),
        (b"", "respond"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "respond"),
    ],
)
def test_invalid_answer_of_a_server_is_reported_quickly(
    old: Path, answer: bytes, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HTML page, an endless answer, silence, and half an answer."""
    monkeypatch.setattr(api_client, "MAX_ANSWER_BYTES", 1_000_000)
    monkeypatch.setattr(api_client, "TIMEOUTS", {"GET": 0.5})
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(answer)
                    if b"html" not in answer:
                        connection.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert _diff(old, "--against", "live", "--server", url, "--exit-code") == 4
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err


# ── Native text ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "line"),
    [("nginx", "+        server 10.0.0.1:8000 weight="), ("haproxy", "+    server a "), ("envoy", "+")],
)
def test_native_text_is_a_unified_diff(
    old: Path, new: Path, kind: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(new, "--against", old, "-t", kind) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("--- old/")
    assert f"\n{line}" in shown
    assert _diff(old, "--against", old, "-t", kind) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_secret_of_a_client_is_never_shown(old: Path, new: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (new / "keys.txt").write_text("sk-another: acme\n")
    assert _diff(new, "--against", old, "-t", kind, "--exit-code") == 2
    shown = capsys.readouterr().out
    assert "differs; it contains secrets and is not shown" in shown
    assert "sk-" not in shown


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_secret_of_a_hosted_api_is_never_shown(
    old: Path, new: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = 'upstream: {host: api.example.com, headers: {authorization: {prefix: "Bearer ", file: provider-key}}}'
    for side, key in ((old, "sk-of-provider"), (new, "sk-renewed")):
        (side / "fleet.yaml").write_text(f"{FLEET}    {header}\n    tls: {{ca: system}}\n")
        (side / "provider-key").write_text(key)
        (side / "provider-key").chmod(0o600)
    for options in (["-t", kind], []):
        _diff(new, "--against", old, *options)
        shown = capsys.readouterr()
        assert "sk-" not in shown.out + shown.err
        assert not options or "it contains secrets and is not shown" in shown.out


def test_each_side_is_rendered_for_its_proxy_version(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proxies = 'proxies: {one: {kind: nginx, version: "1.22"}, two: {kind: nginx}}\n'
    for side, version in ((old, "1.22"), (new, "1.25.1")):
        text = FLEET.replace('bind: "127.0.0.1:8080"', 'bind: "127.0.0.1:8080", http2: true')
        (side / "fleet.yaml").write_text(text + proxies.replace("1.22", version))
    assert _diff(new, "--against", old, "-t", "nginx") == 64
    assert _diff(new, "--against", old, "-t", "nginx", "--proxy", "one") == 0
    assert "+        http2 on;" in capsys.readouterr().out
