"""Finds the secrets in a configuration, and removes them from strings.

A secret is identified by its position. It follows the name of a key, token or password, is the user in a URL or a query
parameter, or is compared with such a header in an `if` or an ACL. A header value that looks random is a secret,
regardless of the header's name. Values that only look like secrets are also omitted from comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Position
from lbctl.importer.statement import Statement
from lbctl.ir.secrets import looks_like_secret

REDACTED = "(a secret)"
_NAME = (
    r"authorization|(?:token|secret|credential)(?!s?[_-]?(?:name|file|path|type|zone|field|ttl|size)|i[sz]|s(?:[-_.]|_?per|$))"
    r"|passw|passphrase|api[-_]?key|(?<!cache)(?<!public)(?<!hash)[_.-]key$"
)
_SECRET_NAME = re.compile(rf"(?i)(?:{_NAME}|^\$\w*key$)")
_NOT_A_SECRET = re.compile(
    r"(?i)file$|path$|_cache_key$|^\$?http_|ticket-keys|runtime_key$|memcached_key$|_name$|_header$"
)
_USER = re.compile(r"://([^/@\s\"']+)@")
_QUERY = re.compile(
    r"(?i)(?:^|[?&;,\s\"'])(?:[\w.-]*(?:token|secret|passw|api[-_]?key|[_-]key|sig|signature)[\w-]*|key)"
    r"=([^&\s\"';,]+)"
)
_COMPARED = re.compile(
    r"(?i)\$\{?\w*(?:authorization|token|secret|passw|api_?key|_key)\w*\}?\s*(?:!?[=~]\*?)\s*(.+?)\s*\)?$"
)
_FETCH = re.compile(
    r"(?i)(?:(?:req\.)?f?hdr|(?:req\.)?cook|url_param|urlp|http_auth_bearer)\S*\("
    r".*(?:authorization|token|secret|passw|api[-_]?key|[-_]key)|var\(.*(?:authorization|token|secret|passw|key)"
)
_LITERAL = re.compile(r"str\(([^)]+)\)")
_DIGEST = re.compile(r"(?:hmac|jwt_verify|aes_gcm_(?:dec|enc))\(([^)]*)\)")
_SETTING = re.compile(r"(?:expires|domain|path|zone|rate|secure|burst|samesite|size|levels|max_\w+)=")
_VARIABLE = re.compile(r"%\[[^\]]*\]|\$\{[^}]*\}|\$\w+|%[A-Z_]+(?:\([^)]*\))?%")
_SCHEME = re.compile(r"(?i)^(?:bearer|basic|token|key)?[\s,;:/]*")
_RULE = re.compile(r"(?:http|tcp)-(?:request|response|after-response)|use_backend|use-server|redirect|block|stick|acl")
"""HAProxy directives that name ACLs. Such a name is never followed by a secret."""
_NAMES = re.compile(r"^(acl\s+\S+)(.*)|^(.*?\s(?:if|unless)\s)(.*)")
"""Splits a rule into the words before its condition and the condition, or an ACL into its name and its test."""
_PIECES = re.compile(r"""(?s)(?:"[^"]*"|'[^']*'|[^\s"']|["'].*)+|\s+""")
"""Words with their quotes, and the whitespace between them. An unterminated quote extends to the end of the line."""
_FOLLOWED = frozenset({"if", "unless", "len", "-m", "-i", "-f", "{", "}", "!{", "always", "on", "off", "insert", "int"})
_WORDS = frozenset({"", "0", "1", "on", "off", "yes", "no", "true", "false", "none", "default", REDACTED})
"""Words that are never secrets."""
_NO_VALUES = frozenset(
    {"cookie", "capture", "stick", "stick-table", "balance", "hash", "map", "geo", "split_clients", "limit_req_zone",
     "limit_conn_zone", "log_format", "log-format", "sticky", "hash-type", "auth_request_set", "load", "sub_filter",
     "proxy_cookie_flags", "proxy_cookie_domain", "lua_shared_dict", "try_files"}
)  # fmt: skip
"""Directives that name headers and cookies but never contain their values."""
_WHOLE = frozenset({"secure_link_md5", "secure_link_secret", "secure_link_hmac_secret"})
"""Directives whose arguments are all secrets."""
_AFTER = frozenset({"agent-send", "password", "insecure-password", "dynamic-cookie-key"})
"""HAProxy words that precede a secret."""
_VALUES = re.compile(r"value|raw_value|exact|prefix|suffix|contains|regex|(?:exact|prefix|suffix|contains)_match")
_INLINE = re.compile(r"inline_?(?:string|bytes)", re.IGNORECASE)
_AROUND = re.compile(r"(?i)passw|secret|private_?key|token|users|credentials|ticket_?keys|api_?key")
_EITHER_CASE = re.compile(r"\[[A-Z]([a-z])\]")
"""A letter in a case-insensitive expression."""
_MAX_SPREAD = 6
"""Minimum length of secrets that are removed everywhere. Shorter ones could be ordinary words."""
_LOOKS_LIKE_ONE = re.compile(
    r"(?i)(\b(?:bearer|basic)\s+)(?!\$|%|\()[^\s\"']+"
    r"|((?:authorization|x-auth|(?:api|subscription)[_-]?key|token|(?<!\(a )secret|password|passwd)(?! =\d{3}(?:\s|$))"
    r"(?:[\"']\s*,\s*[\"']|[\"')]*(?:\s*[:=~^!]+\s*|\s+)[\"']?))"
    r"(?!zone=|rate=|\$|%|if\b|unless\b|-[a-z]\b|len\b|\()[^\s\"',}{]+"
    r"|\b(?:sk|pk|hf|ghp|xox[bp])\\?[-_][A-Za-z0-9_\\-]{6,}"
)
_PASSWORD = re.compile(r"(?i)\b((?:insecure-)?password\s+)(?!\()\S+")
_CREDENTIAL = re.compile(
    r"(?i)authorization|token|secret|api[-_]?key|password|credential|(?<!cache)(?<!public)(?<!hash)[-_]key\b"
)
_KEY = re.compile(r"\b(?:(?:sk|pk)[-_](?=[\w-]*\d)[\w-]{12,}|(?:hf|ghp)_\w{16,}|xox[bp]-[\w-]{8,})")
"""Key for a service, recognised by its prefix, even in a path or a name. `hf-models`, for example, is an ordinary
word."""


_RANDOM = re.compile(
    r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])(?=(?:[A-Za-z]*\d){4})(?=(?:\d*[A-Za-z]){4})[A-Za-z0-9]{16,}"
    r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
)
"""Combinations of letters and digits that do not occur in words and versions, and UUIDs."""


class SecretDirectives:
    """A configuration's secrets, by directive."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._of: dict[Statement, frozenset[str]] = {}
        for item in statements:
            self._read(item, ())
        spread = {secret for each in self._of.values() for secret in each if len(secret) >= _MAX_SPREAD}
        self._spread = sorted(spread, key=len, reverse=True)

    def __iter__(self) -> Iterator[Statement]:
        """Yield the directives that contain a secret themselves."""
        return iter(self._of)

    def __contains__(self, item: Statement) -> bool:
        """Return whether a directive itself contains a secret."""
        return item in self._of

    def holds(self, item: Statement) -> bool:
        """Return whether a directive or its block contains a secret."""
        return item in self._of or any(map(self.holds, item.block))

    def inside(self, text: str) -> bool:
        """Return whether a string contains a secret from the configuration."""
        return any(secret in text for secret in self._spread)

    def compared(self, header: str, value: str) -> bool:
        """Return whether the value that a match compares with a header is a secret."""
        return self.written(value) or is_random(value) or (is_secret_name(header) and value.lower() not in _WORDS)

    def written(self, text: str) -> bool:
        """Return whether a string or expression contains a secret of the configuration or a key with a known prefix."""
        plain = _EITHER_CASE.sub(r"\1", text.replace("\\", ""))
        return self.inside(text) or self.inside(plain) or _KEY.search(plain) is not None or looks_like_secret(plain)

    def named(self, name: str) -> bool:
        """Return whether a name is derived from a secret."""
        plain = (_plain(secret) for secret in self._spread)
        return _KEY.search(name) is not None or any(each in _plain(name) for each in plain if len(each) >= _MAX_SPREAD)

    def hidden(self, word: str, position: Position) -> str:
        """Return the directive's word at a position, or `REDACTED` if it is, or looks like, a secret."""
        own = {secret for item, secrets in self._of.items() if item.position == position for secret in secrets}
        is_one = any(secret in word for secret in own) or self.written(word) or holds_secret(word) or is_random(word)
        return REDACTED if is_one else word

    def masked(self, text: str, item: Statement) -> str:
        """Return a text about a directive with the configuration's secrets removed."""
        for secret in sorted(self._inside(item), key=len, reverse=True):
            # A short secret could be part of other words, so it is removed only as a whole word.
            start, end = (r"\b" if re.match(r"\w", each) else "" for each in (secret, secret[::-1]))
            text = re.sub(f"{start}{re.escape(secret)}{end}", REDACTED, text)
        for secret in self._spread:
            text = text.replace(secret, REDACTED)
        return text

    def _inside(self, item: Statement) -> set[str]:
        return set(self._of.get(item, ())).union(*map(self._inside, item.block))

    def _read(self, item: Statement, around: tuple[str, ...]) -> None:
        self._put(item, _in_words(item))
        if _INLINE.fullmatch(item.name) and any(map(_AROUND.search, around)):
            self._put(item, item.args)
        fields = {_snake(child.name): child for child in item.block if not child.is_block}
        names = [fields[name].args[0] for name in ("key", "name") if name in fields and fields[name].args]
        if any(map(is_secret_name, names)):
            self._put_values(item)
        if item.name == "credentials" or "credentials" in around[-1:]:
            self._put(fields.get("key"), fields["key"].args if "key" in fields else ())
        if item.name in {"map", "geo"}:
            self._read_table(item)
        for child in item.block:
            self._read(child, (*around[-3:], item.name))

    def _put_values(self, item: Statement) -> None:
        """Record the values in a block for the header, cookie or parameter that it names."""
        for child in item.block:
            if child.is_block:
                self._put_values(child)
            elif _VALUES.fullmatch(_snake(child.name)):
                self._put(child, filter(is_literal, child.args))

    def _read_table(self, item: Statement) -> None:
        """Record the keys in a `map` that converts from keys, and the values in a `map` that converts to keys."""
        compared = bool(item.args) and is_credential(item.args[0])
        given = len(item.args) > 1 and is_secret_name(item.args[1])
        for child in item.block:
            if compared and child.name not in {"default", "hostnames", "volatile", "include"}:
                self._put(child, [child.name])
            if given:
                self._put(child, filter(is_literal, child.args))

    def _put(self, item: Statement | None, values: Iterable[str]) -> None:
        kept = frozenset(value for value in values if value.lower() not in _WORDS)
        if item is not None and kept:
            self._of[item] = self._of.get(item, frozenset()) | kept


def is_secret_name(name: str) -> bool:
    """Return whether the text after a name is a secret."""
    return _SECRET_NAME.search(name) is not None and _NOT_A_SECRET.search(name) is None


def is_random(value: str) -> bool:
    """Return whether a header value contains text that is not an ordinary word, and therefore counts as a secret."""
    return _RANDOM.search(value) is not None


def is_literal(value: str) -> bool:
    """Return whether a value contains more than variables and an authentication scheme."""
    rest = _SCHEME.sub("", _VARIABLE.sub("", value))
    return bool(re.search(r"\w", rest)) or _LITERAL.search(value) is not None


def _in_words(item: Statement) -> Iterator[str]:
    """Yield the secrets among a directive's words."""
    if item.name in _WHOLE:
        yield from filter(is_literal, item.args)
    for word in item.tokens:
        yield from (match[1] for match in _USER.finditer(word))
        yield from (match[1] for match in _QUERY.finditer(word) if is_literal(match[1]) and not _path(match[1]))
        yield from (part for match in _DIGEST.finditer(word) for part in match[1].split(",")[1:] if is_literal(part))
    if item.tokens[:2] == ("stats", "auth"):
        yield from item.args[1:]
    if item.name == "if" and (match := _COMPARED.search(" ".join(item.args))) is not None:
        yield match[1].strip("\"'")
    yield from _secret_values(item)
    yield from _compared(item.tokens)


def _secret_values(item: Statement) -> Iterator[str]:
    """Yield the text after a secret's name."""
    if item.name in _NO_VALUES or (item.name in {"http-request", "http-response"} and item.args[:1] == ("del-header",)):
        return
    for index, word, value in _word_pairs(item):
        if word in _AFTER:
            yield value
        elif "set-var" in word and is_secret_name(word.rstrip(")").rpartition(".")[2]):
            yield from _LITERAL.findall(value)
        elif _names_secret(word, item.name) and _is_value(value) and not (index == 0 and _path(value)):
            yield value


def _word_pairs(item: Statement) -> Iterator[tuple[int, str, str]]:
    """Yield the index of each word, the word, and the next word, excluding the names of ACLs."""
    is_rule, in_condition, in_braces = _RULE.fullmatch(item.name) is not None, False, False
    for index, (word, value) in enumerate(zip(item.tokens, item.tokens[1:], strict=False)):
        in_condition = in_condition or (is_rule and word in {"if", "unless"})
        in_braces = word in {"{", "!{"} or (in_braces and word != "}")
        is_name = (in_condition and not in_braces) or (item.name == "acl" and index == 1)
        if not is_name:
            yield index, word, value


def _is_value(word: str) -> bool:
    return word not in _FOLLOWED and _SETTING.match(word) is None and is_literal(word)


def _names_secret(word: str, directive: str) -> bool:
    return is_secret_name(word) and (not word.startswith("$") or directive == "set") and " " not in word


def _compared(tokens: tuple[str, ...]) -> Iterator[str]:
    """Yield the values that an HAProxy ACL compares with a header, cookie or parameter."""
    comparing = False
    rest = iter(tokens[1:])
    for word in rest:
        if _FETCH.match(word):
            comparing = True
        elif word in {"-m", "-f", "-M"}:
            next(rest, None)
        elif word in {"{", "!{", "}", "if", "unless", "||", "or"}:
            comparing = False
        elif comparing and not word.startswith("-") and tokens[0] not in _NO_VALUES and is_literal(word):
            yield word


def _path(value: str) -> bool:
    """Return whether a value is the path of a file."""
    return value.startswith(("/", "./")) or value.endswith((".pem", ".key", ".crt"))


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def is_credential(name: str) -> bool:
    """Return whether a variable with that name contains a key or a password."""
    return _CREDENTIAL.search(name) is not None


def holds_secret(text: str) -> bool:
    """Return whether a string appears to contain a secret."""
    return redacted(text) != text


def redacted(text: str) -> str:
    """Return a string without parts that look like secrets."""
    names = _NAMES.match(text) if _RULE.fullmatch(text.partition(" ")[0]) else None
    if names is None:
        return _redacted(text)
    if names[1]:
        return names[1] + _redacted(names[2])
    return _redacted(names[3]) + "".join(_tests_redacted(names[4]))


def _tests_redacted(condition: str) -> Iterator[str]:
    """Yield the parts of a condition. Tests in braces are redacted and end at the word `}`."""
    test = ""
    for piece in _PIECES.findall(condition):
        word = piece.strip("\"'")
        if not test and word not in {"{", "!{"}:
            yield piece
            continue
        test += piece
        if word == "}":
            yield _redacted(test)
            test = ""
    yield _redacted(test)


def _redacted(text: str) -> str:
    text = _PASSWORD.sub(rf"\1{REDACTED}", text)
    return _LOOKS_LIKE_ONE.sub(lambda match: f"{match[1] or match[2] or ''}{REDACTED}", text)
