"""Envoy's own checker, and what its words say about where.

Envoy names no lines. Three things in its words lead back to the YAML:

- a broken constraint prints the whole message and then the way to the field, with positions
  (`StaticResources… Clusters[3]`, or `stat_prefix: "public" … VirtualHosts[0]… Routes[20]`);
- a file that is missing or wrong is named, and the first line of the bundle that names it is whose it is;
- else a listener, pool or route may stand in quotes (`Provider 'chat' in jwt_authn config …`).

Envoy's checker reads no file that a bootstrap names, so it gets one in which the listeners of both files stand. What is
found in none of these ways (a regular expression that RE2 refuses, by its own text alone) has no place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path as FilePath

from lbctl.base.diagnostics import Path
from lbctl.targets.envoy.sources import SECRETS, Tree, clusters, listeners, pool_of, sources, virtual_hosts
from lbctl.targets.target import Bundle, Complaint, File

_LOGGED = re.compile(r"^\[[^\]]*\]\[\d+\]\[(?P<level>\w+)\]\[[^\]]*\] (?:\[[^\]]*\] )?(?P<words>.*)$")
_SEVERE = frozenset(("critical", "error"))
_PREFIX = re.compile(r"^error initializing configuration '[^']*': ")
_BROKEN = "Proto constraint validation failed ("
_UNREAD = re.compile(r"^(Unable to parse JSON as proto \(.*?\)): \{.*$", re.DOTALL)
_CAUSE = re.compile(r"(\w+)ValidationError\.(\w+(?:\[\d+\])?): ((?:(?! \| caused by).)*)$", re.DOTALL)
_MANAGER = re.compile(r'stat_prefix: "([^"]+)"')
_FILE = re.compile(r"(/[^\s:'\"]+)")
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")


def check_command(binary: str, prefix: str, main: str) -> list[str]:
    """Needs neither root nor network. Where listeners have a file of their own, `prefix` gets a bootstrap with them."""
    secret = FilePath(main).with_name(SECRETS + FilePath(main).suffix)
    if secret.exists():
        whole = FilePath(prefix, "checked.json")
        whole.touch(0o600)
        whole.write_text(json.dumps(_whole_tree(FilePath(main).read_text(), secret.read_text())))
        main = str(whole)
    return [binary, "--mode", "validate", "-l", "error", "-c", main]


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """One for each line that Envoy logs as an error; lines that go on with it belong to it."""
    where = _Places(bundle)
    for words in dict.fromkeys(_messages(output)):
        path = where.of(words)
        file, line = next(((file, line) for file, line, owner in where.owners() if owner == path), (bundle.main, None))
        yield Complaint(where.without_secrets(_short(words)), file.name, line, path)


class _Places:
    """Looks for a place in the bundle; its tree is read only when a complaint counts positions."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def of(self, words: str) -> Path:
        before, broken, way = words.rpartition(_BROKEN)
        if broken:
            return self._counted(before, way)
        told = _short(words)
        return self._by_file(told) or self._by_name(told)

    def owners(self) -> Iterator[tuple[File, int, Path]]:
        """Whose each line of the bundle is."""
        return ((file, line, owner) for file in self._bundle.files for line, owner in file.sources.items())

    def without_secrets(self, words: str) -> str:
        """Envoy may quote what it cannot read."""
        if len(self._bundle.files) == 1:
            return words
        for known in sorted(set(_strings(self._tree, "credentials")), key=len, reverse=True):
            words = words.replace(known, "…")
        return words

    @cached_property
    def _tree(self) -> Tree:
        return _whole_tree(*(file.text for file in self._bundle.files))

    def _counted(self, dump: str, way: str) -> Path:
        steps = {name: int(number) for name, number in re.findall(r"\.(\w+)\[(\d+)\]", way)}
        if "Clusters" in steps:
            return pool_of(clusters(self._tree)[steps["Clusters"]])
        if "Listeners" in steps:
            return ("listeners", str(listeners(self._tree)[steps["Listeners"]]["name"]))
        found = _MANAGER.search(dump)
        return self._route(found[1], steps) if found else ()

    def _route(self, name: str, steps: dict[str, int]) -> Path:
        listener = next((item for item in listeners(self._tree) if item["name"] == name), None)
        if listener is None:
            return ()
        hosts = list(virtual_hosts(listener))
        if "VirtualHosts" in steps and "Routes" in steps:
            route = hosts[steps["VirtualHosts"]]["routes"][steps["Routes"]].get("name")
            if route:
                return ("routes", str(route))
        return ("listeners", name)

    def _by_file(self, words: str) -> Path:
        texts = {file.name: file.text.splitlines() for file in self._bundle.files}
        for name in _FILE.findall(words):
            for file, line, owner in self.owners():
                if name in texts[file.name][line - 1]:
                    return owner
        return ()

    def _by_name(self, words: str) -> Path:
        owners = (owner for _, _, owner in self.owners()) if self._bundle.main.sources else self._named()
        known = {str(path[1]): path[:2] for path in owners}
        return next((known[name] for name in _QUOTED.findall(words) if name in known), ())

    def _named(self) -> Iterator[Path]:
        return (path for _, path in sources(self._tree))


def _whole_tree(main: str, secret: str = "") -> Tree:
    """As one bootstrap: the listeners of its own, then those of the other file."""
    import yaml

    tree: Tree = yaml.load(main, Loader=yaml.CSafeLoader)
    apart = listeners(yaml.load(secret, Loader=yaml.CSafeLoader)) if secret else []
    for item in apart:
        del item["@type"]
    if apart:
        static: Tree = tree.setdefault("static_resources", {})
        static["listeners"] = static.get("listeners", []) + apart
        del tree["dynamic_resources"]
    return tree


def _strings(tree: object, below: str, inside: bool = False) -> Iterator[str]:
    """The `key` of everything that stands in a list named `below`."""
    if isinstance(tree, list):
        for item in tree:
            yield from _strings(item, below, inside)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if inside and name == "key":
                yield str(value)
            else:
                yield from _strings(value, below, name == below)


def _short(words: str) -> str:
    """Without the message that Envoy prints whole, and of a broken constraint the last cause alone."""
    _, broken, way = words.rpartition(_BROKEN)
    if not broken:
        return _UNREAD.sub(r"\1", _PREFIX.sub("", words))
    cause = _CAUSE.search(way.removesuffix(")"))
    return f"{cause[1]}.{cause[2]}: {cause[3]}" if cause else way


def _messages(output: str) -> Iterator[str]:
    words: list[str] = []
    for text in output.splitlines():
        found = _LOGGED.match(text)
        if found:
            yield from _whole(words)
            words = [found["words"]] if found["level"] in _SEVERE else []
        elif words and text.strip():
            words.append(text.strip())
    yield from _whole(words)


def _whole(words: list[str]) -> Iterator[str]:
    if words:
        yield " ".join(words)
