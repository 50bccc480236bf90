"""The patterns that the style checker reports, what to write in their place, and the exceptions."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_WORDS = 35
"""A longer sentence is reported; aim at 25."""
MAX_TEST_NAME = 60
LONG_SENTENCE = "long-sentence"
LONG_TEST_NAME = "long-test-name"
CONSTANT = "constant"


@dataclass(frozen=True)
class Rule:
    """A pattern for prose. It is matched in any case, and `code` in backticks is left out."""

    name: str
    pattern: re.Pattern[str]
    hint: str


def _rule(name: str, pattern: str, hint: str) -> Rule:
    return Rule(name, _words(pattern), hint)


def _words(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which a blank is also a line break."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


PROSE = (
    _rule("is-no", r"\b(?:is|are|was|were) no\b", 'write "is not a" or "are not"'),
    _rule("who", r"\bwho(?:ever)?\b", "name the role or the thing: the leader, the client, the process that …"),
    _rule("mended", r"\bmend(?:s|ed)?\b", "fixed"),
    _rule("told", r"\btold\b", "software reports, notifies, informs"),
    _rule("says", r"\b(?:says|said|tells|speaks)\b", "software reports, logs, returns, states; it uses a protocol"),
    _rule("stands", r"\bstands?\b", "is, is set, is listed, contains"),
    _rule("beside", r"\bbeside\b", "next to, in addition to, together with"),
    _rule("all-the-same", r"\ball the same\b", "still, nevertheless, or nothing"),
    _rule("of-its-own", r"\bof (?:its|their) own\b", 'write "its own" or "separate" before the noun'),
    _rule("so-many", r"\bso (?:many|much|long)\b", "state the number or the duration: up to 5, for 30 s, as long as"),
    _rule("back", r"\b(?:comes?|came|coming|has|have|had) back\b", "restore, restart, reconnect, return"),
    _rule("nobody", r"\b(?:no|every|any|some)body\b", "name the role: no client, every operator"),
    _rule("last-valid", r"\bwhat (?:was|is) good\b", "last valid configuration"),
    _rule("that-of", r"\b(?:that|those) of\b", "repeat the noun: the listener's certificate"),
    _rule("one-that", r"\bone that\b", "repeat the noun: a file that …"),
    _rule("such-that", r"\bsuch that\b", "so that, or a new sentence"),
    _rule("headless", r"(?:^|(?<=[.:]\s))What\b(?![^.]*\?)", "begin with a noun or a verb: Name of …, Return …"),
    _rule("fragment", r"^Of\b[^,]*$", "begin with a noun: Age of …, Sum of …"),
)  # fmt: skip
SENTENCE = Rule(LONG_SENTENCE, re.compile(""), f"split it: one idea in a sentence, at most {MAX_WORDS} words")
TEST_NAME = Rule(LONG_TEST_NAME, re.compile(""), f"at most {MAX_TEST_NAME} characters")
CONSTANTS = (
    Rule(CONSTANT, re.compile(r"(?:^|_)(?:MOST|LARGEST|LONGEST|HIGHEST)(?:_|$)"), "MAX_…, …_TIMEOUT, …_BYTES"),
    Rule(CONSTANT, re.compile(r"(?:^|_)(?:SMALLEST|SHORTEST|LOWEST)(?:_|$)"), "MIN_…, …_TIMEOUT, …_BYTES"),
    Rule(CONSTANT, re.compile(r"(?:^|_)(?:PACE|ROOM|PATIENCE)$"), "…_INTERVAL, …_BYTES, …_TIMEOUT"),
)  # fmt: skip

PEOPLE = "user operator client person people developer reader contributor author administrator someone anyone those"


@dataclass(frozen=True)
class Allowed:
    """A phrase that a rule does not report."""

    rule: str
    phrase: re.Pattern[str]
    reason: str


def _allowed(rule: str, phrase: str, reason: str) -> Allowed:
    return Allowed(rule, _words(phrase), reason)


ALLOWED = (
    _allowed("is-no", r"\bthere (?:is|are|was|were) no\b", "standard English: there is no pool of this name"),
    _allowed("is-no", r"\b(?:is|are|was|were) no (?:longer|more|less|later|fewer)\b", "an adverb, not a noun"),
    _allowed("who", rf"\b(?:{'|'.join(PEOPLE.split())})s?,? who\b", "people have a will, so who is right"),
    _allowed("stands", r"\bstands? (?:in front of|in for|alone)\b|\bstand-", "the term for this place or thing"),
    _allowed("one-that", r"\bthe one that\b", "refers to a noun of the sentence before"),
)
"""Phrases that are right although a pattern finds them."""

SKIPPED = {
    "docs/develop/benchmarks.md": "generated from tests/benchmarks/peers",
    "docs/reference/http-api.md": "generated from lbctl/serve/api",
    "docs/reference/capabilities.md": "generated from lbctl/targets",
    "docs/reference/cli.md": "generated from lbctl/cli",
    "docs/reference/gpus.md": "generated from lbctl/compile",
    "docs/reference/fleet": "generated from lbctl/model",
    "docs/reference/fleet-file.md": "generated from lbctl/model",
    "docs/reference/codes.md": "generated from lbctl/lint",
    "docs/share": "generated from lbctl/cli",
    "docs/reference/signals.md": "generated from lbctl/signals",
    "docs/reference/simulate.md": "generated from lbctl/simulate",
    "tests/fixtures": "files of other programs",
    "tests/golden": "expected outputs",
    "tests/security/hostile": "files of attackers",
    "tests/style": "quotes what it reports",
}
"""Files and directories that are not read; what is generated is read in its source."""
