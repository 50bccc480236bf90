"""Checks a fragment together with the host's HAProxy files, or with a minimal main file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from lbctl.apply.haproxy import processes
from lbctl.apply.host import Checkable, HostError
from lbctl.base.paths import exists, is_directory, is_file, without_links
from lbctl.ir.proxies import Proxy

_MINIMAL = "global\n    log stderr format raw local0 notice\n"


def main_of(proxy: Proxy) -> tuple[str, ...]:
    """Return the running HAProxy's `-f` files, or the nearest haproxy.cfg in a directory above the fragment."""
    config = Path(proxy.config or "/").absolute()
    running = processes.files_beside(str(config))
    nearest = (str(parent / "haproxy.cfg") for parent in config.parents if is_file(parent / "haproxy.cfg"))
    return running or tuple(itertools.islice(nearest, 1))


def checkable(binary: str, directory: Path, fragment: Path, proxy: Proxy, main: Sequence[str]) -> Checkable:
    """Prepare a check of `fragment` in place of the file at `config`.

    Raises HostError and OSError.
    """
    config = Path(proxy.config or "").absolute()
    if not main:
        minimal = directory / "host.cfg"
        minimal.write_text(_MINIMAL)
        main = (str(minimal),)
    originals: dict[str, str] = {}
    places = list(_places(main, config, fragment, directory, originals))
    if str(fragment) not in places and not originals:
        places.append(str(fragment))
    return Checkable((binary, "-c", *(word for place in places for word in ("-f", place))), originals)


def _places(
    main: Sequence[str], config: Path, fragment: Path, directory: Path, originals: dict[str, str]
) -> Iterator[str]:
    """Yield the `-f` arguments, with the fragment replacing the file at `config`."""
    for number, place in enumerate(main):
        path = Path(place).absolute()
        if not exists(path):
            raise HostError(f"{place} does not exist")
        if path == config:
            yield str(fragment)
        elif is_directory(path) and without_links(path) == without_links(config.parent):
            copy = directory / f"host-{number}"
            _link(path, config, fragment, copy)
            originals |= {str(copy / config.name): str(fragment), str(copy): str(path)}
            yield str(copy)
        else:
            yield str(path)


def _link(source: Path, config: Path, fragment: Path, copy: Path) -> None:
    """Create a directory of links to the files in `source`, with the fragment replacing the file at `config`."""
    copy.mkdir()
    for file in source.iterdir():
        if file.name != config.name and file.is_file():
            (copy / file.name).symlink_to(file)
    (copy / config.name).symlink_to(fragment)
