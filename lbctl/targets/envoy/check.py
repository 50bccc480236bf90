"""Envoy's own checker, and what its words say about where.

Envoy names no lines. Three things in its words lead back to the YAML:

- a broken constraint prints the whole message and then the way to the field, with positions
  (`StaticResources… Clusters[3]`, or `stat_prefix: "public" … VirtualHosts[0]… Routes[20]`);
- a file that is missing or wrong is named, and the first line of the bundle that names it is whose it is;
- else a listener, pool or route may stand in quotes (`Provider 'chat' in jwt_authn config …`).

What is found in none of these ways (a regular expression that RE2 refuses, by its own text alone) has no place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from lbctl.base.diagnostics import Path
from lbctl.targets.envoy.sources import Tree, clusters, listeners, pool_of, sources, virtual_hosts
from lbctl.targets.target import Bundle, Complaint

_LOGGED = re.compile(r"^\[[^\]]*\]\[\d+\]\[(?P<level>\w+)\]\[[^\]]*\] (?:\[[^\]]*\] )?(?P<words>.*)$")
_SEVERE = frozenset(("critical", "error"))
_PREFIX = re.compile(r"^error initializing configuration '[^']*': ")
_BROKEN = "Proto constraint validation failed ("
_CAUSE = re.compile(r"(\w+)ValidationError\.(\w+(?:\[\d+\])?): ((?:(?! \| caused by).)*)$", re.DOTALL)
_MANAGER = re.compile(r'stat_prefix: "([^"]+)"')
_FILE = re.compile(r"(/[^\s:'\"]+)")
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")


def check_command(binary: str, prefix: str, main: str) -> list[str]:
    """Needs neither root nor network; `prefix` stays unused, since Envoy keeps no files of its own."""
    del prefix
    return [binary, "--mode", "validate", "-l", "error", "-c", main]


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """One for each line that Envoy logs as an error; lines that go on with it belong to it."""
    where = _Places(bundle)
    for words in dict.fromkeys(_messages(output)):
        path = where.of(words)
        line = next((line for line, owner in bundle.main.sources.items() if owner == path), None)
        yield Complaint(_short(words), bundle.main.name, line, path)


class _Places:
    """Looks for a place in the bundle; its tree is read only when a complaint counts positions."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def of(self, words: str) -> Path:
        before, broken, way = words.rpartition(_BROKEN)
        if broken:
            return self._counted(before, way)
        return self._by_file(words) or self._by_name(words)

    @cached_property
    def _tree(self) -> Tree:
        import yaml

        tree: Tree = yaml.load(self._bundle.main.text, Loader=yaml.CSafeLoader)
        return tree

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
        text = self._bundle.main.text.splitlines()
        for name in _FILE.findall(words):
            for line, owner in self._bundle.main.sources.items():
                if name in text[line - 1]:
                    return owner
        return ()

    def _by_name(self, words: str) -> Path:
        known = {str(path[1]): path[:2] for path in self._owners()}
        return next((known[name] for name in _QUOTED.findall(words) if name in known), ())

    def _owners(self) -> Iterator[Path]:
        yield from (
            self._bundle.main.sources.values()
            if self._bundle.main.sources
            else (path for _, path in sources(self._tree))
        )


def _short(words: str) -> str:
    """Without the message that a broken constraint prints, and with its last cause alone."""
    _, broken, way = words.rpartition(_BROKEN)
    if not broken:
        return _PREFIX.sub("", words)
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
