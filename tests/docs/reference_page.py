"""docs/reference/fleet-file.md: every key of a fleet file, from the model that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.cli.schema import described
from lbctl.targets import KINDS, target
from lbctl.targets.features import FEATURES, Feature
from lbctl.targets.target import Rendered, Since

_INTRODUCTION = """\
<!-- Generated from lbctl/model by `python -m tests.docs.regenerate`; edit the descriptions there. -->

# Every key of a fleet file

A table for each object. In its title `*` stands for a name that you choose; lists have no step of their own. **Bold**
keys must stand. Where the default is –, the meaning says what holds without the key, or nothing does.

The last column says who does it: all proxies, some, one from a version on, one by `serve`, which does it in place of a
proxy that it drives, or `serve`: no proxy by itself, but `lbctl serve` acts on it. What happens on the others stands in
[the capability table](capabilities.md), and lbctl tells it at every render.
[How a fleet file is read](configuration.md) has the rules for files and values,
[examples/fleet.yaml](../../examples/fleet.yaml) all keys in one file.
"""
_EMPTY = "Nothing"
_EXAMPLES = {"body": "$.FIELD"}
"""The value that is shown of a key in a map that is written out."""
_MAX_INTEGER = 2**31 - 1


class _Book:
    """The tables, each object once; one that stands in several places is shown at the shallowest."""

    def __init__(self) -> None:
        self._schema = described()
        self._words: dict[str, str] = {}
        self._places = _places(self._schema)

    def text(self) -> str:
        tables = list(self._tables("", self._schema, "What the file holds."))
        return "\n".join([_INTRODUCTION, self._contents(), *tables, self._glossary()])

    def _contents(self) -> str:
        """A line for each section of the file, with the objects below it."""
        lines: dict[str, list[str]] = {}
        for path in self._in_order("", self._schema):
            top, _, rest = path.replace(".*", "").partition(".")
            lines.setdefault(top, []).append(f"[{rest or top}](#{_anchor(path)})")
        rows = [f"- {' · '.join(links)}" for links in lines.values()]
        return "\n".join(
            ["## Contents", "", "- [the file](#the-file)", *rows, "- [kinds of values](#kinds-of-values)", ""]
        )

    def _glossary(self) -> str:
        rows = [f"| {kind} | {grammar} |" for kind, grammar in sorted(self._words.items())]
        return "\n".join(["## Kinds of values", "", "| kind | how it is written |", "|---|---|", *rows, ""])

    def _in_order(self, path: str, section: dict[str, Any]) -> Iterator[str]:
        for name, below, _ in _objects(path, section):
            if self._places.get(name) == below:
                yield below
                yield from self._in_order(below, self._schema["definitions"][name])

    def _tables(self, path: str, section: dict[str, Any], meaning: str) -> Iterator[str]:
        """Its own, and those of what lies below it."""
        rows = [self._row(path, key, told, key in section.get("required", ())) for key, told in _keys(section)]
        choices = "".join(_choice(each["oneOf"]) for each in section.get("allOf", ()))
        title = f"{'##' if path.count('.') < 2 else '###'} `{path}`" if path else "## The file"
        head = ["| key | value | default | what it is | who |", "|---|---|---|---|---|"]
        yield "\n".join([title, "", f"{meaning}{choices}", "", *head, *rows, ""])
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
        """How it is written; an object as a link to its table."""
        if "$ref" in told:
            return self._link(_name(told))
        if "oneOf" in told:
            return ", ".join(self._alternative(path, each) for each in told["oneOf"])
        if told.get("type") == "array":
            return f"a list: {self._value(path, told['items'])}"
        if told.get("type") == "object":
            return f"a map: names to {self._value(path, told['additionalProperties'])}"
        return self._kind(told["grammar"]) if "grammar" in told else _words(told)

    def _alternative(self, path: str, told: dict[str, Any]) -> str:
        """One of several forms of a value; a small map is written out."""
        if "allOf" in told:
            return ", ".join(f"`{{{key}: NAME}}`" for key in told["properties"])
        if told.get("type") == "object":
            return "`{" + ", ".join(f"{key}: {_EXAMPLES.get(key, 'NAME')}" for key in told["properties"]) + "}`"
        return self._value(path, told)

    def _kind(self, grammar: str) -> str:
        """The short word for it, explained at the end of the page."""
        kind, _, written = grammar.partition(": ")
        if written:
            self._words[kind] = written
        return kind

    def _link(self, name: str) -> str:
        if name == _EMPTY:
            return "`{}`"
        path = self._places.get(name) or f"{name.removeprefix('Partial').lower()}s.*"
        return f"[`{path.replace('.*', '')}`](#{_anchor(path)})"


def page() -> str:
    """The text of docs/reference/fleet-file.md."""
    return _Book().text()


def _places(schema: dict[str, Any]) -> dict[str, str]:
    """Object → where it is shown."""
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
    """What must stand comes first."""
    required = section.get("required", ())
    return sorted(section["properties"].items(), key=lambda item: item[0] not in required)


def _objects(path: str, section: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, path and meaning of each object that lies right below."""
    for key, told in _keys(section):
        for name, below in _held(f"{path}.{key}" if path else key, told):
            yield name, below, told["description"]


def _held(path: str, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names of the objects that a key holds, with their paths."""
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
    low = f"above {told['exclusiveMinimum']}" if "exclusiveMinimum" in told else f"from {told['minimum']} on"
    return (
        f"{what} {low}"
        if told["maximum"] == _MAX_INTEGER
        else f"{what} {low.removesuffix(' on')} to {told['maximum']:,}"
    )


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_plain, value))}]" if isinstance(value, list) else str(value) or '""'


def _choice(options: list[dict[str, Any]]) -> str:
    keys = [f"`{option['required'][0]}`" for option in options if "required" in option]
    listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
    return f" {'Exactly' if len(keys) == len(options) else 'At most'} one of {listed} stands."


def _who(path: str) -> str:
    """Who does what the key says: of the most particular feature that claims it."""
    feature = max(FEATURES, key=lambda item: _claim(item, path))
    able = list(filter(None, (_able(kind, feature) for kind in KINDS)))
    if not able:
        return "`serve`"
    return "all" if able == [target(kind).title for kind in KINDS] else ", ".join(able)


def _able(kind: str, feature: Feature) -> str:
    capability = target(kind).capabilities[feature.id]
    if feature.id in target(kind).done_by_control_plane:
        return f"{target(kind).title} by `serve`"
    if isinstance(capability, Since):
        return f"{target(kind).title} from {'.'.join(map(str, capability.version))}"
    return target(kind).title if isinstance(capability, Rendered) and not capability.in_part else ""


def _claim(feature: Feature, path: str) -> int:
    """How much of the path the feature names; -1: it is not about it."""
    lengths = (len(key) for key in feature.keys if f"{path}.".startswith(f"{key}."))
    return max(lengths, default=-1)


def _anchor(path: str) -> str:
    return "".join(char for char in path if char.isalnum() or char in "_-")
