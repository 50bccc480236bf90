from __future__ import annotations

import io
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.model.load import Node, load, plain_value, position_of, texts
from lbctl.model.yaml import read

PRIVATE_KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\n  MIIsecretsecret\n  -----END RSA " + "PRIVATE KEY-----\n"


def reading(text: str | bytes) -> tuple[Node | None, list[Diagnostic]]:
    diagnostics = Diagnostics()
    data = text if isinstance(text, bytes) else text.encode()
    return read(data, "f.yaml", diagnostics), list(diagnostics)


def value(text: str) -> object:
    """What `text` means behind a key."""
    node, found = reading(f"k: {text}\n")
    assert found == []
    assert node is not None
    return plain_value(node)["k"]


def places(found: list[Diagnostic] | Diagnostics) -> list[str]:
    return [f"{item.position} {item.code}" for item in found]


def fleet(directory: Path, **files: str) -> str:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return str(directory)


def loaded(*paths: str, stdin: bytes = b"") -> tuple[Node | None, list[Diagnostic]]:
    diagnostics = Diagnostics()
    return load(paths, diagnostics, io.BytesIO(stdin)), list(diagnostics)


# ── Values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("false", False),
        ("0", 0), ("-0", 0), ("+7", 7), ("8080", 8080), ("-5", -5), ("12345678901234567890", 12345678901234567890),
        ("7.5", 7.5), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0), ("-2.5E-1", -0.25),
    ],
)  # fmt: skip
def test_a_bare_scalar_follows_the_core_schema(text: str, meaning: object) -> None:
    assert value(text) == meaning
    assert type(value(text)) is type(meaning)


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "off", "True", "NULL", "010", "1_000", "0x1f", "0o7", "1:30", "22:22", "2024-01-01", ".inf",
     ".nan", "=", "1.2.3.4", "5m", "10%", "+", "-a", ".", "1e", "00.5", "٣"],
)  # fmt: skip
def test_what_only_yaml_1_1_takes_for_something_else_stays_text(text: str) -> None:
    assert value(text) == text


@pytest.mark.parametrize("text", ["5", "true", "null", "", "1e3", "<<", "*x", "&x", "!x"])
def test_a_quoted_scalar_is_text(text: str) -> None:
    assert value(f'"{text}"') == value(f"'{text}'") == text


def test_a_key_is_its_text_whatever_it_looks_like() -> None:
    node, found = reading("5: a\ntrue: b\nnull: c\n'<<': d\n1e3: e\n")
    assert (node and plain_value(node), found) == ({"5": "a", "true": "b", "null": "c", "<<": "d", "1e3": "e"}, [])


def test_a_text_block_keeps_its_lines_and_an_escape_its_character() -> None:
    assert value("|\n  a\n  b") == "a\nb\n"
    assert value('"\\tö\\n\\U0001F600"') == "\tö\n\U0001f600"


def test_every_value_and_key_knows_its_place() -> None:
    node, _ = reading("pools:\n  llama:\n    replicas:\n      - {address: a, weight: 5}\n")
    assert node is not None
    weight = ("pools", "llama", "replicas", 0, "weight")
    assert str(position_of(node, weight)) == "f.yaml:4:30"
    assert str(position_of(node, weight, key=True)) == "f.yaml:4:22"
    assert str(position_of(node, ("pools", "llama", "replicas", 0), key=True)) == "f.yaml:4:9", (
        "a list's item has no key"
    )
    assert str(position_of(node, ("pools", "llama", "replicas", 7, "weight"))) == "f.yaml:4:7", (
        "the nearest that exists"
    )
    assert str(position_of(node, ("pools", "nowhere", "x"), key=True)) == "f.yaml:1:1"
    assert str(position_of(node, ())) == "f.yaml:1:1"


def test_windows_line_ends_and_a_byte_order_mark_move_no_place() -> None:
    node, found = reading("\ufeffa: 1\r\nb: ö 2\r\nc: [x]\r\n".encode())
    assert found == []
    assert node is not None
    assert plain_value(node) == {"a": 1, "b": "ö 2", "c": ["x"]}
    assert str(position_of(node, ("c", 0))) == "f.yaml:3:5"


# ── What a text may not be ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # empty, or not a map
        ("", "1:1 LB004"),
        ("# nothing\n", "1:1 LB004"),
        ("---\n", "1:1 LB004"),
        ("\n- a\n", "2:1 LB004"),
        ("a\n", "1:1 LB004"),
        # not text
        (b"a: 1\nb: \0", "2:4 LB003"),
        (b"\x7fELF\x02\x01\x01\0\0", "1:8 LB003"),
        (b"a: 1\nb: \xc3\xb6\xff", "2:5 LB003"),
        (bytes(range(128, 256)) * 9, "1:1 LB003"),
        ("a: 1".encode("utf-16"), "1:4 LB003"),
        (b"a: \xed\xa0\x80", "1:4 LB003"),
        # tabs
        ("a:\n\tb: 1\n", "2:1 LB004"),
        ("a:\n  b: 1\n \tc: 2\n", "3:2 LB004"),
        ("a: |\n\tx\n", "2:1 LB004"),
        ("\ta: 1", "1:1 LB004"),
        # syntax
        ("a: 1\n---\nb: 2\n", "2:1 LB004"),
        ("a: 1\n...\nb: 2\n", "3:1 LB004"),
        ("a: b: c\n", "1:5 LB004"),
        ("a:\n  - {b: 1\n", "2:5 LB004"),
        ("a: [\n", "1:4 LB004"),
        ("a: [1, 2\nb: 3\n", "2:2 LB004"),
        ("a: 'x\n", "1:4 LB004"),
        ("a: 1\nfoo\nb: 2\n", "2:1 LB004"),
        ("a: @x\n", "1:4 LB004"),
        ("a: - b\n", "1:4 LB004"),
        ("a:\n  b: 1\n c: 2\n", "3:2 LB004"),
        ('a: "\\q"\n', "1:5 LB004"),
        ('a: "\\ud800"\n', "1:7 LB004"),
        ("{a: 1}\nb: 2\n", "2:1 LB004"),
        ("a: ? b\n", "1:4 LB004"),
        ("%FOO\n---\na: 1", "1:1 LB004"),
        ("? [a]\n: b\n", "1:3 LB004"),
        ("? {a: 1}\n: b\n", "1:3 LB004"),
        # anchors, aliases, merge keys
        ("a: &x 1\n", "1:4 LB006"),
        ("a:\n  - *x\n", "2:5 LB006"),
        ("a: &x {b: 1}\n", "1:4 LB006"),
        ("a: &x [b]\n", "1:4 LB006"),
        ("&x a: 1\n", "1:1 LB006"),
        ("a:\n  <<: {b: 1}\n", "2:3 LB006"),
        ("a: [*.example.com]\n", "1:5 LB006"),
        ("*x : 1\n", "1:1 LB006"),
        # tags
        ("a: !x 1\n", "1:4 LB007"),
        ("a: !!python/object:os.system 1\n", "1:4 LB007"),
        ("a: ! 1\n", "1:4 LB007"),
        ("!!map {a: 1}\n", "1:1 LB007"),
        ("a: !!seq [b]\n", "1:4 LB007"),
        ("a: !b!c 1\n", "1:4 LB007"),
        ("a: 1\n--- \n%TAG ! x\n", "3:1 LB007"),
        ("a: !<x\n", "1:4 LB007"),
        # keys that stand twice
        ("a: 1\nb: {c: 1, c: 2}\n", "2:11 LB008"),
        ("a: 1\n'a': 2\n", "2:1 LB008"),
        ("1: a\n'1': b\n", "2:1 LB008"),
        # numbers
        ("a: 123456789012345678901\n", "1:4 LB005"),
        ("a: 1e999\n", "1:4 LB005"),
        (f"a: {'9' * 3_000_000}\n", "1:4 LB005"),
        # characters that nobody sees, as they are and escaped, in values, keys and comments
        ("a: x\x1by\n", "1:5 LB012"),
        ("a: 1 # \u202ex\n", "1:8 LB012"),
        ("a\u2066: 1\n", "1:2 LB012"),
        ("a: x\x85y\n", "1:5 LB012"),
        ("a: x\u2028y\n", "1:5 LB012"),
        ("a: x\ufeffy\n", "1:5 LB012"),
        ('a: "x\\0"\n', "1:4 LB012"),
        ('a: ["\\e"]\n', "1:5 LB012"),
        ('a: "\\r"\n', "1:4 LB012"),
        ('"\\u202e": 1\n', "1:1 LB012"),
        ('a: "\\N"\n', "1:4 LB012"),
        ("a: \x7f\n", "1:4 LB012"),
        # private keys
        (f"a: |\n  {PRIVATE_KEY}", "2:3 LB501"),
        (f"# {PRIVATE_KEY.splitlines()[0]}\na: 1\n", "1:3 LB501"),
        ('a: "\\x2d----BEGIN ' + 'PRIVATE KEY-----"\n', "1:4 LB501"),
        # limits
        ("[" * 33, "1:33 LB005"),
        ("a: 1\nb: " + "[" * 32, "2:35 LB005"),
    ],
)
def test_what_is_wrong_is_shown_at_its_place(text: str | bytes, expected: str) -> None:
    _, found = reading(text)
    assert places(found) == [f"f.yaml:{expected}"]
    assert all(item.severity == "error" for item in found)


def test_one_run_shows_every_fault_of_a_file() -> None:
    node, found = reading(
        "a: &x 1\nb: *x\nc: !t 2\nd: {e: 1, e: 2}\n<<: {f: 1}\n? [g]\n: 1\nh: 99999999999999999999999\ni: '\nj: 1\n"
    )
    assert node is None
    assert [item.code for item in found] == ["LB006", "LB006", "LB007", "LB008", "LB006", "LB004", "LB005", "LB004"]


def test_a_refused_value_leaves_the_rest_of_the_file_as_it_is() -> None:
    node, _ = reading("a: [*x, 1]\nb: *x\n<<: {c: 1}\nd: 1\nd: {e: [2]}\n*y : {f: 3}\n? {g: [1]}\n: [h]\ni: 4\n")
    assert node is not None
    assert plain_value(node) == {"a": [1], "d": 1, "i": 4}


def test_a_fault_is_shown_with_its_path() -> None:
    _, found = reading("pools:\n  a:\n    replicas:\n      - {}\n      - {gpu: !x L4}\n      - *x\n  a: 1\n")
    assert [item.path for item in found] == [
        ("pools", "a", "replicas", 1, "gpu"), ("pools", "a", "replicas", 2), ("pools", "a"),
    ]  # fmt: skip


def test_a_key_that_stands_twice_shows_both_places() -> None:
    _, (found,) = reading("pools:\n  llama: 1\n  mistral: 2\n  llama: 3\n")
    assert str(found).startswith("f.yaml:4:3: error LB008 pools.llama: ")
    assert "f.yaml:2:3" in found.message


def test_a_private_key_is_repeated_nowhere() -> None:
    node, found = reading(f"a: |\n  {PRIVATE_KEY}b: 1\nb: 2\n? |\n  {PRIVATE_KEY}: 1\n? |\n  {PRIVATE_KEY}: 1\n")
    assert node is not None
    assert "LB501" in {item.code for item in found}
    assert "secret" not in str(plain_value(node)) + "".join(map(str, found))


@pytest.mark.parametrize(
    "line", ["a: &x 1\n", "a: 1\n", "a: !x 1\n", 'a: "\\e"\n', "a: \x1b\n", PRIVATE_KEY.splitlines()[0] + "\n"]
)
def test_a_file_full_of_faults_is_left_after_the_first_hundred(line: str) -> None:
    _, found = reading(line * 20_000)
    assert 20 <= len(found) <= 300


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_thirty_two_levels_are_read_and_not_one_more() -> None:
    assert reading("a: " + "[" * 31 + "]" * 31)[1] == []
    assert places(reading("a: " + "[" * 32 + "]" * 32)[1]) == ["f.yaml:1:35 LB005"]


@pytest.mark.slow
def test_two_hundred_thousand_values_are_read_and_not_one_more() -> None:
    rows = "".join(f"k{i}: v\n" for i in range(99_999))  # a key and a value each, and the map itself
    assert reading(rows)[1] == []
    assert places(reading(rows + "last: v\n")[1]) == ["f.yaml:100000:7 LB005"]


def test_four_mebibytes_are_read_and_not_one_more() -> None:
    full = "a: 1 # ".ljust(4 * 1024 * 1024, "x")
    assert reading(full)[1] == []
    assert places(reading(full + "x")[1]) == ["f.yaml LB005"]


MERGE_BOMB = "a0: &a0 {k: x}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    "text",
    [MERGE_BOMB, "[" * 200_000, "{a: " * 200_000, "- " * 200_000, "? " * 200_000,
     "".join(f"%TAG !a{i}! x\n" for i in range(200_000))],
    ids=["merge keys", "lists", "maps", "dashes", "keys", "tag directives"],
)  # fmt: skip
def test_a_bomb_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    _, found = reading(text)
    assert time.process_time() - began < 2
    assert {item.code for item in found} & {"LB005", "LB006", "LB007"}


@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b"? - [")
def test_random_bytes_give_findings_or_a_map_and_never_an_exception(data: bytes) -> None:
    node, found = reading(data)
    assert (node is None) <= bool(found)
    assert all(item.position and item.position.file == "f.yaml" for item in found)


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%@`#<~\\ 10.\n\t\r\u2028\x07é", max_size=60))
def test_random_yaml_gives_findings_or_a_map_and_never_an_exception(text: str) -> None:
    node, found = reading(text)
    assert (node is None) <= bool(found)
    lines = len(text.splitlines()) + 2
    assert all(item.position and 1 <= item.position.line <= lines and item.position.column >= 1 for item in found)


# ── Files and directories ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_is_one_fleet_of_its_yaml_files(tmp_path: Path) -> None:
    path = fleet(
        tmp_path,
        b="version: 1\npools: {p: 1}\ngpus: {X: 5}\n",
        a="version: 1\npools: {q: 2}\ndefaults: {pool: {}}\n",
        empty="version: 1\npools:\n",
    )
    (tmp_path / "c.yml").write_text("version: 1\nroutes: {r: 3}\n")
    for ignored in (".hidden.yaml", "notes.txt", "old.yaml~", "x.json"):
        (tmp_path / ignored).write_text("][")
    (tmp_path / "sub.yaml").mkdir()
    (tmp_path / "sub.yaml" / "d.yaml").write_text("][")
    (tmp_path / "linked.yaml").symlink_to(tmp_path / "sub.yaml")
    (tmp_path / "c.yml").rename(tmp_path / "notes.c")
    (tmp_path / "c.yml").symlink_to("notes.c")
    node, found = loaded(path)
    assert found == []
    assert node is not None
    assert plain_value(node) == {
        "version": 1,
        "pools": {"p": 1, "q": 2},
        "gpus": {"X": 5},
        "routes": {"r": 3},
        "defaults": {"pool": {}},
    }
    assert str(position_of(node, ("pools", "p"), key=True)) == f"{tmp_path}/b.yaml:2:9"


def test_the_order_of_the_paths_changes_nothing(tmp_path: Path) -> None:
    fleet(
        tmp_path,
        a="version: 1\npools: {p: 1, x: 1}\ncontrol: {}\n",
        b="version: 1\npools: {q: 2, x: 2}\nrouts: 1\n",
        c="pools: {x: 3}\ncontrol: {}\n",
    )
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    node, found = loaded(str(tmp_path))
    assert node is not None
    for paths in ([*files], [*reversed(files)], [files[1], str(tmp_path)], [str(tmp_path), *files]):
        other, same = loaded(*paths)
        assert other is not None
        assert (str(plain_value(other)), list(map(str, same))) == (str(plain_value(node)), list(map(str, found)))


def test_a_name_in_two_files_shows_both_places(tmp_path: Path) -> None:
    path = fleet(
        tmp_path, a="version: 1\npools:\n  llama: {}\ncontrol: {}\n", b="version: 1\ncontrol: {}\npools:\n  llama: {}\n"
    )
    _, found = loaded(path)
    assert places(found) == [f"{path}/b.yaml:2:1 LB009", f"{path}/b.yaml:4:3 LB009"]
    assert f"{path}/a.yaml:4:1" in found[0].message
    assert f"{path}/a.yaml:3:3" in found[1].message
    assert found[1].path == ("pools", "llama")


@pytest.mark.parametrize(
    ("text", "place"),
    [("\npools: {}\n", ":1:1"), ("pools: {}\nversion: 2\n", ":2:10"), ("version: '1'\n", ":1:10"),
     ("version: true\n", ":1:10"), ("version: 1.0\n", ":1:10"), ("version:\n", ":1:9"), ("version: [1]\n", ":1:10")],
)  # fmt: skip
def test_each_file_says_version_1(tmp_path: Path, text: str, place: str) -> None:
    path = fleet(tmp_path, a="version: 1\n", b=text)
    _, found = loaded(path)
    assert places(found) == [f"{path}/b.yaml{place} LB010"]
    assert "version: 1" in found[0].hint


def test_a_section_that_is_not_a_map_is_refused_beside_one_that_is(tmp_path: Path) -> None:
    path = fleet(tmp_path, a="version: 1\npools: [p]\n", b="version: 1\npools: {q: 1}\n")
    node, found = loaded(path)
    assert places(found) == [f"{path}/a.yaml:2:8 LB004"]
    assert node is not None
    assert plain_value(node)["pools"] == {"q": 1}


def test_a_key_that_nobody_knows_is_left_to_the_model(tmp_path: Path) -> None:
    node, found = loaded(fleet(tmp_path, a="version: 1\nrouts: {}\n"))
    assert found == []
    assert node is not None
    assert plain_value(node) == {"version": 1, "routs": {}}


def test_every_file_is_read_though_one_is_broken(tmp_path: Path) -> None:
    path = fleet(tmp_path, a="version: 1\npools: {\n", b="version: 1\npools: {p: 1}\n", c="version: 7\n")
    node, found = loaded(path)
    assert places(found) == [f"{path}/a.yaml:2:8 LB004", f"{path}/c.yaml:1:10 LB010"]
    assert node is not None
    assert plain_value(node)["pools"] == {"p": 1}


def test_a_dash_is_standard_input() -> None:
    node, found = loaded("-", stdin=b"version: 1\nx: [\n")
    assert (node, places(found)) == (None, ["-:2:4 LB004"])
    node, found = loaded("-", "-", stdin=b"version: 1\n")
    assert node is not None
    assert (plain_value(node), found) == ({"version": 1}, [])


@pytest.mark.parametrize("name", ["missing.yaml", "a.yaml/b", "a\0b", "x" * 5000, ""])
def test_a_path_that_does_not_exist_is_lb001(tmp_path: Path, name: str) -> None:
    fleet(tmp_path, a="version: 1\n")
    node, (found,) = loaded(f"{tmp_path}/{name}" if name else "")
    assert (node, found.code, found.message) == (None, "LB001", "no such file or directory")


def test_a_directory_without_yaml_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    node, (found,) = loaded(str(tmp_path))
    assert (node, f"{found.position} {found.code}") == (None, f"{tmp_path}:1:1 LB001")
    assert "*.yaml" in found.hint


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "lost.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.yaml"))
        node, found = loaded(str(tmp_path))
    assert node is None
    assert [(Path(item.position.file).name, item.code) for item in found if item.position] == [
        ("fifo.yaml", "LB002"), ("loop.yaml", "LB002"), ("lost.yaml", "LB001"), ("s.yaml", "LB002"),
        ("zero.yaml", "LB002"),
    ]  # fmt: skip


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A directory that everybody may enter, for a test that runs without root's rights."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
        os.seteuid(os.getuid())


def test_a_file_without_permission_is_lb002(nobody: Path) -> None:
    path = fleet(nobody, a="version: 1\n", b="version: 1\n")
    (nobody / "b.yaml").chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    node, (found,) = loaded(path)
    assert node is not None
    assert str(found) == f"{path}/b.yaml:1:1: error LB002: cannot be read: permission denied"


def test_a_file_that_fails_while_it_is_read_is_lb002() -> None:
    node, (found,) = loaded("/proc/self/mem")
    assert (node, found.code) == (None, "LB002")


def test_a_file_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\n.yaml").write_text("version: 1\nx: [\n")
    _, (found,) = loaded(str(tmp_path))
    assert str(found).isprintable()
    assert found.position
    assert (found.position.line, found.position.column) == (2, 4)


def test_links_as_kubernetes_makes_them_are_followed_and_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2024").mkdir()
    (tmp_path / "..2024" / "fleet.yaml").write_text("version: 1\npools: {p: 1}\n")
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "fleet.yaml").symlink_to("..data/fleet.yaml")
    node, found = loaded(str(tmp_path), str(tmp_path / "fleet.yaml"))
    assert found == []
    assert node is not None
    assert str(position_of(node, ("pools", "p"))) == f"{tmp_path}/fleet.yaml:2:12"


def test_relative_paths_are_bounded_by_the_path_that_was_given(tmp_path: Path) -> None:
    path = fleet(tmp_path, a="version: 1\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "b.yaml").write_text("version: 1\n")
    found = texts([path, f"{path}/one/b.yaml", "-", "missing"], Diagnostics(), io.BytesIO(b""))
    assert {item.name: item.root for item in found} == {
        f"{path}/a.yaml": path,
        f"{path}/one/b.yaml": f"{path}/one",
        "-": ".",
    }


def test_ten_thousand_replicas_load() -> None:
    replicas = "".join(f'      - {{address: "10.0.{i}.1:8000", gpu: L4}}\n' for i in range(100))
    text = "version: 1\npools:\n" + "".join(f"  p{i}:\n    replicas:\n{replicas}" for i in range(100))
    node, found = reading(text)
    assert found == []
    assert node is not None
    assert len(plain_value(node)["pools"]["p99"]["replicas"]) == 100
