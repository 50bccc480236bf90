"""Envoy's own checker, and the fleet position that each of its messages refers to.

Envoy does not report line numbers. Three kinds of messages can be traced to the YAML:

- A violated constraint prints the whole message and then the path to the field, with positions (`StaticResources…
  Clusters[3]`, or `stat_prefix: "public" … VirtualHosts[0]… Routes[20]`).
- A missing or invalid file is named. The position is the owner of the first line in the bundle with this name.
- Otherwise a listener, a pool or a route may be quoted (`Provider 'chat' in jwt_authn config …`).

Envoy's checker does not read files that a bootstrap refers to, so it gets one file that contains the listeners of both
files. Any other message, for example about a regular expression that RE2 rejects, has no position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path as FilePath

from lbctl.base.diagnostics import Path
from lbctl.ir.secrets import is_credential
from lbctl.targets.envoy.sources import (
    SECRET_CLUSTERS,
    SECRET_LISTENERS,
    Tree,
    clusters,
    listeners,
    pool_of,
    sources,
    virtual_hosts,
)
from lbctl.targets.target import Bundle, Complaint, File

_LOGGED = re.compile(r"^\[[^\]]*\]\[\d+\]\[(?P<level>\w+)\]\[[^\]]*\] (?:\[[^\]]*\] )?(?P<message>.*)$")
_SEVERE = frozenset(("critical", "error"))
_PREFIX = re.compile(r"^error initializing configuration '[^']*': ")
_BROKEN = "Proto constraint validation failed ("
_UNREAD = re.compile(r"^(Unable to parse JSON as proto \(.*?\)): \{.*$", re.DOTALL)
_CAUSE = re.compile(r"(\w+)ValidationError\.(\w+(?:\[\d+\])?): ((?:(?! \| caused by).)*)$", re.DOTALL)
_MANAGER = re.compile(r'stat_prefix: "([^"]+)"')
_FILE = re.compile(r"(/[^\s:'\"]+)")
_SECRET_FILES = (SECRET_LISTENERS, SECRET_CLUSTERS)
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")


def check_command(binary: str, prefix: str, main: str) -> list[str]:
    """Return the command that checks a configuration. The command needs neither root privileges nor a network.

    If listeners or clusters are in separate files, write a bootstrap that contains them to `prefix`.
    """
    files = (FilePath(main).with_name(name + FilePath(main).suffix) for name in _SECRET_FILES)
    secrets = [file.read_text() for file in files if file.exists()]
    if secrets:
        merged = FilePath(prefix, "checked.json")
        merged.touch(0o600)
        merged.write_text(json.dumps(_merged_tree(FilePath(main).read_text(), *secrets)))
        main = str(merged)
    return [binary, "--mode", "validate", "-l", "error", "-c", main]


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """Yield a complaint for each error in Envoy's log. Continuation lines are part of the error."""
    locator = _Locator(bundle)
    for message in dict.fromkeys(_messages(output)):
        path = locator.locate(message)
        file, line = next(
            ((file, line) for file, line, owner in locator.owners() if owner == path), (bundle.main, None)
        )
        yield Complaint(locator.without_secrets(_summary(message)), file.name, line, path)


class _Locator:
    """Finds the position in the bundle that a message refers to. The tree is parsed only when it is needed."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def locate(self, message: str) -> Path:
        dump, separator, field_path = message.rpartition(_BROKEN)
        if separator:
            return self._by_position(dump, field_path)
        summary = _summary(message)
        return self._by_file(summary) or self._by_name(summary)

    def owners(self) -> Iterator[tuple[File, int, Path]]:
        """Yield the file, line number and owner of each line in the bundle that has an owner."""
        return ((file, line, owner) for file in self._bundle.files for line, owner in file.sources.items())

    def without_secrets(self, message: str) -> str:
        """Return the message with the keys of clients and replicas removed.

        Envoy may quote values that it cannot parse.
        """
        if len(self._bundle.files) == 1:
            return message
        secrets = {*_keys_below(self._tree, "credentials"), *_check_headers(self._tree), *_compared(self._tree)}
        for key in sorted(filter(None, secrets), key=len, reverse=True):
            message = message.replace(key, "…")
        return message

    @cached_property
    def _tree(self) -> Tree:
        texts = [file.text for file in self._bundle.files if FilePath(file.name).stem in _SECRET_FILES]
        return _merged_tree(self._bundle.main.text, *texts)

    def _by_position(self, dump: str, field_path: str) -> Path:
        positions = {name: int(number) for name, number in re.findall(r"\.(\w+)\[(\d+)\]", field_path)}
        if "Clusters" in positions:
            return pool_of(clusters(self._tree)[positions["Clusters"]])
        if "Listeners" in positions:
            return ("listeners", str(listeners(self._tree)[positions["Listeners"]]["name"]))
        manager = _MANAGER.search(dump)
        return self._route(manager[1], positions) if manager else ()

    def _route(self, name: str, positions: dict[str, int]) -> Path:
        listener = next((item for item in listeners(self._tree) if item["name"] == name), None)
        if listener is None:
            return ()
        hosts = list(virtual_hosts(listener))
        if "VirtualHosts" in positions and "Routes" in positions:
            route = hosts[positions["VirtualHosts"]]["routes"][positions["Routes"]].get("name")
            if route:
                return ("routes", str(route))
        return ("listeners", name)

    def _by_file(self, message: str) -> Path:
        texts = {file.name: file.text.splitlines() for file in self._bundle.files}
        for name in _FILE.findall(message):
            for file, line, owner in self.owners():
                if name in texts[file.name][line - 1]:
                    return owner
        return ()

    def _by_name(self, message: str) -> Path:
        owners = (owner for _, _, owner in self.owners()) if self._bundle.main.sources else self._tree_owners()
        paths = {str(path[1]): path[:2] for path in owners}
        return next((paths[name] for name in _QUOTED.findall(message) if name in paths), ())

    def _tree_owners(self) -> Iterator[Path]:
        return (path for _, path in sources(self._tree))


def _merged_tree(main: str, *secrets: str) -> Tree:
    """Return all files as one bootstrap: its own listeners and clusters, followed by those in the other files."""
    import yaml

    tree: Tree = yaml.load(main, Loader=yaml.CSafeLoader)
    others: list[Tree] = [yaml.load(secret, Loader=yaml.CSafeLoader) for secret in secrets]
    static: Tree = tree.setdefault("static_resources", {})
    for key, items_of in (("listeners", listeners), ("clusters", clusters)):
        items = [item for other in others for item in items_of(other)]
        for item in items:
            del item["@type"]
        if items:
            static[key] = static.get(key, []) + items
    tree.pop("dynamic_resources", None)
    return tree


def _check_headers(tree: Tree) -> Iterator[str]:
    """Yield the header values of health checks, both as written and as sent."""
    for cluster in clusters(tree):
        for check in cluster.get("health_checks", ()):
            http, grpc = check.get("http_health_check", {}), check.get("grpc_health_check", {})
            for item in (*http.get("request_headers_to_add", ()), *grpc.get("initial_metadata", ())):
                value = str(item.get("header", item).get("value", ""))
                yield from (value, value.replace("%%", "%"))


def _compared(tree: object) -> Iterator[str]:
    """Yield the values that headers are compared with or set to, if they may be credentials."""
    for item in tree if isinstance(tree, list) else tree.values() if isinstance(tree, dict) else ():
        yield from _compared(item)
    if isinstance(tree, dict) and (name := str(tree.get("name") or tree.get("key") or "")):
        compared = tree.get("string_match", {})
        texts = (compared.get("exact"), compared.get("safe_regex", {}).get("regex"), tree.get("value"))
        yield from (text for text in texts if text and is_credential(name, str(text)))


def _keys_below(tree: object, section: str, inside: bool = False) -> Iterator[str]:
    """Yield the value of each `key` in the items of a list named `section`."""
    if isinstance(tree, list):
        for item in tree:
            yield from _keys_below(item, section, inside)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if inside and name == "key":
                yield str(value)
            else:
                yield from _keys_below(value, section, name == section)


def _summary(message: str) -> str:
    """Return the message without the printed configuration.

    For a violated constraint, keep only the innermost cause.
    """
    _, separator, field_path = message.rpartition(_BROKEN)
    if not separator:
        return _UNREAD.sub(r"\1", _PREFIX.sub("", message))
    cause = _CAUSE.search(field_path.removesuffix(")"))
    return f"{cause[1]}.{cause[2]}: {cause[3]}" if cause else field_path


def _messages(output: str) -> Iterator[str]:
    parts: list[str] = []
    for text in output.splitlines():
        match = _LOGGED.match(text)
        if match:
            yield from _joined(parts)
            parts = [match["message"]] if match["level"] in _SEVERE else []
        elif parts and text.strip():
            parts.append(text.strip())
    yield from _joined(parts)


def _joined(parts: list[str]) -> Iterator[str]:
    if parts:
        yield " ".join(parts)
