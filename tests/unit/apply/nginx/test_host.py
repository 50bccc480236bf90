"""The copy of a host's nginx configuration includes the new fragment, and otherwise the same files as the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.apply.host import HostError
from lbctl.apply.nginx.host import checkable, main_of
from lbctl.ir.proxies import Proxy, Reload


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A main file that includes mime.types by a relative path and sites by an absolute one, and an old fragment."""
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


def proxy_with_config(config: Path, *command: str) -> Proxy:
    return Proxy("site", "nginx", (1, 22, 0), config=str(config), form="fragment", reload=Reload(command or ("nginx",)))


def copy_for_check(folder: Path, etc: Path, config: Path) -> tuple[str, dict[str, str]]:
    """Return the path of the main file of the copy, and the original of each copied file."""
    private = folder / "private"
    private.mkdir()
    (private / "new.conf").write_text("# new\n")
    check = checkable("nginx", private, private / "new.conf", proxy_with_config(config), (str(etc / "nginx.conf"),))
    return check.command[check.command.index("-c") + 1], dict(check.originals)


def test_new_fragment_is_checked_without_changing_the_host(etc: Path, tmp_path: Path) -> None:
    before = {file: file.read_text() for file in etc.rglob("*") if file.is_file()}
    main, originals = copy_for_check(tmp_path, etc, etc / "conf.d" / "lbctl.conf")
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
    _, originals = copy_for_check(tmp_path, etc, etc / "conf.d" / "models.conf")
    assert any(Path(copy).name == "models.conf" for copy in originals)


def test_fragment_outside_of_includes_is_refused(etc: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="does not include"):
        copy_for_check(tmp_path, etc, etc / "conf.d" / "lbctl.off")


def test_main_file_comes_from_the_reload_or_a_parent(etc: Path) -> None:
    config = etc / "conf.d" / "lbctl.conf"
    assert main_of(proxy_with_config(config)) == (str(etc / "nginx.conf"),)
    assert main_of(proxy_with_config(config, "nginx", "-c", "/x/nginx.conf", "-s", "reload")) == ("/x/nginx.conf",)


def test_fragment_below_circular_links_is_refused(etc: Path, tmp_path: Path) -> None:
    (etc / "loop").symlink_to("loop")
    with pytest.raises(HostError, match=r"does not include .*/etc/loop/lbctl\.conf"):
        copy_for_check(tmp_path, etc, etc / "loop" / "lbctl.conf")
