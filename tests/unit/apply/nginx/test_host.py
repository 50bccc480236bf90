"""A copy of a host's nginx configuration reads the new fragment, and leads everywhere else as the host's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.apply.host import HostError
from lbctl.apply.nginx.host import checkable, main_of
from lbctl.ir.proxies import Proxy, Reload


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A main file with a mime.types by a relative path, sites by an absolute one, and an old fragment."""
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    sites = f"{folder}/conf.d/*.conf"
    (folder / "nginx.conf").write_text(
        f'pid /run/x.pid;\nhttp {{ include mime.types; # include no;\ninclude "{sites}"; }}\n'
    )
    (folder / "mime.types").write_text("types { }\n")
    (folder / "conf.d" / "a.conf").write_text("# a site\n")
    (folder / "conf.d" / "lbctl.conf").write_text("# old\n")
    return folder


def _proxy(config: Path, *command: str) -> Proxy:
    return Proxy("site", "nginx", (1, 22, 0), config=str(config), form="fragment", reload=Reload(command or ("nginx",)))


def _copied(folder: Path, etc: Path, config: Path) -> tuple[str, dict[str, str]]:
    """The text that nginx reads of the copy, with its includes in their places, and path → original."""
    private = folder / "private"
    private.mkdir()
    (private / "new.conf").write_text("# new\n")
    check = checkable("nginx", private, private / "new.conf", _proxy(config), (str(etc / "nginx.conf"),))
    return check.command[check.command.index("-c") + 1], dict(check.originals)


def test_new_fragment_is_checked_without_changing_the_host(etc: Path, tmp_path: Path) -> None:
    before = {file: file.read_text() for file in etc.rglob("*") if file.is_file()}
    main, originals = _copied(tmp_path, etc, etc / "conf.d" / "lbctl.conf")
    text = Path(main).read_text()
    assert str(etc) not in text
    assert "/run/x.pid" not in text
    contents = {
        Path(original).name: Path(copy).read_text() for copy, original in originals.items() if Path(copy).is_file()
    }
    assert contents["new.conf"] == "# new\n"
    assert contents["a.conf"] == "# a site\n"
    assert contents["mime.types"] == "types { }\n"
    assert "# old\n" not in contents.values()
    assert {file: file.read_text() for file in etc.rglob("*") if file.is_file()} == before


def test_new_fragment_is_read_at_its_future_place(etc: Path, tmp_path: Path) -> None:
    _, originals = _copied(tmp_path, etc, etc / "conf.d" / "models.conf")
    assert any(Path(copy).name == "models.conf" for copy in originals)


def test_a_main_file_that_would_not_read_it_is_refused(etc: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="does not include"):
        _copied(tmp_path, etc, etc / "conf.d" / "lbctl.off")


def test_main_file_is_that_of_the_reload_or_the_nearest_above(etc: Path) -> None:
    config = etc / "conf.d" / "lbctl.conf"
    assert main_of(_proxy(config)) == (str(etc / "nginx.conf"),)
    assert main_of(_proxy(config, "nginx", "-c", "/x/nginx.conf", "-s", "reload")) == ("/x/nginx.conf",)


def test_a_fragment_below_links_in_a_circle_is_refused(etc: Path, tmp_path: Path) -> None:
    (etc / "loop").symlink_to("loop")
    with pytest.raises(HostError, match=r"does not include .*/etc/loop/lbctl\.conf"):
        _copied(tmp_path, etc, etc / "loop" / "lbctl.conf")
