"""Accounts for an import by recording the result for every directive in the source.

Each directive becomes a key, is handled by lbctl without a key, or is kept as a comment with a reason. A directive
that no part of the importer has claimed is also kept as a comment, so that nothing is lost silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Position
from lbctl.importer.secrets import REDACTED, SecretDirectives, redacted
from lbctl.importer.statement import Statement, walk

WRITTEN = "lbctl writes this part of the configuration itself"
UNKNOWN = "the fleet file has no key for this directive"
_INLINE = frozenset({"inline_string", "inlineString", "inline_bytes", "inlineBytes"})
_MAX_TEXT = 160
_WRITE_A_ROUTE = (
    "add a route for these requests; if the other route is allowed to handle them, remove this from the "
    "configuration and import again"
)


@dataclass(frozen=True, slots=True)
class Note:
    """A directive, or a part of one, that was not converted."""

    position: Position
    """Position in the source."""
    text: str
    """The directive on a single line, without secrets."""
    reason: str
    """The reason why the directive was not converted."""
    place: Path
    """Object in the fleet whose comment contains the directive, or an empty string for the head of the file."""


class Ledger:
    """Collects the results for the directives of one import."""

    def __init__(self, statements: Iterable[Statement], diagnostics: Diagnostics) -> None:
        roots = tuple(statements)
        self._statements = tuple(walk(roots))
        self.secrets = SecretDirectives(roots)
        self._reported: set[Statement] = set()
        self._carried: dict[Statement, list[Path]] = {}
        self._implied: dict[Statement, str] = {}
        self._noted: set[Statement] = set()
        self._parents = {child: item for item in self._statements for child in item.block}
        self._places: dict[Statement, Path] = {}
        self.diagnostics = diagnostics
        self.notes: list[Note] = []
        self.misrouted: list[Diagnostic] = []
        """Errors about requests that the fleet sends elsewhere. The fleet is still written."""

    def carry(self, path: Path, *statements: Statement) -> None:
        """Record that the directives became the key at `path`."""
        for item in statements:
            self._carried.setdefault(item, []).append(path)

    def revoke(self, path: Path) -> list[Statement]:
        """Undo the records for `path` and below. Returns the directives that no longer have another key."""
        lost = []
        for item, paths in self._carried.items():
            paths[:] = [each for each in paths if each[: len(path)] != path]
            if not paths:
                lost.append(item)
        for item in lost:
            del self._carried[item]
        return lost

    def carriers(self, path: Path) -> list[Statement]:
        """Return the directives that became the key at `path`, or else those that became the nearest enclosing key."""
        while path:
            if items := [item for item, paths in self._carried.items() if path in paths]:
                return items
            path = path[:-1]
        return []

    def imply(self, reason: str, *statements: Statement) -> None:
        """Record that lbctl implements this by default, without a key in the fleet."""
        for item in statements:
            self._implied.setdefault(item, reason)

    def omit(self, statement: Statement, reason: str, place: Path = (), part: str = "") -> None:
        """Keep the directive as a comment at `place`. If `part` is given, keep only these words."""
        self._noted.add(statement)
        line = part or statement.text
        shown = redacted(self.secrets.masked(line, statement))
        if shown != line:
            self._report(statement)
        note = Note(statement.position, _line(shown), self.secrets.masked(reason, statement), place)
        if note not in self.notes:
            self.notes.append(note)

    def home(self, statement: Statement, place: Path) -> None:
        """Set the object for the block of a directive. Comments on its content are placed there."""
        self._places.setdefault(statement, place)

    def advise(self, statement: Statement, message: str, hint: str) -> None:
        """Report a setting that harms inference, with lbctl's alternative."""
        message = self.secrets.masked(message, statement)
        place = statement.position if statement.position.file else None
        self.diagnostics.add(Diagnostic("LB985", message, place, hint=hint, severity="warning"))

    def misroute(self, statement: Statement, message: str, hint: str = _WRITE_A_ROUTE) -> None:
        """Report a pool selection that no route expresses, so that the requests are sent elsewhere."""
        message = self.secrets.masked(message, statement)
        finding = Diagnostic("LB989", message, statement.position, hint=hint)
        if finding not in self.misrouted:
            self.misrouted.append(finding)

    def secret(self, statement: Statement, message: str, hint: str) -> None:
        """Report a secret that was not copied."""
        self._reported.update(walk([statement]))
        self.diagnostics.add(Diagnostic("LB984", message, statement.position, hint=hint, severity="warning"))

    def is_reported(self, statement: Statement) -> bool:
        """Whether the secrets of a directive, or of an enclosing block, have been reported."""
        return statement in self._reported

    def report_secrets(self) -> None:
        """Report each secret in the configuration that has not been reported yet."""
        for item in self.secrets:
            self._report(item)

    def _report(self, statement: Statement) -> None:
        """Report the secrets in a directive and its block, unless they have been reported."""
        for item in [each for each in walk([statement]) if each in self.secrets] or [statement]:
            if item in self._reported:
                continue
            parent = self._parents.get(item)
            item = parent if parent is not None and parent.name in {"map", "geo"} else item
            name = " ".join(item.tokens[:2]) if item.name in {"stats", "set"} else item.name
            what = f"`{name}`" if name != "-" and name == self.secrets.masked(name, item) else "this"
            hint = (
                "write it to a file with mode 0600 and, if a key in the fleet file accepts a file, set its path there; "
                "otherwise, omit it"
            )
            self.secret(item, f"{what} contains a secret, which was not copied", hint)

    def settle(self, reasons: Mapping[str, str] | None = None, *, whole_blocks: bool = False) -> None:
        """Keep every unclaimed directive as a comment.

        `reasons` maps each directive's name to the reason. With `whole_blocks`, one comment represents a block and its
        content.
        """
        for item in self._statements:
            parent = self._parents.get(item)
            if self._claimed(item) or (whole_blocks and parent in self._noted and parent not in self._implied):
                if parent in self._noted and not self._claimed(item):
                    self._noted.add(item)
                continue
            if item.is_block and not item.block and whole_blocks:
                self.imply("it is empty", item)
                continue
            if item.is_block and any(self._claimed(child) for child in walk(item.block)):
                self.imply("its directives are converted separately", item)
                continue
            reason = (reasons or {}).get(item.name) or self._inherited_reason(item)
            if reason == WRITTEN:
                self.imply(WRITTEN, item, *walk(item.block))
                continue
            part = content(item) if whole_blocks and item.is_block else ""
            self.omit(item, reason, self._place(item), part)

    def unclaimed(self) -> list[Statement]:
        """Return the directives without a result."""
        return [item for item in self._statements if not self._claimed(item)]

    def parent(self, item: Statement) -> Statement | None:
        """Return a directive's enclosing block, ignoring includes."""
        parent = self._parents.get(item)
        while parent is not None and parent.name == "include":
            parent = self._parents.get(parent)
        return parent

    def omit_secret(self, statement: Statement, reason: str) -> None:
        """Keep a directive that is a secret as a comment without its words, unless it already has a result."""
        if not self._claimed(statement):
            self.omit(statement, reason, self._place(statement), part=REDACTED)

    def _claimed(self, item: Statement) -> bool:
        return item in self._carried or item in self._implied or item in self._noted

    def _inherited_reason(self, item: Statement) -> str:
        parent = self._parents.get(item)
        notes = {note.position: note.reason for note in self.notes} if parent else {}
        while parent is not None:
            if parent in self._noted and parent.position in notes:
                return notes[parent.position]
            parent = self._parents.get(parent)
        return UNKNOWN

    def _place(self, item: Statement) -> Path:
        parent: Statement | None = item
        while parent is not None:
            if parent in self._places:
                return self._places[parent]
            parent = self._parents.get(parent)
        return ()

    def counts(self) -> tuple[int, int, int]:
        """Return the number of directives that were converted, that lbctl implies, and that are only comments."""
        carried = set(self._carried)
        noted = self._noted - carried
        return len(carried), len(set(self._implied) - carried - noted), len(noted)

    def fates(self) -> Iterator[tuple[Statement, str]]:
        """Yield each directive with its result, which is `key`, `lbctl` or `comment`, or empty if it has none."""
        for item in self._statements:
            if item in self._carried:
                yield item, "key"
            elif item in self._noted:
                yield item, "comment"
            else:
                yield item, "lbctl" if item in self._implied else ""


def content(item: Statement) -> str:
    """Return a directive with its block's content, on a single line."""
    if item.name in _INLINE:
        return f"{item.name} {REDACTED}"
    if not item.is_block:
        return " ".join(item.tokens)
    return f"{item.name} {{{', '.join(map(content, item.block))}}}"


def _line(text: str) -> str:
    """Return the text for a comment, which is a single printable line."""
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
