"""The HAProxy rules and conditions that a comparison runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from lbctl.importer.compare.sources import kinds
from lbctl.importer.compare.sources.haproxy_keywords import ACTIONS, ACTIONS_LEFT_OUT, CALLS
from lbctl.importer.compare.sources.haproxy_values import accepts, expression, first_refused, log_format
from lbctl.importer.compare.sources.nginx_values import is_network

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_PREDEFINED = re.compile(
    r"FALSE|TRUE|HTTP(?:_1\.[01]|_2\.0|_CONTENT|_URL_(?:ABS|SLASH|STAR))?|LOCALHOST|METH_[A-Z]+|REQ_CONTENT|WAIT_END"
)
_CALL = re.compile(r"([a-z0-9-]+)\(([A-Za-z0-9_.,-]{1,256})\)")
_CHOOSING = {
    "use_backend": "=use_backend format", "default_backend": "=default_backend format",
    "use-server": "=use-server format", "force-persist": "=force-persist", "ignore-persist": "=ignore-persist",
    "stick": "=stick|on|match|store-request|store-response|table expression",
}  # fmt: skip
"""Maps lines that select a backend or a server to the kinds of their arguments."""
_METHODS = kinds.words("found bool int ip bin len str sub reg beg end dir dom")
_ADDRESSES = re.compile(r"(?:src|dst|\S*_ip|\S*,ip|\S*,ipmask)(?:\(.*\))?")


def criterion(words: list[str]) -> list[str] | None:
    """Return an ACL criterion's words and patterns, or None if the criterion reads anything other than requests.

    The result is also None if a pattern is a host name, because HAProxy would resolve it at startup.
    """
    fetch = expression(words[0]) if words else None
    if fetch is None:
        return None
    flags, rest = ["-n"], words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "--":
        if rest[0] == "-m" and rest[1:2] and rest[1] in _METHODS:
            flags, rest = [*flags, *rest[:2]], rest[2:]
        elif rest[0] in {"-i", "-n"}:
            flags, rest = [*flags, rest[0]] if rest[0] != "-n" else flags, rest[1:]
        else:
            return None
    patterns = rest[1:] if rest[:1] == ["--"] else rest
    addresses = "ip" in flags or _ADDRESSES.fullmatch(fetch)
    if not accepts("text*", patterns) or (addresses and not all(map(is_network, patterns))):
        return None
    ends_flags = ["--"] if any(each.startswith("-") for each in patterns) else []
    return [fetch, *flags, *ends_flags, *patterns]


def usable_acls(lines: Iterable[list[str]]) -> frozenset[str]:
    """Return the names of a section's ACLs that can be run, because all their criteria read only requests."""
    acls = [words for words in lines if words[0] == "acl" and len(words) > 2]
    unusable = {words[1] for words in acls if criterion(words[2:]) is None or not _NAME.fullmatch(words[1])}
    return frozenset(words[1] for words in acls) - unusable


def condition(words: list[str], known: Collection[str]) -> list[str] | None:
    """Return the words of `if …` or `unless …`, or None if any part of it must not be run."""
    if not words:
        return []
    result, at = words[:1], 1
    while at < len(words):
        word = words[at]
        if word in {"{", "!{"} and "}" in words[at:]:
            end = words.index("}", at)
            inner = criterion(words[at + 1 : end])
            if inner is None:
                return None
            result += [word, *inner, "}"]
            at = end + 1
            continue
        name = word.lstrip("!")
        if word not in {"or", "||", "!"} and name not in known and not _PREDEFINED.fullmatch(name):
            return None
        result.append(word)
        at += 1
    return result if len(result) > 1 and words[0] in {"if", "unless"} else None


def parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Split a rule's words into the words before its condition and the condition."""
    at = next((index for index, word in enumerate(words) if word in {"if", "unless"}), len(words))
    return words[:at], words[at:]


def start(words: list[str]) -> int:
    """Return the index of the action among a rule's words, which start with the keyword."""
    return 2 if words[0].startswith("tcp") and words[1:2] and words[1] in {"connection", "content", "session"} else 1


def left_out(words: list[str]) -> str:
    """Return the subject of a rule that is omitted, or "" if responses might differ without the rule."""
    found = words[start(words) :]
    if found[:1] == ["use-service"] and found[1:2] != ["prometheus-exporter"]:
        return ""
    return ACTIONS_LEFT_OUT.get(found[0], "") if found else ""


def action(words: list[str]) -> list[str] | None:
    """Return an action's words, or None if it must not be run."""
    if not words:
        return None
    if match := _CALL.fullmatch(words[0]):
        wanted = CALLS.get(match[1])
        return [words[0], *plain(words[1:])] if wanted is not None and accepts(wanted, words[1:]) else None
    if words[0] not in ACTIONS:
        return None
    wanted, options = ACTIONS[words[0]]
    count = len(wanted.split())
    if not accepts(wanted, words[1 : 1 + count]) or not with_options(words[1 + count :], options):
        return None
    return [words[0], *plain(words[1:])]


def refused(words: list[str], known: Collection[str]) -> str:
    """Return the word that prevents a line from being run, or "" if no single word does."""
    rule, when = parted(words)
    if words[0] in _CHOOSING:
        return first_refused(_CHOOSING[words[0]], rule) or _refused_condition(when, known)
    rest = rule if words[0] == "redirect" else rule[start(words) :]
    return _refused_action(rest) or _refused_condition(when, known)


def _refused_action(words: list[str]) -> str:
    name, match = "".join(words[:1]), _CALL.fullmatch("".join(words[:1]))
    if match is not None and match[1] in CALLS:
        return first_refused(CALLS[match[1]], words[1:])
    if name not in ACTIONS:
        return name
    wanted, options = ACTIONS[name]
    count = 1 + len(wanted.split())
    return first_refused(wanted, words[1:count]) or refused_option(words[count:], options)


def refused_option(words: list[str], options: Mapping[str, str]) -> str:
    """Return the first word that is not a valid option or argument according to the table, or "" if all are valid."""
    while words:
        wanted = options.get(words[0])
        if wanted is None:
            return words[0]
        count = 1 + len(wanted.split())
        if word := first_refused(wanted, words[1:count]):
            return word
        words = words[count:]
    return ""


def _refused_condition(words: list[str], known: Collection[str]) -> str:
    at = 1
    while at < len(words):
        word = words[at]
        if word in {"{", "!{"} and "}" in words[at:]:
            end = words.index("}", at)
            if word := _refused_criterion(words[at + 1 : end]):
                return word
            at = end
        elif condition(["if", word], known) is None and word not in {"or", "||", "!"}:
            return word.lstrip("!")
        at += 1
    return ""


def _refused_criterion(words: list[str]) -> str:
    """Return the first word that makes a criterion read anything other than requests, or "" if none does."""
    if criterion(words) is not None:
        return ""
    return next((word for at, word in enumerate(words) if criterion(words[: at + 1]) is None and word != "-m"), "")


def with_options(words: list[str], options: Mapping[str, str]) -> bool:
    """Return whether the words are options in the table, each followed by arguments of the right kinds."""
    while words:
        wanted = options.get(words[0])
        if wanted is None:
            return False
        count = len(wanted.split())
        if not accepts(wanted, words[1 : 1 + count]):
            return False
        words = words[1 + count :]
    return True


def plain(words: list[str]) -> Iterator[str]:
    """Yield the words, with environment variables in expressions replaced by placeholders."""
    for word in words:
        yield (log_format(word) or word) if "%[" in word else (expression(word) or word) if "env(" in word else word
