"""One run: every rule on one fleet, what its proxies cannot say, less what its comments silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.compile.sources import SourceMap
from lbctl.lint.comments import FILES, comments, left_of_broken, said, unused
from lbctl.lint.crowds import crowds
from lbctl.lint.ignores import Ignore, split
from lbctl.lint.proxies import folded, losses, merged, summary
from lbctl.lint.rule import Edit, Found, Rule
from lbctl.lint.rules import rules
from lbctl.lint.subject import Load, Subject
from lbctl.model.fleet import understand
from lbctl.model.load import Text
from lbctl.model.node import descend
from lbctl.targets.load import complete


@dataclass(frozen=True, slots=True)
class Mend:
    """A finding's certain mend, by its path in the YAML. `at`: where the value stands, or, unless it is `written`, the
    nearest thing around it."""

    edit: Edit
    at: Position
    written: bool


@dataclass(frozen=True, slots=True)
class Linted:
    """`findings`: each once for its code and place; `lines`: what people read, where what proxies cannot say stands
    once, and `summary`: how much each kind of them cannot. `valid`: the fleet has no errors of its own, and the rules
    have judged it. `unused`: what of its comments silences nothing."""

    findings: tuple[Diagnostic, ...]
    lines: tuple[Diagnostic, ...]
    valid: bool
    summary: tuple[str, ...] = ()
    mends: tuple[Mend, ...] = ()
    unused: tuple[Ignore, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Which codes count: those that begin with one of `select` (all, where it is empty) and with none of `ignore`."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __call__(self, code: str) -> bool:
        return (not self.select or code.startswith(self.select)) and not (self.ignore and code.startswith(self.ignore))


@dataclass(slots=True)
class _Judged:
    """What the rules have found, in the order of codes, each place once."""

    findings: dict[tuple[str, Position], Diagnostic] = field(default_factory=dict)
    mends: dict[Diagnostic, Mend] = field(default_factory=dict)


def lint(texts: Sequence[Text], diagnostics: Diagnostics, chosen: Callable[[str], bool], load: Load | None) -> Linted:
    """`texts`: the fleet's files as they were read; `diagnostics`: what was wrong with reading them."""
    source = understand(texts, diagnostics)
    loaded = complete(source, diagnostics) if source else None
    given = comments(texts, chosen)
    if loaded is None:
        found = _in_order([*left_of_broken(diagnostics, given), *given.wrong])
        return Linted(found, found, valid=False)
    own = [item for item in diagnostics if chosen(item.code)]
    active = [item for item in rules().values() if chosen(item.code) and (load is not None or not item.asked)]
    judged = _judge(Subject(loaded, load), active, loaded.compiled.sources)
    lost = [(kind, item) for kind, item in losses(loaded) if chosen(item.code)]
    left, idle = split([*own, *judged.findings.values(), *(item for _, item in lost)], given.usable)
    kept = set(left)
    idle = unused(idle, loaded, chosen, load is not None)
    told = merged((kind, item) for kind, item in lost if item in kept)
    rest = [item for item in own if item in kept and item.code not in FILES]
    rest += [*crowds(item for item in judged.findings.values() if item in kept), *given.wrong, *said(idle)]
    return Linted(
        _in_order([*rest, *(loss.finding for loss in told)]),
        _in_order([*rest, *folded(told)]),
        valid=True,
        summary=tuple(summary(told)),
        mends=tuple(mend for item, mend in judged.mends.items() if item in kept),
        unused=(*idle, *given.hopeless),
    )


def _in_order(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    ordered = Diagnostics()
    ordered.extend(findings)
    return tuple(ordered)


def _judge(subject: Subject, active: Sequence[Rule], sources: SourceMap) -> _Judged:
    judged = _Judged()
    for item in active:
        for found in item.check(subject):
            position = place(sources, found)
            diagnostic = Diagnostic(
                item.code, found.message, position, sources.written(found.path), found.hint, item.severity
            )
            judged.findings.setdefault((item.code, position), diagnostic)
            if found.mend is not None:
                path = sources.written(found.mend.path)
                written = descend(sources.root, path) is not None
                judged.mends.setdefault(diagnostic, Mend(replace(found.mend, path=path), position, written))
    return judged


def place(sources: SourceMap, found: Found) -> Position:
    """Of the value where one is written, else of the key of the nearest thing around it."""
    written = sources.written(found.path)
    node = descend(sources.root, written)
    if node is not None:
        return node.key_position if isinstance(node.value, dict | list) and node.key_line else node.position
    return sources.position(found.path, key=True)
