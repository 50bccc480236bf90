"""The operator's own lines in a rendered configuration, inserted unchanged between two comments that name their file.

They are part of the configuration itself, so that it is complete, can be reviewed as one text, and changes in one step.
Each line carries its position, so that an error from the proxy's checker is reported at the line in the operator's
file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.own_lines import OwnLines
from lbctl.ir.proxies import Proxy
from lbctl.targets.target import Bundle, Complaint
from lbctl.targets.token import Token

_SECTIONS = {"server": "listeners", "location": "routes", "frontend": "listeners", "backend": "pools"}
"""Maps each place to the section of the fleet that comes after the own lines."""

_BEGIN = "# Own lines of "


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A line that would leave the place where own lines are inserted."""

    line: int
    """Line number in its file, starting at 1."""
    message: str
    """Problem with the line."""
    hint: str = ""
    """How to fix the problem."""


def tokens(
    proxy: Proxy, place: str, owner: str = "", only: Callable[[str], Collection[int]] | None = None
) -> tuple[Token, ...]:
    """Return the own lines for a place, one configuration line each.

    `only` returns the numbers of the lines to include; the others become empty. None: all lines.
    """
    return tuple(token for item in proxy.own_lines(place, owner) for token in _tokens(proxy, item, only))


def _tokens(proxy: Proxy, item: OwnLines, only: Callable[[str], Collection[int]] | None) -> Iterator[Token]:
    wanted = range(1, len(item.lines) + 1) if only is None else only("\n".join(item.lines))
    if only is not None and not wanted:
        return
    path = item.path(proxy.name)
    yield Token(f"{_BEGIN}{item.file}:", path)
    for number, text in enumerate(item.lines, 1):
        yield Token(text if number in wanted else "", (*path, number))
    section = _SECTIONS.get(item.place)
    yield Token(f"# End of {item.file}.", (section, item.owner) if section else path[:2])


def refusal(proxy: Proxy, item: OwnLines, misplaced: Misplaced) -> Diagnostic:
    """Return the error for a misplaced line."""
    message = f"{item.file}:{misplaced.line}: {misplaced.message}"
    return Diagnostic("LB133", message, path=item.path(proxy.name), hint=misplaced.hint)


def complaint_text(complaint: Complaint, bundle: Bundle) -> str:
    """Return the position and text of a complaint by the proxy's checker:

    `file:line` of an own line, or else of the bundle.
    """
    if complaint.line is None or complaint.file is None:
        return complaint.message
    own = located(complaint, bundle)[1]
    return f"{own}: {complaint.message}" if own else f"{complaint.message} (line {complaint.line} of {complaint.file})"


def located(complaint: Complaint, bundle: Bundle) -> tuple[Path, str]:
    """Return the YAML path and `file:line` of the own line that a complaint is about; (), "" for other complaints."""
    for item in bundle.files:
        path = item.sources.get(complaint.line or 0, ()) if complaint.file in {None, item.name} else ()
        if path[2:3] == ("include",) and isinstance(path[-1], int) and isinstance(path[-2], int):
            rows = item.text.split("\n")
            file = rows[(complaint.line or 0) - path[-1] - 1].removeprefix(_BEGIN).removesuffix(":")
            return path[:-1], f"{file}:{path[-1]}"
    return (), ""
