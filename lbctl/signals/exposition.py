"""Picks the wanted lines out of a metrics page, and reads nothing else of it.

A page of a model server has hundreds of lines of which a dozen matter. Only lines that begin with a wanted name are
parsed: by OpenMetrics' grammar where the page says that it is such a page (`# EOF` at its end), else by the looser one
of Prometheus' text format. A line that breaks its grammar, a value that is no finite number ≥ 0 in ASCII, and a series
that stands twice give nothing: what is refused is unknown, never 0. Types, help texts and timestamps are not judged;
the caller bounds the size of a page. No pattern here backtracks over spaces: a page may come from anybody.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

LONGEST_LINE = 64 * 1024
"""Bytes; a longer line is refused unread."""
MOST_LINES = 4096
"""Wanted lines of one page; a page with more gives nothing."""
_NUMBER = rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
NUMBER = re.compile(_NUMBER)
"""A number as metrics pages write it: ASCII, finite in form."""
_PAIR = rb'[A-Za-z_][A-Za-z0-9_]*+="(?:[^"\\\n]|\\.)*+"'
_VALUE = rb"(" + _NUMBER + rb"|[+-]?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))"
_STRICT = re.compile(
    rb"(?:\{(" + _PAIR + rb"(?:," + _PAIR + rb")*+)?\})? " + _VALUE + rb"(?: " + _NUMBER + rb")?"
    rb"(?: # \{(?:" + _PAIR + rb"(?:," + _PAIR + rb")*+)?\} " + _NUMBER + rb"(?: " + _NUMBER + rb")?)?"
)  # fmt: skip
_SPACE = rb"[ \t]*+"
_LOOSE_PAIR = rb"[A-Za-z_][A-Za-z0-9_]*+" + _SPACE + rb"=" + _SPACE + rb'"(?:[^"\\\n]|\\.)*+"' + _SPACE
_COMMA = rb"," + _SPACE
_LOOSE_PAIRS = rb"(?:" + _LOOSE_PAIR + rb"(?:" + _COMMA + _LOOSE_PAIR + rb")*(?:" + _COMMA + rb")?)?"
_LOOSE = re.compile(
    _SPACE + rb"(?:\{" + _SPACE + rb"(" + _LOOSE_PAIRS + rb")\}" + _SPACE + rb"|(?<=[ \t]))" + _VALUE
    + rb"(?:[ \t]++-?[0-9]++)?" + _SPACE + rb"\r?"
)  # fmt: skip
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}
_NOT_LONGER = rb"(?![A-Za-z0-9_:.\-])"
"""With one of these behind it, it is another, longer name."""
_EOF = b"\n# EOF"
_WORTH_KEEPING = 512
"""Bytes of labels; longer ones are read anew each time."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: `labels` as written, `value` finite and ≥ 0."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a line gave nothing; `labels` where they could be read: lines of others are not concerned."""

    reason: str
    labels: Labels | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`samples`: name → its lines; `refused`: name → its lines that gave nothing."""

    samples: Mapping[str, tuple[Sample, ...]]
    refused: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)


class Reader:
    """Reads the lines of some names. Made once for a source, used for every page."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        wanted = rb"|".join(re.escape(name).encode() for name in self.names) or rb"(?!)"
        self._lines = re.compile(rb"\n(" + wanted + rb")" + _NOT_LONGER + rb"([^\n]*+)")

    def read(self, page: bytes) -> Page:
        """The wanted samples of one page, whatever else stands in it."""
        text = b"\n" + page
        lines = self._lines.findall(text)
        if len(lines) > MOST_LINES:
            return Page({}, dict.fromkeys(self.names, (Refusal(f"more than {MOST_LINES:,} lines of these metrics"),)))
        grammar = _STRICT if text.removesuffix(b"\n").endswith(_EOF) else _LOOSE
        found: dict[str, list[Sample]] = {}
        refused: dict[str, list[Refusal]] = {}
        for name, rest in lines:
            read = _read(rest, grammar)
            if isinstance(read, Sample):
                found.setdefault(name.decode(), []).append(read)
            else:
                refused.setdefault(name.decode(), []).append(read)
        for name, samples in found.items():
            if len(samples) > 1:
                _unique(samples, refused.setdefault(name, []))
        return Page(
            {name: tuple(samples) for name, samples in found.items() if samples},
            {name: tuple(lines) for name, lines in refused.items() if lines},
        )


def _unique(samples: list[Sample], refused: list[Refusal]) -> None:
    """Takes out what stands twice: nobody can say which of the two holds."""
    keys = [tuple(sorted(sample.labels.items())) for sample in samples]
    if len(set(keys)) == len(keys):
        return
    twice = {key for key, count in Counter(keys).items() if count > 1}
    refused.extend(Refusal("the same series stands twice", dict(key)) for key in sorted(twice))
    samples[:] = [sample for sample, key in zip(samples, keys, strict=True) if key not in twice]


def _read(rest: bytes, grammar: re.Pattern[bytes]) -> Sample | Refusal:
    """What stands behind the name, or why it is refused."""
    if len(rest) > LONGEST_LINE:
        return Refusal("a line of more than 64 KiB")
    match = grammar.fullmatch(rest)
    if match is None:
        return Refusal("not a line of a metrics page")
    text = match.group(1) or b""
    labels = _kept_labels(text) if len(text) <= _WORTH_KEEPING else _labels(text)
    if labels is None:
        return Refusal("a label stands twice, or is not UTF-8")
    value = float(match.group(2))
    if not math.isfinite(value) or value < 0:
        return Refusal("a value that is no finite number from 0 on", labels)
    return Sample(labels, value)


def _labels(text: bytes) -> Labels | None:
    if not text:
        return {}
    pairs = _LABEL.findall(text)
    try:
        labels = {key.decode(): _unescaped(value.decode()) for key, value in pairs}
    except UnicodeDecodeError:
        return None
    return labels if len(labels) == len(pairs) else None


_kept_labels = lru_cache(maxsize=4096)(_labels)


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match.group(1), match.group(1)), value)
