"""Make docs/share/man/man1: a manual page for lbctl and one for each of its commands, from the help of the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial

import click

from lbctl.cli.help import RULE
from tests.docs import cli_page

_SECTION = "1"
_EXIT_CODE = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)
_FILES = {
    "/etc/lbctl/fleet": "the fleet's files, where lbctl is installed as a service",
    "/var/lib/lbctl": "the state of `lbctl serve`: the last valid fleet, overrides, the token, the socket for Envoys",
}


def pages() -> dict[str, Callable[[], str]]:
    """Return, for each path in the repository, the function that makes its text."""
    top, *below = cli_page.contexts()
    commands = [context for context in below if context.parent is top]
    made: dict[str, Callable[[], str]] = {_path("lbctl"): partial(_overview, top, commands)}
    for context in commands:
        inner = [other for other in below if other.parent is context]
        made[_path(_name(context))] = partial(_page, context, inner)
    return made


def _path(name: str) -> str:
    return f"docs/share/man/man{_SECTION}/{name}.{_SECTION}"


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _overview(top: click.Context, commands: list[click.Context]) -> str:
    """Return the page of lbctl itself."""
    introduction = cli_page.page()
    lines = [
        *_head(top),
        ".SH COMMANDS",
        *(
            line
            for context in commands
            for line in _item(rf"\fB{_text(_name(context))}\fR({_SECTION})", _summary(context))
        ),
        ".SH OPTIONS",
        *_options(top),
        ".SH EXIT STATUS",
        *(line for code, meaning in _EXIT_CODE.findall(introduction) for line in _item(code, meaning)),
        ".SH ENVIRONMENT",
        _text(" ".join(RULE.split())),
        _text("lbctl help environment lists all variables."),
        ".SH FILES",
        *(line for file, meaning in _FILES.items() for line in _item(rf"\fI{_text(file)}\fR", meaning)),
    ]
    return _joined(lines)


def _page(context: click.Context, inner: list[click.Context]) -> str:
    """Return the page of a command, which lists its subcommands `inner`."""
    lines = [*_head(context), ".SH OPTIONS", *_options(context), *_examples(".SH EXAMPLES", context)]
    if inner:
        lines.append(".SH COMMANDS")
    for other in inner:
        lines += [rf".SS {_text(other.command_path)}", *_synopsis(other), ".PP", *_description(other)]
        lines += [*_options(other), *_examples(".PP", other)]
    return _joined([*lines, ".SH SEE ALSO", rf"\fBlbctl\fR({_SECTION})"])


def _head(context: click.Context) -> Iterator[str]:
    name = _name(context)
    yield r".\" Generated from the commands' own help by `python -m tests.docs.regenerate`; edit it there."
    yield f'.TH "{_text(name).upper()}" "{_SECTION}" "" "lbctl" "lbctl manual"'
    yield ".SH NAME"
    yield rf"{_text(name)} \- {_text(_summary(context))}"
    yield ".SH SYNOPSIS"
    yield from _synopsis(context)
    yield ".SH DESCRIPTION"
    yield from _description(context)


def _summary(context: click.Context) -> str:
    return context.command.get_short_help_str(limit=200).rstrip(".")


def _synopsis(context: click.Context) -> Iterator[str]:
    yield f".B {_text(context.command_path)}"
    yield _text(" ".join(context.command.collect_usage_pieces(context)))


def _description(context: click.Context) -> Iterator[str]:
    """Yield the paragraphs of the help. Paragraphs that begin with a line of `\\b` keep their line breaks."""
    for number, paragraph in enumerate(inspect.cleandoc(context.command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b\n"):
            yield ".nf"
            yield from map(_text, paragraph.splitlines()[1:])
            yield ".fi"
        else:
            yield _text(" ".join(paragraph.split()))


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield from _item(rf"\fB{_text(record[0])}\fR", record[1])


def _examples(head: str, context: click.Context) -> Iterator[str]:
    examples = getattr(context.command, "examples", "")
    if examples:
        yield from (head, ".nf", *map(_text, examples.splitlines()), ".fi")


def _item(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", term, _text(" ".join(meaning.split())))


def _text(text: str) -> str:
    """Quote a text for roff: backslashes, hyphens that users type, and a first character that roff would read as a
    request."""
    quoted = text.replace("`", "").replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{quoted}" if quoted[:1] in (".", "'") else quoted


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
