"""HAProxy checks a fragment together with the files of its host."""

from __future__ import annotations

from pathlib import Path

from lbctl.apply.haproxy.host import checkable
from lbctl.ir.proxies import Proxy


def test_fragment_below_circular_links_is_checked(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    host, fragment = tmp_path / "host", tmp_path / "new.cfg"
    host.mkdir()
    fragment.write_text("")
    proxy = Proxy("site", "haproxy", (2, 6, 0), config=str(tmp_path / "loop" / "lbctl.cfg"), form="fragment")
    checked = checkable("haproxy", tmp_path, fragment, proxy, (str(host),))
    assert checked.command == ("haproxy", "-c", "-f", str(host), "-f", str(fragment))
