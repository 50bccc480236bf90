"""Render a chart that uses a small part of Helm's language, for machines without helm.

It supports `{{ .Values.a.b }}`, `.Release.Namespace`, `.Release.Name`, `.Files.Get`, the functions toYaml, nindent,
quote and add, `range` over a list or `untilStep` with `(int …)`, fields of the items of a list, and `if`. It fails for
anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(\{\{-?)\s*(.*?)\s*(-?\}\})", re.DOTALL)


def render(chart: Path, values: Mapping[str, Any] | None = None, namespace: str = "inference") -> list[dict[str, Any]]:
    """Return all objects of the chart, rendered with these values over its own."""
    merged = _merged(yaml.safe_load((chart / "values.yaml").read_text()), values or {})
    scope = {"Values": merged, "Release": {"Namespace": namespace, "Name": "lbctl"}}
    texts = [_render(chart, file.read_text(), scope) for file in sorted((chart / "templates").glob("*.yaml"))]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, Mapping):
        return base | {key: _merged(base.get(key), value) for key, value in over.items()}
    return over


def _render(chart: Path, text: str, scope: Mapping[str, Any]) -> str:
    pieces = list(_pieces(text))
    out, rest = _block(chart, pieces, scope, scope)
    assert not rest, f"an end without a beginning: {rest[0]}"
    return out


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield for each piece whether it is an action, and its text. The dashes of actions trim whitespace."""
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        plain = text[at : match.start()]
        plain = plain.lstrip() if trim else plain
        yield False, plain.rstrip() if match[1].endswith("-") else plain
        yield True, match[2]
        at, trim = match.end(), match[3].startswith("-")
    yield False, text[at:].lstrip() if trim else text[at:]


def _block(
    chart: Path, pieces: Sequence[tuple[bool, str]], scope: Mapping[str, Any], dot: Any
) -> tuple[str, Sequence[tuple[bool, str]]]:
    """Return the rendered text up to the block's `end`, and the following pieces."""
    out = ""
    while pieces:
        (is_action, text), pieces = pieces[0], pieces[1:]
        word, _, argument = text.partition(" ") if is_action else ("", "", "")
        if not is_action:
            out += text
        elif word == "end":
            return out, pieces
        elif word in {"if", "range"}:
            value = _term(chart, argument, scope, dot)
            items = list(value) if word == "range" else [dot] * bool(value)
            after = pieces if items else _after_end(pieces)
            for item in items:
                inner, after = _block(chart, pieces, scope, item)
                out += inner
            pieces = after
        else:
            out += str(_pipeline(chart, text, scope, dot))
    return out, []


def _after_end(pieces: Sequence[tuple[bool, str]]) -> Sequence[tuple[bool, str]]:
    """Return the pieces after the `end` of the block that begins with `pieces`."""
    depth = 1
    for index, (is_action, text) in enumerate(pieces):
        word = text.partition(" ")[0] if is_action else ""
        depth += (word in {"if", "range"}) - (word == "end")
        if not depth:
            return pieces[index + 1 :]
    raise ValueError("a block without an end")


def _pipeline(chart: Path, text: str, scope: Mapping[str, Any], dot: Any) -> Any:
    first, *functions = (part.strip() for part in text.split("|"))
    value = _term(chart, first, scope, dot)
    for function in functions:
        name, *arguments = function.split()
        if name == "quote":
            value = f'"{value}"'
        elif name == "nindent":
            pad = " " * int(arguments[0])
            value = "\n" + "\n".join(pad + line if line else line for line in str(value).rstrip("\n").split("\n"))
        else:
            raise ValueError(f"the function {name} is not known here")
    return value


def _term(chart: Path, text: str, scope: Mapping[str, Any], dot: Any) -> Any:
    name, *arguments = text.split()
    if name == ".Files.Get":
        return (chart / arguments[0].strip('"')).read_text()
    if name == "toYaml":
        return yaml.safe_dump(_term(chart, arguments[0], scope, dot), sort_keys=False)
    if name == "add":
        return sum(int(item) if item.isdecimal() else _term(chart, item, scope, dot) for item in arguments)
    if name == "untilStep":
        first, _, *count, step = text[len(name) :].replace("(", " ").replace(")", " ").split()
        return range(int(first), _term(chart, " ".join(count), scope, dot), int(step))
    if name == ".":
        return dot
    value: Any = scope if name.startswith("$") else dot
    assert re.fullmatch(r"\$?(\.\w+)+", name), f"{text} is not known here"
    for key in name.lstrip("$.").split("."):
        value = value[key]
    return value
