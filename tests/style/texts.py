"""Find what people read in a file: paragraphs, docstrings, comments, messages, names of constants and of tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

Kind = Literal["prose", "constant", "test"]
_COMMENT = re.compile(r"(?:^|\s\s)\s*#(?!!)[:\s]?\s*(.*)$")
_IMPORT = re.compile(r"^import .*$", re.MULTILINE)
"""An import of JavaScript, which is not a sentence."""
_LINE_COMMENT = re.compile(r"^\s*(?:#|//|--|\{#-?)\s?(.*)$")
_BREAK = re.compile(r"^\s*(?:$|[-*+] |\d+\. |\||#|>|<)")
_CONSTANT = re.compile(r"^_?[A-Z][A-Z0-9_]+$")
_CODE_LIKE = re.compile(r"(`+)(?:.|\n)+?\1|\]\([^)\n]*\)|https?://\S+")


@dataclass(frozen=True)
class Text:
    """A paragraph or a name."""

    kind: Kind
    line: int
    """The line where it begins, from 1."""
    text: str
    """In prose, code and addresses are blanked out, so that offsets stay."""
    source: tuple[str, ...] = field(default=(), repr=False)
    """The lines of the source where the text has other line ends than these, such as strings that are joined."""

    def line_of(self, start: int, end: int) -> int:
        """Return the line of this part of the text."""
        if not self.source:
            return self.line + self.text.count("\n", 0, start)
        words = self.text[start:end].split("\n")[0]
        return self.line + next((number for number, line in enumerate(self.source) if words in line), 0)


def texts(path: PurePath, content: str) -> Iterator[Text]:
    """Yield what people read in this file."""
    if path.suffix == ".py":
        yield from _python(path, content)
    elif path.suffix == ".md":
        yield from _markdown(content)
    elif path.suffix in (".js", ".html"):
        yield from _paragraphs(1, _IMPORT.sub("", content))
    else:
        yield from _comments(content.splitlines(), _LINE_COMMENT, frozenset())


def _prose(line: int, text: str, source: tuple[str, ...] = ()) -> Text:
    return Text("prose", line, _CODE_LIKE.sub(lambda match: re.sub(r"\S", "`", match[0]), text), source)


def _python(path: PurePath, content: str) -> Iterator[Text]:
    lines = content.splitlines()
    is_test = path.parts[0] == "tests"
    docstrings: set[int] = set()
    in_strings: set[int] = set()
    for node in _nodes(ast.parse(content)):
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            in_strings.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
            if id(node) in docstrings or not is_test:
                yield from _string(node, lines)
        else:
            yield from _names(node, is_test)
    yield from _comments(lines, _COMMENT, frozenset(in_strings))


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield parents before their children, without constants other than strings and without the parts of f-strings."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.Constant) or isinstance(node.value, str):
            yield node
        if isinstance(node, ast.JoinedStr):
            continue
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                todo.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context | ast.operator):
                todo.append(value)


def _string(node: ast.Constant | ast.JoinedStr, lines: list[str]) -> Iterator[Text]:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
    if " " not in text:
        return
    assert node.end_lineno is not None
    if node.end_lineno - node.lineno == text.count("\n"):
        yield from _paragraphs(node.lineno, text)
    else:
        source = tuple(lines[node.lineno - 1 : node.end_lineno])
        yield from (_prose(node.lineno, part.text, source) for part in _paragraphs(1, text))


def _names(node: ast.AST, is_test: bool) -> Iterator[Text]:
    if is_test and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
        yield Text("test", node.lineno, node.name)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        for name in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(name, ast.Name) and _CONSTANT.match(name.id):
                yield Text("constant", name.lineno, name.id)


def _comments(lines: list[str], pattern: re.Pattern[str], inside: frozenset[int]) -> Iterator[Text]:
    """Yield the comments; those in consecutive lines are one text."""
    found: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        match = None if number in inside else pattern.search(line)
        if match:
            found.append(match[1])
        elif found:
            yield from _paragraphs(number - len(found), "\n".join(found))
            found = []


def _markdown(content: str) -> Iterator[Text]:
    """Yield the values of the front matter, and the paragraphs outside fenced blocks."""
    lines = content.split("\n")
    if lines[0] == "---":
        end = lines.index("---", 1)
        for number, line in enumerate(lines[1:end], 2):
            yield _prose(number, line.partition(": ")[2].strip("'\""))
        lines[: end + 1] = [""] * (end + 1)
    kept, fence = [], ""
    for line in lines:
        marker = re.match(r"\s*(`{3,})", line)
        if marker and not fence:
            fence, line = marker[1], ""
        elif fence:
            fence = "" if marker and marker[1].startswith(fence) else fence
            line = ""
        kept.append(line)
    yield from _paragraphs(1, "\n".join(kept))


def _paragraphs(first: int, content: str) -> Iterator[Text]:
    """Yield paragraphs, list items, headings and cells of tables."""
    block: list[str] = []
    for number, line in enumerate([*content.split("\n"), ""], first):
        if _BREAK.match(line) and block:
            yield _prose(number - len(block), "\n".join(block))
            block = []
        if line.lstrip().startswith("|"):
            yield from (_prose(number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line) if cell.strip())
        elif line.strip():
            block.append(line)
