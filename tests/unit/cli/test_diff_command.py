"""`lbctl diff` as a pipeline uses it: against files, against git, as native text; exit codes, and bad input."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from lbctl.cli import api_client, run

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
    return _written(tmp_path / "old", FLEET)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return _written(tmp_path / "new", CHANGED)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A fleet in git, in a directory below the top: the first commit is `first`, the working tree has moved on."""
    fleet = _written(tmp_path / "repository" / "fleet", FLEET)
    _git(fleet, "init", "-q", "..")
    _git(fleet, "add", ".")
    _git(fleet, "commit", "-q", "-m", "one")
    _git(fleet, "tag", "first")
    _written(fleet, CHANGED)
    return fleet


def _written(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(text)
    (directory / "keys.txt").write_text("sk-secret: acme\n")
    (directory / "keys.txt").chmod(0o600)
    return directory


def test_one_setting_is_one_setting(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _written(new, FLEET.replace("weight: 1}\n      - {name: b", "weight: 1, zone: z}\n      - {name: b"))
    assert run(["diff", str(new), "--against", str(old)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 setting changed"


def _git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(directory), *who, *arguments], check=True, capture_output=True)


def _diff(*arguments: str | Path) -> int:
    return run(["diff", *map(str, arguments)])


def test_shares_and_settings_are_shown_with_the_line_of_the_new_file(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(new, "--against", old) == 0
    shown = capsys.readouterr().out
    assert "llama/a   50.00% →  75.00%  +25.00" in shown
    assert f"pools.llama.replicas.a.capacity: 1 → 3  {new / 'fleet.yaml'}:8:53" in shown


def test_the_exit_code_tells_only_where_it_is_asked_to(old: Path, new: Path) -> None:
    assert [_diff(new, "--against", old), _diff(old, "--against", old, "--exit-code")] == [0, 0]
    assert _diff(new, "--against", old, "--exit-code") == 2
    assert _diff(new, "--against", old, "--exit-code", "-o", "json") == 2
    assert _diff(new, "--against", old, "--exit-code", "-t", "nginx") == 2


def test_for_machines_it_is_json_and_nothing_else(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(new, "--against", old, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert found["settings"] == [
        {"path": "pools.llama.replicas.a.capacity", "old": "1", "new": "3", "at": f"{new / 'fleet.yaml'}:8:53"}
    ]
    assert found["traffic"][0] == {"route": "chat", "pool": "llama", "replica": "a", "old": 0.5, "new": 0.75}
    assert _diff(old, "--against", old, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


# ── git ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["", "fleet.yaml"], ids=["directory", "file"])
@pytest.mark.parametrize("against", [(), ("--against", "git:first"), ("--against", "git:HEAD")])
def test_a_revision_is_what_was_committed(
    repository: Path, path: str, against: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(repository / path, *against, "--exit-code") == 2
    assert "pools.llama.replicas.a.capacity: 1 → 3" in capsys.readouterr().out


def test_what_a_fleet_names_is_read_at_the_revision_too(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    discovered = FLEET.replace(FLEET[FLEET.index("    replicas:") :], "    discovery: {file: {path: targets.json}}\n")
    _written(repository, discovered)
    (repository / "targets.json").write_text('[{"targets": ["10.0.0.1:1"]}]')
    _git(repository, "add", ".")
    _git(repository, "commit", "-q", "-m", "two")
    assert _diff(repository, "--exit-code") == 0
    (repository / "targets.json").write_text('[{"targets": ["10.0.0.1:1", "10.0.0.9:1"]}]')
    assert _diff(repository, "--exit-code") == 2
    assert "+ llama/10.0.0.9-1" in capsys.readouterr().out


def test_links_lead_at_the_revision_where_they_lead_here(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The YAML, and what it names, from elsewhere in the repository; not from elsewhere on the machine."""
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
    assert "leads out of the repository" in capsys.readouterr().err


def test_a_shallow_clone_is_named_where_it_ends(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _git(repository, "commit", "-q", "-a", "-m", "two")
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "-q", "--depth", "1", repository.parent.as_uri(), str(clone))
    assert _diff(clone / "fleet", "--exit-code") == 0
    assert _diff(clone / "fleet", "--against", "git:HEAD~1") == 1
    assert "no revision 'HEAD~1' in this shallow clone (`git fetch" in capsys.readouterr().err


def test_a_file_that_is_deleted_since_is_compared_with_one_that_is_there(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "fleet.yaml").rename(repository / "other.yaml")
    assert _diff(repository, "--against", "git:first", "--exit-code") == 2
    assert _diff(repository / "other.yaml", "--against", "git:first") == 1
    assert "LB001: it was not there at 'first'" in capsys.readouterr().err


def test_links_in_a_circle_are_an_error_of_the_files(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a.yaml").symlink_to("b.yaml")
    (repository / "b.yaml").symlink_to("a.yaml")
    assert _diff(repository / "a.yaml", "--against", "git:HEAD") == 1
    assert "too many levels of symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize("revision", ["nowhere", "--help", "", "HEAD:fleet", "HEAD~9"])
def test_a_revision_that_does_not_exist_is_told(
    repository: Path, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(repository, "--against", f"git:{revision}", "--exit-code") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "LB001" in told.err
    assert "revision" in told.err


def test_outside_a_repository_and_without_git_it_is_told(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _diff(old) == 1
    assert "this is in no git repository" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert _diff(old) == 4
    assert "git is not installed" in capsys.readouterr().err


def test_within_a_hook_it_is_the_repository_of_the_path_that_counts(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", "nowhere")
    assert _diff(repository, "--exit-code") == 2


# ── Bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_errors_of_both_sides_are_shown_in_one_run(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in (old, new):
        (side / "fleet.yaml").write_text(FLEET.replace("pool: llama", "pool: lama"))
    assert _diff(new, "--against", old, "--exit-code") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.partition(":")[0] for line in told.err.splitlines() if "LB101" in line] == [
        str(new / "fleet.yaml"),
        str(old / "fleet.yaml"),
    ]


def test_a_path_that_is_not_there_is_an_error(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_does_not_go_together_is_a_wrong_command_line(old: Path, arguments: list[str]) -> None:
    known = [] if "--against" in arguments else ["--against", str(old)]
    assert _diff(old, *arguments, *known) == 64


def test_a_server_that_does_not_answer_is_out_of_reach(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(old, "--against", "live", "--server", "http://127.0.0.1:9") == 4
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>hello</html>", "answered 200, and no JSON"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + b" " * 2_000_000, "its answer has no end"),
        (b"", "timed out"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "does not answer"),
    ],
)
def test_what_is_no_control_plane_is_told_in_words_and_soon(
    old: Path, answer: bytes, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page, an answer without an end, silence, and half an answer."""
    monkeypatch.setattr(api_client, "_LARGEST", 1_000_000)
    monkeypatch.setattr(api_client, "_PATIENCE", {"GET": 0.5})
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
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err


# ── Native text ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "line"),
    [("nginx", "+        server 10.0.0.1:8000 weight="), ("haproxy", "+    server a "), ("envoy", "+")],
)
def test_the_native_text_is_a_unified_diff(
    old: Path, new: Path, kind: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _diff(new, "--against", old, "-t", kind) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("--- old/")
    assert f"\n{line}" in shown
    assert _diff(old, "--against", old, "-t", kind) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_no_key_is_ever_shown(old: Path, new: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (new / "keys.txt").write_text("sk-another: acme\n")
    assert _diff(new, "--against", old, "-t", kind, "--exit-code") == 2
    shown = capsys.readouterr().out
    assert "differs; it holds secrets and is not shown" in shown
    assert "sk-" not in shown


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_a_key_of_a_hosted_api_is_never_shown(
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
        assert not options or "it holds secrets and is not shown" in shown.out


def test_the_proxy_of_the_fleet_is_rendered_with_its_version_on_its_side(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxies = 'proxies: {one: {kind: nginx, version: "1.22"}, two: {kind: nginx}}\n'
    for side, version in ((old, "1.22"), (new, "1.25.1")):
        text = FLEET.replace('bind: "127.0.0.1:8080"', 'bind: "127.0.0.1:8080", http2: true')
        (side / "fleet.yaml").write_text(text + proxies.replace("1.22", version))
    assert _diff(new, "--against", old, "-t", "nginx") == 64
    assert _diff(new, "--against", old, "-t", "nginx", "--proxy", "one") == 0
    assert "+        http2 on;" in capsys.readouterr().out
