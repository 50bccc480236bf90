"""Extracts the wanted lines from a metrics page, and ignores the rest.

A model server's page has hundreds of lines, of which only about a dozen are relevant. Only lines that begin with a
wanted name are parsed: with the OpenMetrics grammar if the page ends with `# EOF`, otherwise with the looser grammar of
the Prometheus text format. Lines that violate the grammar, values that are not finite, non-negative ASCII numbers, and
duplicate series are rejected: their values are unknown, never 0. Types, help texts and timestamps are ignored; the
caller bounds the size of a page. No pattern here backtracks over spaces, because pages may come from untrusted servers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

MAX_LINE_BYTES = 64 * 1024
"""Maximum length of a line in bytes; longer lines are rejected without parsing."""
MAX_LINES = 4096
"""Maximum number of wanted lines; a page with more lines yields no values."""
MAX_WANTED_BYTES = 1 << 20
"""Maximum size of all wanted lines in bytes; a page with more bytes yields no values."""
_NUMBER = rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
NUMBER = re.compile(_NUMBER)
"""A number in a metrics page: ASCII digits, not `Inf` or `NaN`."""
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
"""A name followed by one of these characters is only the start of a longer name."""
_EOF = b"\n# EOF"
_MAX_CACHED_BYTES = 512
"""Maximum length of cached labels, in bytes."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    labels: Labels
    value: float
    """Finite and ≥ 0."""


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line without a usable value."""

    reason: str
    """Reason why the line has no usable value."""
    labels: Labels | None = None
    """Labels, if they are readable, so that other series are not affected."""
    is_negative: bool = False
    """Whether the value is a negative number."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The relevant lines of a page."""

    samples: Mapping[str, tuple[Sample, ...]]
    """Maps each name to its values."""
    refused: Mapping[str, tuple[RefusedLine, ...]] = field(default_factory=dict)
    """Maps each name to its refused lines."""


class MetricsReader:
    """Reads the lines of given metrics; created once per source and used for every page."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        wanted = rb"|".join(re.escape(name).encode() for name in self.names) or rb"(?!)"
        self._lines = re.compile(rb"\n(" + wanted + rb")" + _NOT_LONGER + rb"([^\n]*+)")

    def read(self, page: bytes) -> MetricsPage:
        """Return the relevant samples on one page, regardless of its other content."""
        text = b"\n" + page
        lines: list[tuple[bytes, bytes]] = []
        size = 0
        for match in self._lines.finditer(text):
            size += match.end() - match.start()
            if len(lines) == MAX_LINES or size > MAX_WANTED_BYTES:
                reason = f"more than {MAX_LINES:,} lines or {MAX_WANTED_BYTES >> 20} MiB of these metrics"
                return MetricsPage({}, dict.fromkeys(self.names, (RefusedLine(reason),)))
            lines.append((match[1], match[2]))
        grammar = _STRICT if text.removesuffix(b"\n").endswith(_EOF) else _LOOSE
        samples_by_name: dict[str, list[Sample]] = {}
        refused: dict[str, list[RefusedLine]] = {}
        for written, rest in lines:
            read = _read(rest, grammar)
            if isinstance(read, Sample):
                samples_by_name.setdefault(written.decode(), []).append(read)
            else:
                refused.setdefault(written.decode(), []).append(read)
        for name, samples in samples_by_name.items():
            if len(samples) > 1:
                _unique(samples, refused.setdefault(name, []))
        return MetricsPage(
            {name: tuple(samples) for name, samples in samples_by_name.items() if samples},
            {name: tuple(items) for name, items in refused.items() if items},
        )


def _unique(samples: list[Sample], refused: list[RefusedLine]) -> None:
    """Remove duplicate series, because it is not known which value is valid."""
    keys = [tuple(sorted(sample.labels.items())) for sample in samples]
    if len(set(keys)) == len(keys):
        return
    duplicates = {key for key, count in Counter(keys).items() if count > 1}
    refused.extend(RefusedLine("the same series appears twice", dict(key)) for key in sorted(duplicates))
    samples[:] = [sample for sample, key in zip(samples, keys, strict=True) if key not in duplicates]


def _read(rest: bytes, grammar: re.Pattern[bytes]) -> Sample | RefusedLine:
    """Parse the rest of a line after the name; return a RefusedLine that states the reason if this fails."""
    if len(rest) > MAX_LINE_BYTES:
        return RefusedLine("a line of more than 64 KiB")
    match = grammar.fullmatch(rest)
    if match is None:
        return RefusedLine("not a valid line of a metrics page")
    text = match.group(1) or b""
    labels = _cached_labels(text) if len(text) <= _MAX_CACHED_BYTES else _labels(text)
    if labels is None:
        return RefusedLine("a label appears twice or is not UTF-8")
    value = float(match.group(2))
    if not math.isfinite(value) or value < 0:
        return RefusedLine("the value is not a finite, non-negative number", labels, is_negative=value < 0)
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


_cached_labels = lru_cache(maxsize=4096)(_labels)


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match.group(1), match.group(1)), value)
