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


def read_text(text: str | bytes) -> tuple[Node | None, list[Diagnostic]]:
    diagnostics = Diagnostics()
    data = text if isinstance(text, bytes) else text.encode()
    return read(data, "f.yaml", diagnostics), list(diagnostics)


def value_of(text: str) -> object:
    """Return the value of `text` as the value of a key."""
    node, diagnostics = read_text(f"k: {text}\n")
    assert diagnostics == []
    assert node is not None
    return plain_value(node)["k"]


def positions(diagnostics: list[Diagnostic] | Diagnostics) -> list[str]:
    return [f"{item.position} {item.code}" for item in diagnostics]


def write_files(directory: Path, **files: str) -> str:
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
    assert value_of(text) == meaning
    assert type(value_of(text)) is type(meaning)


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "off", "True", "NULL", "010", "1_000", "0x1f", "0o7", "1:30", "22:22", "2024-01-01", ".inf",
     ".nan", "=", "1.2.3.4", "5m", "10%", "+", "-a", ".", "1e", "00.5", "٣"],
)  # fmt: skip
def test_scalars_special_only_in_yaml_1_1_stay_text(text: str) -> None:
    assert value_of(text) == text


@pytest.mark.parametrize("text", ["5", "true", "null", "", "1e3", "<<", "*x", "&x", "!x"])
def test_a_quoted_scalar_is_text(text: str) -> None:
    assert value_of(f'"{text}"') == value_of(f"'{text}'") == text


def test_a_key_is_always_text() -> None:
    node, diagnostics = read_text("5: a\ntrue: b\nnull: c\n'<<': d\n1e3: e\n")
    assert (node and plain_value(node), diagnostics) == (
        {"5": "a", "true": "b", "null": "c", "<<": "d", "1e3": "e"},
        [],
    )


def test_text_blocks_and_escapes_keep_their_characters() -> None:
    assert value_of("|\n  a\n  b") == "a\nb\n"
    assert value_of('"\\tö\\n\\U0001F600"') == "\tö\n\U0001f600"


def test_every_value_and_key_has_a_position() -> None:
    node, _ = read_text("pools:\n  llama:\n    replicas:\n      - {address: a, weight: 5}\n")
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


def test_crlf_and_byte_order_mark_do_not_shift_positions() -> None:
    node, diagnostics = read_text("\ufeffa: 1\r\nb: ö 2\r\nc: [x]\r\n".encode())
    assert diagnostics == []
    assert node is not None
    assert plain_value(node) == {"a": 1, "b": "ö 2", "c": ["x"]}
    assert str(position_of(node, ("c", 0))) == "f.yaml:3:5"


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        # duplicate keys
        ("a: 1\nb: {c: 1, c: 2}\n", "2:11 LB008"),
        ("a: 1\n'a': 2\n", "2:1 LB008"),
        ("1: a\n'1': b\n", "2:1 LB008"),
        # numbers
        ("a: 123456789012345678901\n", "1:4 LB005"),
        ("a: 1e999\n", "1:4 LB005"),
        (f"a: {'9' * 3_000_000}\n", "1:4 LB005"),
        # invisible characters, literal and escaped, in values, keys and comments
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
def test_an_error_has_the_right_position(text: str | bytes, expected: str) -> None:
    _, diagnostics = read_text(text)
    assert positions(diagnostics) == [f"f.yaml:{expected}"]
    assert all(item.severity == "error" for item in diagnostics)


def test_one_run_reports_every_error_of_a_file() -> None:
    node, diagnostics = read_text(
        "a: &x 1\nb: *x\nc: !t 2\nd: {e: 1, e: 2}\n<<: {f: 1}\n? [g]\n: 1\nh: 99999999999999999999999\ni: '\nj: 1\n"
    )
    assert node is None
    assert [item.code for item in diagnostics] == [
        "LB006",
        "LB006",
        "LB007",
        "LB008",
        "LB006",
        "LB004",
        "LB005",
        "LB004",
    ]


def test_a_rejected_value_does_not_affect_the_rest() -> None:
    node, _ = read_text("a: [*x, 1]\nb: *x\n<<: {c: 1}\nd: 1\nd: {e: [2]}\n*y : {f: 3}\n? {g: [1]}\n: [h]\ni: 4\n")
    assert node is not None
    assert plain_value(node) == {"a": [1], "d": 1, "i": 4}


def test_an_error_has_its_config_path() -> None:
    _, diagnostics = read_text("pools:\n  a:\n    replicas:\n      - {}\n      - {gpu: !x L4}\n      - *x\n  a: 1\n")
    assert [item.path for item in diagnostics] == [
        ("pools", "a", "replicas", 1, "gpu"), ("pools", "a", "replicas", 2), ("pools", "a"),
    ]  # fmt: skip


def test_a_duplicate_key_is_reported_with_both_positions() -> None:
    _, (diagnostic,) = read_text("pools:\n  llama: 1\n  mistral: 2\n  llama: 3\n")
    assert str(diagnostic).startswith("f.yaml:4:3: error LB008 pools.llama: ")
    assert "f.yaml:2:3" in diagnostic.message


def test_a_private_key_is_never_repeated() -> None:
    node, diagnostics = read_text(
        f"a: |\n  {PRIVATE_KEY}b: 1\nb: 2\n? |\n  {PRIVATE_KEY}: 1\n? |\n  {PRIVATE_KEY}: 1\n"
    )
    assert node is not None
    assert "LB501" in {item.code for item in diagnostics}
    assert "secret" not in str(plain_value(node)) + "".join(map(str, diagnostics))


@pytest.mark.parametrize(
    "line", ["a: &x 1\n", "a: 1\n", "a: !x 1\n", 'a: "\\e"\n', "a: \x1b\n", PRIVATE_KEY.splitlines()[0] + "\n"]
)
def test_reading_stops_after_about_a_hundred_errors(line: str) -> None:
    _, diagnostics = read_text(line * 20_000)
    assert 20 <= len(diagnostics) <= 300


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_at_most_32_levels_are_read() -> None:
    assert read_text("a: " + "[" * 31 + "]" * 31)[1] == []
    assert positions(read_text("a: " + "[" * 32 + "]" * 32)[1]) == ["f.yaml:1:35 LB005"]


@pytest.mark.slow
def test_at_most_200_000_values_are_read() -> None:
    rows = "".join(f"k{i}: v\n" for i in range(99_999))  # a key and a value each, and the map itself
    assert read_text(rows)[1] == []
    assert positions(read_text(rows + "last: v\n")[1]) == ["f.yaml:100000:7 LB005"]


def test_at_most_four_mebibytes_are_read() -> None:
    full = "a: 1 # ".ljust(4 * 1024 * 1024, "x")
    assert read_text(full)[1] == []
    assert positions(read_text(full + "x")[1]) == ["f.yaml LB005"]


MERGE_BOMB = "a0: &a0 {k: x}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    "text",
    [MERGE_BOMB, "[" * 200_000, "{a: " * 200_000, "- " * 200_000, "? " * 200_000,
     "".join(f"%TAG !a{i}! x\n" for i in range(200_000))],
    ids=["merge keys", "lists", "maps", "dashes", "keys", "tag directives"],
)  # fmt: skip
def test_a_bomb_is_rejected_quickly(text: str) -> None:
    began = time.process_time()
    _, diagnostics = read_text(text)
    assert time.process_time() - began < 2
    assert {item.code for item in diagnostics} & {"LB005", "LB006", "LB007"}


@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b"? - [")
def test_random_bytes_yield_a_map_or_diagnostics(data: bytes) -> None:
    node, diagnostics = read_text(data)
    assert (node is None) <= bool(diagnostics)
    assert all(item.position and item.position.file == "f.yaml" for item in diagnostics)


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%@`#<~\\ 10.\n\t\r\u2028\x07é", max_size=60))
def test_random_yaml_yields_a_map_or_diagnostics(text: str) -> None:
    node, diagnostics = read_text(text)
    assert (node is None) <= bool(diagnostics)
    lines = len(text.splitlines()) + 2
    assert all(item.position and 1 <= item.position.line <= lines and item.position.column >= 1 for item in diagnostics)


# ── Files and directories ────────────────────────────────────────────────────────────────────────────────────────────


def test_all_yaml_files_of_a_directory_are_one_fleet(tmp_path: Path) -> None:
    path = write_files(
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
    node, diagnostics = loaded(path)
    assert diagnostics == []
    assert node is not None
    assert plain_value(node) == {
        "version": 1,
        "pools": {"p": 1, "q": 2},
        "gpus": {"X": 5},
        "routes": {"r": 3},
        "defaults": {"pool": {}},
    }
    assert str(position_of(node, ("pools", "p"), key=True)) == f"{tmp_path}/b.yaml:2:9"


def test_the_order_of_the_paths_does_not_matter(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        a="version: 1\npools: {p: 1, x: 1}\ncontrol: {}\n",
        b="version: 1\npools: {q: 2, x: 2}\nrouts: 1\n",
        c="pools: {x: 3}\ncontrol: {}\n",
    )
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    node, diagnostics = loaded(str(tmp_path))
    assert node is not None
    for paths in ([*files], [*reversed(files)], [files[1], str(tmp_path)], [str(tmp_path), *files]):
        other, other_diagnostics = loaded(*paths)
        assert other is not None
        assert (str(plain_value(other)), list(map(str, other_diagnostics))) == (
            str(plain_value(node)),
            list(map(str, diagnostics)),
        )


def test_a_name_in_two_files_is_reported_with_both_positions(tmp_path: Path) -> None:
    path = write_files(
        tmp_path, a="version: 1\npools:\n  llama: {}\ncontrol: {}\n", b="version: 1\ncontrol: {}\npools:\n  llama: {}\n"
    )
    _, diagnostics = loaded(path)
    assert positions(diagnostics) == [f"{path}/b.yaml:2:1 LB009", f"{path}/b.yaml:4:3 LB009"]
    assert f"{path}/a.yaml:4:1" in diagnostics[0].message
    assert f"{path}/a.yaml:3:3" in diagnostics[1].message
    assert diagnostics[1].path == ("pools", "llama")


@pytest.mark.parametrize(
    ("text", "place"),
    [("\npools: {}\n", ":1:1"), ("pools: {}\nversion: 2\n", ":2:10"), ("version: '1'\n", ":1:10"),
     ("version: true\n", ":1:10"), ("version: 1.0\n", ":1:10"), ("version:\n", ":1:9"), ("version: [1]\n", ":1:10")],
)  # fmt: skip
def test_each_file_must_have_version_1(tmp_path: Path, text: str, place: str) -> None:
    path = write_files(tmp_path, a="version: 1\n", b=text)
    _, diagnostics = loaded(path)
    assert positions(diagnostics) == [f"{path}/b.yaml{place} LB010"]
    assert "version: 1" in diagnostics[0].hint


def test_a_section_that_is_not_a_map_is_rejected_alone(tmp_path: Path) -> None:
    path = write_files(tmp_path, a="version: 1\npools: [p]\n", b="version: 1\npools: {q: 1}\n")
    node, diagnostics = loaded(path)
    assert positions(diagnostics) == [f"{path}/a.yaml:2:8 LB004"]
    assert node is not None
    assert plain_value(node)["pools"] == {"q": 1}


def test_unknown_keys_are_left_to_the_model(tmp_path: Path) -> None:
    node, diagnostics = loaded(write_files(tmp_path, a="version: 1\nrouts: {}\n"))
    assert diagnostics == []
    assert node is not None
    assert plain_value(node) == {"version": 1, "routs": {}}


def test_every_file_is_read_although_one_is_broken(tmp_path: Path) -> None:
    path = write_files(tmp_path, a="version: 1\npools: {\n", b="version: 1\npools: {p: 1}\n", c="version: 7\n")
    node, diagnostics = loaded(path)
    assert positions(diagnostics) == [f"{path}/a.yaml:2:8 LB004", f"{path}/c.yaml:1:10 LB010"]
    assert node is not None
    assert plain_value(node)["pools"] == {"p": 1}


def test_a_dash_is_standard_input() -> None:
    node, diagnostics = loaded("-", stdin=b"version: 1\nx: [\n")
    assert (node, positions(diagnostics)) == (None, ["-:2:4 LB004"])
    node, diagnostics = loaded("-", "-", stdin=b"version: 1\n")
    assert node is not None
    assert (plain_value(node), diagnostics) == ({"version": 1}, [])


@pytest.mark.parametrize("name", ["missing.yaml", "a.yaml/b", "a\0b", "x" * 5000, ""])
def test_a_path_that_does_not_exist_is_lb001(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, a="version: 1\n")
    node, (diagnostic,) = loaded(f"{tmp_path}/{name}" if name else "")
    assert (node, diagnostic.code, diagnostic.message) == (None, "LB001", "no such file or directory")


def test_a_directory_without_yaml_names_the_expected_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    node, (diagnostic,) = loaded(str(tmp_path))
    assert (node, f"{diagnostic.position} {diagnostic.code}") == (None, f"{tmp_path}:1:1 LB001")
    assert "*.yaml" in diagnostic.hint


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "lost.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.yaml"))
        node, diagnostics = loaded(str(tmp_path))
    assert node is None
    assert [(Path(item.position.file).name, item.code) for item in diagnostics if item.position] == [
        ("fifo.yaml", "LB002"), ("loop.yaml", "LB002"), ("lost.yaml", "LB001"), ("s.yaml", "LB002"),
        ("zero.yaml", "LB002"),
    ]  # fmt: skip


@pytest.fixture
def world_readable_directory() -> Iterator[Path]:
    """A directory that any user may enter, for a test that runs without root privileges."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
        os.seteuid(os.getuid())


def test_a_file_without_permission_is_lb002(world_readable_directory: Path) -> None:
    path = write_files(world_readable_directory, a="version: 1\n", b="version: 1\n")
    (world_readable_directory / "b.yaml").chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    node, (diagnostic,) = loaded(path)
    assert node is not None
    assert str(diagnostic) == f"{path}/b.yaml:1:1: error LB002: cannot be read: permission denied"


def test_a_read_error_is_lb002() -> None:
    node, (diagnostic,) = loaded("/proc/self/mem")
    assert (node, diagnostic.code) == (None, "LB002")


def test_control_characters_in_file_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\n.yaml").write_text("version: 1\nx: [\n")
    _, (diagnostic,) = loaded(str(tmp_path))
    assert str(diagnostic).isprintable()
    assert diagnostic.position
    assert (diagnostic.position.line, diagnostic.position.column) == (2, 4)


def test_kubernetes_style_symlinks_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2024").mkdir()
    (tmp_path / "..2024" / "fleet.yaml").write_text("version: 1\npools: {p: 1}\n")
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "fleet.yaml").symlink_to("..data/fleet.yaml")
    node, diagnostics = loaded(str(tmp_path), str(tmp_path / "fleet.yaml"))
    assert diagnostics == []
    assert node is not None
    assert str(position_of(node, ("pools", "p"))) == f"{tmp_path}/fleet.yaml:2:12"


def test_each_text_has_the_root_of_its_given_path(tmp_path: Path) -> None:
    path = write_files(tmp_path, a="version: 1\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "b.yaml").write_text("version: 1\n")
    sources = texts([path, f"{path}/one/b.yaml", "-", "missing"], Diagnostics(), io.BytesIO(b""))
    assert {item.name: item.root for item in sources} == {
        f"{path}/a.yaml": path,
        f"{path}/one/b.yaml": f"{path}/one",
        "-": ".",
    }


def test_ten_thousand_replicas_load() -> None:
    replicas = "".join(f'      - {{address: "10.0.{i}.1:8000", gpu: L4}}\n' for i in range(100))
    text = "version: 1\npools:\n" + "".join(f"  p{i}:\n    replicas:\n{replicas}" for i in range(100))
    node, diagnostics = read_text(text)
    assert diagnostics == []
    assert node is not None
    assert len(plain_value(node)["pools"]["p99"]["replicas"]) == 100
