"""Decodes the bytes of one file into text that can be parsed, and collects the faults of that file.

An invisible character, such as a control character or a change of direction, can give a reviewed file a different
meaning, and a private key in a repository is compromised. Invisible characters and private keys are rejected
everywhere, including in comments. Faults are reported with their positions, but a key is never shown.
"""

from __future__ import annotations

import re
from itertools import islice

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Position

MAX_BYTES = 4 * 1024 * 1024
KEY_HINT = "move the key to a file and refer to the file here; replace the key, because it is compromised"
FORBIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
PRIVATE_KEY = re.compile(r"-----BEGIN[A-Z0-9 ]*\sPRIVATE\s+KEY")
_FORBIDDEN_RAW = re.compile(FORBIDDEN.pattern.replace("\x0b-\x1f", "\x0b\x0c\x0e-\x1f"))
"""`FORBIDDEN` without the carriage return, which may end a line."""
_TAG_DIRECTIVE = re.compile(r"(?:^|[\r\n])%TAG")
_NOT_UTF8 = "save the fleet as YAML text in UTF-8"
_MAX_FAULTS = 100
_MAX_FORBIDDEN = 20


class UnreadableTextError(Exception):
    """The text cannot be read any further; the reason has been reported."""


class TextFaults:
    """The faults of one text. Reading stops when there are too many to be useful."""

    def __init__(self, file: str, diagnostics: Diagnostics) -> None:
        self.file = file
        self._diagnostics = diagnostics
        self._count = 0

    def add(self, code: str, message: str, line: int, column: int, hint: str = "", path: Path = ()) -> None:
        """Report a fault. Raises UnreadableTextError if the text has too many faults."""
        self._diagnostics.add(Diagnostic(code, message, Position(self.file, line, column), path, hint))
        self._count += 1
        if self._count >= _MAX_FAULTS:
            raise self.stop(
                "LB005", f"{_MAX_FAULTS} errors in this file; the rest of the file is not read", line, column
            )

    def stop(
        self, code: str, message: str, line: int, column: int, hint: str = "", path: Path = ()
    ) -> UnreadableTextError:
        """Report the fault that ends the reading, and return the error to raise."""
        self._diagnostics.add(Diagnostic(code, message, Position(self.file, line, column), path, hint))
        return UnreadableTextError()


def decode(data: bytes, findings: TextFaults) -> str:
    """Decode UTF-8 and drop the byte order mark. Raises UnreadableTextError."""
    if len(data) > MAX_BYTES:
        raise findings.stop("LB005", "the file is larger than 4 MiB", 0, 0, "split the fleet into several files")
    if (nul := data.find(b"\0")) >= 0:
        raise findings.stop("LB003", "the file is not text", *_place(data[:nul].decode(errors="replace")), _NOT_UTF8)
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        position = _place(data[: error.start].decode().removeprefix("\ufeff"))
        message = f"the byte 0x{data[error.start]:02X} is not valid UTF-8"
        if data.decode(errors="replace").count("\ufffd") > max(8, len(data) // 10):
            message = "the file is not text"
        raise findings.stop("LB003", message, *position, _NOT_UTF8) from None


def screen(text: str, findings: TextFaults) -> str:
    """Replace and report each forbidden character, including in comments. Raises UnreadableTextError for tags."""
    if "%TAG" in text and (directive := _TAG_DIRECTIVE.search(text)):
        position = _place(text[: directive.end() - len("%TAG")])
        raise findings.stop("LB007", "tags are not supported", *position, "remove the %TAG line")
    for key in PRIVATE_KEY.finditer(text):
        findings.add("LB501", "this file contains a private key", *_place(text[: key.start()]), KEY_HINT)
    if not _FORBIDDEN_RAW.search(text):
        return text
    for match in islice(_FORBIDDEN_RAW.finditer(text), _MAX_FORBIDDEN):
        findings.add("LB012", forbidden_message(match[0]), *_place(text[: match.start()]), "remove it")
    return _FORBIDDEN_RAW.sub("\ufffd", text)


def forbidden_message(character: str) -> str:
    """Return the message about a character that is not allowed in a fleet."""
    import unicodedata

    name = unicodedata.name(character, "a control character").lower()
    return f"the character U+{ord(character):04X} ({name}) is not allowed here"


def _place(before: str) -> tuple[int, int]:
    """Return the line and column (from 1) of the position after `before`."""
    line = before.count("\n") + before.count("\r") - before.count("\r\n")
    return line + 1, len(before) - max(before.rfind("\n"), before.rfind("\r"))
