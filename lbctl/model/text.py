"""The bytes of one file as text that is fit to be parsed, and the list of what is wrong with that file.

A character that nobody sees (a control, a change of direction) can make a reviewed file mean something else, and a
private key in a repository is lost; both are refused wherever they stand, comments too. What is wrong is shown by its
place, never by repeating a key.
"""

from __future__ import annotations

import re
from itertools import islice

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Position

MOST_BYTES = 4 * 1024 * 1024
KEY_HINT = "name a file that holds it, and treat this key as known to others from now on"
FORBIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
PRIVATE_KEY = re.compile(r"-----BEGIN[A-Z0-9 ]*\sPRIVATE\s+KEY")
_FORBIDDEN_RAW = re.compile(FORBIDDEN.pattern.replace("\x0b-\x1f", "\x0b\x0c\x0e-\x1f"))
"""The same but for the carriage return, which may end a line."""
_TAG_DIRECTIVE = re.compile(r"(?:^|[\r\n])%TAG")
_NOT_UTF8 = "a fleet is YAML, saved as UTF-8"
_MOST_FINDINGS = 100
_MOST_CHARACTERS = 20


class UnreadableError(Exception):
    """This text cannot be read any further; why was reported."""


class Findings:
    """The faults of one text; ends its reading when they are too many to be of use."""

    def __init__(self, file: str, diagnostics: Diagnostics) -> None:
        self.file = file
        self._diagnostics = diagnostics
        self._count = 0

    def add(self, code: str, message: str, line: int, column: int, hint: str = "", path: Path = ()) -> None:
        self._diagnostics.add(Diagnostic(code, message, Position(self.file, line, column), path, hint))
        self._count += 1
        if self._count >= _MOST_FINDINGS:
            raise self.stop("LB005", f"{_MOST_FINDINGS} faults in this file: it is not read any further", line, column)

    def stop(self, code: str, message: str, line: int, column: int, hint: str = "", path: Path = ()) -> UnreadableError:
        """Reports the fault that ends the reading; to be raised."""
        self._diagnostics.add(Diagnostic(code, message, Position(self.file, line, column), path, hint))
        return UnreadableError()


def decoded(data: bytes, findings: Findings) -> str:
    """`data` as UTF-8, without its byte order mark."""
    if len(data) > MOST_BYTES:
        raise findings.stop("LB005", "the file is larger than 4 MiB", 0, 0, "split the fleet into several files")
    if (nul := data.find(b"\0")) >= 0:
        raise findings.stop("LB003", "this is not text", *_place(data[:nul].decode(errors="replace")), _NOT_UTF8)
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        place = _place(data[: error.start].decode().removeprefix("\ufeff"))
        message = f"the byte 0x{data[error.start]:02X} is not UTF-8"
        if data.decode(errors="replace").count("\ufffd") > max(8, len(data) // 10):
            message = "this is not text"
        raise findings.stop("LB003", message, *place, _NOT_UTF8) from None


def screened(text: str, findings: Findings) -> str:
    """The text with a stand-in for each character that may not be in it, wherever it stands, comments too."""
    if directive := _TAG_DIRECTIVE.search(text):
        place = _place(text[: directive.end() - len("%TAG")])
        raise findings.stop("LB007", "tags are not supported", *place, "remove the %TAG line")
    for key in PRIVATE_KEY.finditer(text):
        findings.add("LB501", "a private key stands in this file", *_place(text[: key.start()]), KEY_HINT)
    for found in islice(_FORBIDDEN_RAW.finditer(text), _MOST_CHARACTERS):
        findings.add("LB012", forbidden(found[0]), *_place(text[: found.start()]), "remove it")
    return _FORBIDDEN_RAW.sub("\ufffd", text)


def forbidden(character: str) -> str:
    """The message about a character that may not stand in a fleet."""
    import unicodedata

    name = unicodedata.name(character, "a control character").lower()
    return f"the character U+{ord(character):04X} ({name}) may not be here"


def _place(before: str) -> tuple[int, int]:
    """Line and column, from 1, of what follows `before`."""
    line = before.count("\n") + before.count("\r") - before.count("\r\n")
    return line + 1, len(before) - max(before.rfind("\n"), before.rfind("\r"))
