"""Make docs/reference/fleet-file.md and docs/reference/fleet: every key of a fleet file, from its model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from lbctl.cli.schema import described
from lbctl.targets import KINDS, MANIFESTS, target
from lbctl.targets.features import FEATURES, Feature
from lbctl.targets.target import Rendered, Since

_NOTE = "<!-- Generated from lbctl/model by `python -m tests.docs.regenerate`; edit the descriptions there. -->\n"
_INTRODUCTION = f"""\
{_NOTE}
# Every key of a fleet file

Each section of the file has its own page, with one table per object. In a title, `*` represents a name that you choose.
Keys in **bold** are required. If the default is –, the description explains what happens if the key is not set.

The last column lists the proxies that support the key, with the minimum version if there is one. "By `serve`" means
that `lbctl serve` does the work for the proxies that it manages. [The capability table](capabilities.md) describes what
happens on the other proxies, and `lbctl render` reports it.

[How a fleet file is read](configuration.md) explains the rules for files and values.
[examples/fleet.yaml](../../examples/fleet.yaml) shows all keys in one file.
"""
_SECTION_INTRODUCTION = """\
{note}
# Fleet file: `{section}`

[Every key of a fleet file](../fleet-file.md) explains the columns and lists all sections.
"""
_MAIN = "docs/reference/fleet-file.md"
_OWN_PAGES = ("listeners", "routes", "pools", "proxies", "control")
"""The sections with a separate page in docs/reference/fleet."""
_EMPTY = "Nothing"
_EXAMPLES = {"body": "$.FIELD"}
"""The example value of a key in a map that is written out."""
_MAX_INTEGER = 2**31 - 1
_PLURALS = {"a token issuer or audience": "token issuers or audiences"}


class _Book:
    """The tables of all objects. An object that is used in several places has its table at the shallowest one."""

    def __init__(self) -> None:
        self._schema = described()
        self._words: dict[str, str] = {}
        self._places = _places(self._schema)

    def texts(self) -> dict[str, str]:
        """Return each page by its path in the repository."""
        tables: dict[str, list[str]] = {}
        for path, table in self._tables("", self._schema, "The sections of the file."):
            tables.setdefault(_page(path), []).append(table)
        main = tables.pop(_MAIN)
        texts = {
            page: "\n".join([_SECTION_INTRODUCTION.format(note=_NOTE, section=_section(page)), *own])
            for page, own in tables.items()
        }
        return {_MAIN: "\n".join([_INTRODUCTION, self._contents(), *main, self._glossary()]), **texts}

    def _contents(self) -> str:
        """Return a line for each section of the file and for the objects below it."""
        lines: dict[str, list[str]] = {}
        for path in self._in_order("", self._schema):
            top, _, rest = path.replace(".*", "").partition(".")
            lines.setdefault(top, []).append(f"[{rest or top}]({_target('', path)})")
        rows = [f"- {' · '.join(links)}" for links in lines.values()]
        return "\n".join(
            ["## Contents", "", "- [the file](#the-file)", *rows, "- [kinds of values](#kinds-of-values)", ""]
        )

    def _glossary(self) -> str:
        rows = [f"| {kind} | {grammar} |" for kind, grammar in sorted(self._words.items())]
        return "\n".join(["## Kinds of values", "", "| kind | syntax |", "|---|---|", *rows, ""])

    def _in_order(self, path: str, section: dict[str, Any]) -> Iterator[str]:
        for name, below, _ in _objects(path, section):
            if self._places.get(name) == below:
                yield below
                yield from self._in_order(below, self._schema["definitions"][name])

    def _tables(self, path: str, section: dict[str, Any], meaning: str) -> Iterator[tuple[str, str]]:
        """Yield the path and the table of an object, then of those below it."""
        rows = [self._row(path, key, told, key in section.get("required", ())) for key, told in _keys(section)]
        choices = "".join(_choice(each["oneOf"]) for each in section.get("allOf", ()))
        title = f"{'##' if path.count('.') < 2 else '###'} `{path}`" if path else "## The file"
        head = ["| key | value | default | description | proxies |", "|---|---|---|---|---|"]
        yield path, "\n".join([title, "", f"{meaning}{choices}", "", *head, *rows, ""])
        for name, below, words in _objects(path, section):
            if self._places.get(name) == below:
                yield from self._tables(below, self._schema["definitions"][name], words)

    def _row(self, above: str, key: str, told: dict[str, Any], required: bool) -> str:
        path = f"{above}.{key}" if above else key
        name = f"**`{key}`**" if required else f"`{key}`"
        default = f"`{_plain(told['default'])}`" if "default" in told else "–"
        who = "" if any(name != _EMPTY for name, _ in _held(path, told)) else _who(path)
        cells = (name, self._value(path, told), default, told["description"], who)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def _value(self, path: str, told: dict[str, Any]) -> str:
        """Return how the value is written. An object is a link to its table."""
        if "$ref" in told:
            return self._link(path, _name(told))
        if "oneOf" in told:
            return " or ".join(", ".join(self._alternative(path, each) for each in told["oneOf"]).rsplit(", ", 1))
        if told.get("type") == "array":
            return f"a list of {_plural(self._value(path, told['items']))}"
        if told.get("type") == "object":
            return f"a map from names to {_plural(self._value(path, told['additionalProperties']))}"
        return self._kind(told["grammar"]) if "grammar" in told else _words(told)

    def _alternative(self, path: str, told: dict[str, Any]) -> str:
        """Return one of several forms of a value. A small map is written out."""
        if "allOf" in told:
            return ", ".join(f"`{{{key}: NAME}}`" for key in told["properties"])
        if told.get("type") == "object":
            return "`{" + ", ".join(f"{key}: {_EXAMPLES.get(key, 'NAME')}" for key in told["properties"]) + "}`"
        return self._value(path, told)

    def _kind(self, grammar: str) -> str:
        """Return the short name of a grammar, which the end of the page explains."""
        kind, _, written = grammar.partition(": ")
        if written:
            self._words[kind] = written
        return kind

    def _link(self, here: str, name: str) -> str:
        """Return a link to the table of an object, for the page of the key at `here`."""
        if name == _EMPTY:
            return "`{}`"
        path = self._places.get(name) or f"{name.removeprefix('Partial').lower()}s.*"
        return f"[`{path.replace('.*', '')}`]({_target(here.rpartition('.')[0], path)})"


@cache
def texts() -> dict[str, str]:
    """Return the text of each page by its path in the repository."""
    return _Book().texts()


def pages() -> dict[str, Callable[[], str]]:
    """Return, for each path in the repository, the function that makes its text."""
    return {name: partial(texts().__getitem__, name) for name in texts()}


def _plural(value: str) -> str:
    """Return the plural of a kind of value, such as 'a whole number from 1 to 9'. Links and choices do not change."""
    if value in _PLURALS:
        return _PLURALS[value]
    if not value.startswith(("a ", "an ")):
        return value
    head, *rest = re.split(r"(?= from | above | of | with |, at | or `)", value.partition(" ")[2], maxsplit=1)
    return f"{head}{'es' if head.endswith('s') else 's'}{''.join(rest).replace(', at', ', each at')}"


def _section(page: str) -> str:
    return page.rpartition("/")[2].removesuffix(".md")


def _page(path: str) -> str:
    """Return the page that has the table of an object."""
    top = path.partition(".")[0]
    return f"docs/reference/fleet/{top}.md" if top in _OWN_PAGES else _MAIN


def _target(here: str, path: str) -> str:
    """Return the link from the table at `here` to the table at `path`."""
    page, other = _page(here), _page(path)
    if page == other:
        return f"#{_anchor(path)}"
    folder = "" if page != _MAIN and other != _MAIN else "fleet/" if page == _MAIN else "../"
    return f"{folder}{_section(other)}.md#{_anchor(path)}"


def _places(schema: dict[str, Any]) -> dict[str, str]:
    """Return object → the path at which its table is."""
    places: dict[str, str] = {}
    waiting = [("", schema)]
    while waiting:
        path, section = waiting.pop(0)
        for name, below, _ in _objects(path, section):
            if name not in places and name != _EMPTY and not name.startswith("Partial"):
                places[name] = below
                waiting.append((below, schema["definitions"][name]))
    return places


def _keys(section: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys of an object, the required ones first."""
    required = section.get("required", ())
    return sorted(section["properties"].items(), key=lambda item: item[0] not in required)


def _objects(path: str, section: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, path and meaning of each direct subobject."""
    for key, told in _keys(section):
        for name, below in _held(f"{path}.{key}" if path else key, told):
            yield name, below, told["description"]


def _held(path: str, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each object in the value of a key."""
    if "$ref" in told:
        yield _name(told), path
    elif told.get("type") == "array":
        yield from _held(path, told["items"])
    elif "oneOf" in told:
        for each in told["oneOf"]:
            yield from _held(path, each) if "$ref" in each else ()
    elif isinstance(told.get("additionalProperties"), dict):
        yield from _held(f"{path}.*", told["additionalProperties"])


def _name(told: dict[str, Any]) -> str:
    return str(told["$ref"]).rsplit("/", 1)[1]


def _words(told: dict[str, Any]) -> str:
    if "enum" in told or "const" in told:
        return ", ".join(f"`{_plain(value)}`" for value in told.get("enum", [told.get("const")]))
    if told["type"] == "boolean":
        return "`true`, `false`"
    what = "a whole number" if told["type"] == "integer" else "a number"
    if told["maximum"] == _MAX_INTEGER:
        return f"{what}, at least {told['minimum']}"
    low = f"above {told['exclusiveMinimum']}, up" if "exclusiveMinimum" in told else f"from {told['minimum']}"
    return f"{what} {low} to {told['maximum']:,}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_plain, value))}]" if isinstance(value, list) else str(value) or '""'


def _choice(options: list[dict[str, Any]]) -> str:
    keys = [f"`{option['required'][0]}`" for option in options if "required" in option]
    listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
    return f" Set {'exactly' if len(keys) == len(options) else 'at most'} one of {listed}."


def _who(path: str) -> str:
    """Return the targets that support a key, according to the most specific feature that covers it."""
    if path.startswith("proxies.*.kubernetes."):
        return ", ".join(target(kind).title for kind in MANIFESTS.names)
    feature = max(FEATURES, key=lambda item: _claim(item, path))
    able = list(filter(None, (_able(kind, feature) for kind in KINDS)))
    if not able:
        return "`serve`"
    return "all" if able == [target(kind).title for kind in KINDS] else ", ".join(able)


def _able(kind: str, feature: Feature) -> str:
    capability = target(kind).capabilities[feature.id]
    if feature.id in target(kind).done_by_control_plane:
        return f"{target(kind).title} (by `serve`)"
    if isinstance(capability, Since):
        return f"{target(kind).title} {'.'.join(map(str, capability.version))} or later"
    return target(kind).title if isinstance(capability, Rendered) and not capability.in_part else ""


def _claim(feature: Feature, path: str) -> int:
    """Return how many characters of the path the feature covers, or -1 if it does not cover the path."""
    lengths = (len(key) for key in feature.keys if f"{path}.".startswith(f"{key}."))
    return max(lengths, default=-1)


def _anchor(path: str) -> str:
    return "".join(char for char in path if char.isalnum() or char in "_-")
