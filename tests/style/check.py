"""Compare the texts of the repository with the rules, and with the findings that are known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from tests.style import rules
from tests.style.texts import Text, texts

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("baseline.txt")
_DIRECTORIES = ("lbctl", "tests", "docs", "templates", "deploy", "contrib", "examples")
_SUFFIXES = frozenset({".py", ".md", ".js", ".html", ".yaml", ".yml", ".j2", ".lua"})
_SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')\]*_”]*\s+|\s[·→–]\s")
_CONTEXT = 3
"""Words before and after a match that its fingerprint contains."""
_CODE_SPAN = re.compile(r"`[`\s]*`")
MAX_NAMES_SHARE = 0.7
"""A text with more names, numbers and signs than this share of its plain words is code."""
_PLAIN = re.compile(r"[a-z][a-z’'-]*", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """A place where a rule applies."""

    path: str
    line: int
    rule: rules.Rule
    found: str
    fingerprint: str
    """A hash of the rule, the match and the words around it, without names and code. It does not change if the file
    moves, if a paragraph is wrapped again, or if a name in the sentence changes."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule.name}: “{self.found}”: {self.rule.hint}"


def files(names: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the files that are checked; with `names`, relative to the repository, those of them alone."""
    if names := list(names):
        candidates = [ROOT / name for name in names]
    else:
        candidates = [*ROOT.glob("*.md"), *(path for name in _DIRECTORIES for path in (ROOT / name).rglob("*.*"))]
    yield from (path for path in sorted(candidates) if _is_checked(path.relative_to(ROOT)) and path.is_file())


def _is_checked(path: PurePath) -> bool:
    is_skipped = any(path.is_relative_to(skipped) for skipped in rules.SKIPPED)
    return path.suffix in _SUFFIXES and not path.name.endswith(".min.js") and not is_skipped


def findings(path: PurePath, content: str) -> Iterator[Finding]:
    """Yield what the rules report of this file. `path` is relative to the repository."""
    for text in texts(path, content):
        if text.kind == "constant":
            yield from _name(
                path, text, next((rule for rule in rules.CONSTANTS if rule.pattern.search(text.text)), None)
            )
        elif text.kind == "test":
            yield from _name(path, text, rules.TEST_NAME if len(text.text) > rules.MAX_TEST_NAME else None)
            yield from _prose(path, Text("prose", text.line, text.text.replace("_", " ")))
        else:
            yield from _prose(path, text)
            yield from _long_sentences(path, text)


def _name(path: PurePath, text: Text, rule: rules.Rule | None) -> Iterator[Finding]:
    if rule:
        yield Finding(str(path), text.line, rule, text.text, _hash(rule.name, text.text))


def _prose(path: PurePath, text: Text) -> Iterator[Finding]:
    for rule in rules.PROSE:
        for match in rule.pattern.finditer(text.text):
            if not _is_allowed(rule, text.text, match.start(), match.end()):
                before = _plain_words(text.text[: match.start()])[-_CONTEXT:]
                after = _plain_words(text.text[match.end() :])[:_CONTEXT]
                found = " ".join(match[0].split())
                line = text.line_of(match.start(), match.end())
                yield Finding(str(path), line, rule, found[:60], _hash(rule.name, *before, found, *after))


def _is_allowed(rule: rules.Rule, text: str, start: int, end: int) -> bool:
    return any(
        match.start() < end and start < match.end()
        for allowed in rules.ALLOWED
        if allowed.rule == rule.name
        for match in allowed.phrase.finditer(text)
    )


def _long_sentences(path: PurePath, text: Text) -> Iterator[Finding]:
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text.text)), len(text.text)]:
        sentence = text.text[start:end]
        words = [word for word in _CODE_SPAN.sub("`", sentence).split() if re.search(r"[\w`{]", word)]
        plain = _plain_words(sentence)
        names = sum("`" not in word for word in words) - len(plain)
        if len(words) > rules.MAX_WORDS and names < len(plain) * MAX_NAMES_SHARE:
            found = f"{' '.join(words[:4])} …, {len(words)} words"
            at = start + len(sentence) - len(sentence.lstrip())
            line = text.line_of(at, at + len(sentence.split()[0]))
            yield Finding(str(path), line, rules.SENTENCE, found, _hash(rules.LONG_SENTENCE, *plain[: 2 * _CONTEXT]))
        start = end


def _plain_words(text: str) -> list[str]:
    """Return the words without names and code, which may change without a change of the sentence."""
    stripped = (word.strip("\"'()[].,;:!?*…“”") for word in text.split())
    return [word.lower() for word in stripped if _PLAIN.fullmatch(word) and (word[1:].islower() or len(word) == 1)]


def _hash(*words: str) -> str:
    return hashlib.sha256(" ".join(words).lower().encode()).hexdigest()[:10]


def check(names: Iterable[str] = ()) -> list[Finding]:
    """Return all findings in these files, or in all files, those of the baseline included."""
    return [
        finding
        for path in files(names)
        for finding in findings(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]


def baseline() -> frozenset[str]:
    """Return the fingerprints of the findings that are older than the checker."""
    return frozenset(line for line in BASELINE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
