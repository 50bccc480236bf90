"""Kinds of HAProxy words that a comparison accepts, and their quoting."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.importer.compare.sources import kinds
from lbctl.importer.compare.sources.nginx_values import is_network
from lbctl.importer.haproxy.values import milliseconds

_ENVIRONMENT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_WRITTEN = {"'": "'\"'\"'", "\n": "'\\n'", "\r": "'\\r'", "\t": "'\\t'"}
_BARE = re.compile(r"[A-Za-z0-9_./:%{}()!=,-]+")
_PATTERNS = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "number": r"[0-9]{1,9}",
        "size": r"[0-9]{1,9}[kKmM]?",
        "header": r"[A-Za-z0-9_-]{1,256}",
        "name": r"[A-Za-z0-9_.:-]{1,256}",
        "word": r"[A-Za-z0-9_.+*/(),:-]{1,256}",
    }.items()
}
_CALL = r"[A-Za-z0-9_.+-]+(?:\([^()'\"\\\[\]]*\))?"
_EXPRESSION = re.compile(rf"{_CALL}(?:,{_CALL})*")
_LOG_FORMAT = re.compile(r"%(?:%|(?:\{[^{}%\[\]]*\})?(?:\[(?P<expression>[^\[\]]*)\]|[A-Za-z]+))")
_FETCHES = kinds.words(
    "act_conn always_false always_true avg_queue base base32 base32+src bin body_len bool connslots cook",
    "cook_cnt cookie date date_us dst dst_conn dst_is_local dst_port hdr hdr_cnt hdr_ip hdr_val http_auth",
    "http_auth_group http_auth_pass http_auth_type http_auth_user http_first_req int meth method nbproc nbsrv",
    "path pathq payload payload_lv proc queue query quic_enabled rand req.body req.body_len req.body_param",
    "req.body_size req.cook req.cook_cnt req.cook_val req.fhdr req.fhdr_cnt req.hdr req.hdr_cnt req.hdr_ip",
    "req.hdr_names req.hdr_val req.hdrs req.hdrs_bin req.len req.payload req.payload_lv req.proto_http",
    "req.ssl_alpn req.ssl_hello_type req.ssl_sni req.ssl_ver req.ver req_len req_proto_http req_ssl_hello_type",
    "req_ssl_sni req_ssl_ver req_ver res.body res.body_len res.cook res.cook_cnt res.fhdr res.fhdr_cnt res.hdr",
    "res.hdr_cnt res.hdr_ip res.hdr_names res.hdr_val res.hdrs res.len res.payload res.ver resp_ver scook shdr",
    "shdr_cnt so_id so_name src src_is_local src_port status stopping str table_avl table_cnt thread unique-id",
    "url url32 url32+src url_ip url_param url_port urlp urlp_val uuid var wait_end",
)
"""Fetches that read the request, the response, the connection or HAProxy's own counters."""
_FETCH_PREFIXES = (
    "bc_", "be_", "capture.", "fc_", "fe_", "sc0_", "sc1_", "sc2_", "sc_", "src_", "srv_", "ssl_bc", "ssl_c_", "ssl_f_",
    "ssl_fc", "txn.timer"
)  # fmt: skip
_MATCHES = re.compile(r"_(?:beg|dir|dom|end|len|reg|sub|str)$")
_CONVERTERS = kinds.words(
    "add aes_gcm_dec and b64dec base64 be2dec be2hex bin bool bytes capture-req capture-res concat cpl crc32",
    "crc32c cut_crlf digest div djb2 even field hex hex2i hmac host_only htonl http_date iif in_table int ip",
    "ipmask json json_query jwt_header_query jwt_payload_query language len length lower ltime ltrim meth mod",
    "ms_ltime ms_utime mul neg not ntohl odd or param port_only protobuf regsub reverse rfc7239_field",
    "rfc7239_is_valid rfc7239_n2nn rfc7239_n2np rtrim sdbm secure_memcmp set-var sha1 sha2 str strcmp sub",
    "ub64dec ub64enc ungrpc unset-var upper url_dec url_enc us_ltime us_utime utime word wt6 xor xxh3 xxh32",
    "xxh64",
)
"""Converters that only compute a value and do not read files, run scripts or call services."""
_CONVERTER_PREFIXES = ("table_",)


def value_of(token: str) -> str:
    """Return the word for a token in the file, with environment variables replaced by placeholders."""
    return _ENVIRONMENT.sub("stand-in", token)


def quoted(word: str) -> str:
    """Return a word quoted for HAProxy."""
    if _BARE.fullmatch(word):
        return word
    return "'" + "".join(_WRITTEN.get(character, character) for character in word) + "'"


def line(words: Iterable[str]) -> str:
    """Return an HAProxy line with these words."""
    return " ".join(map(quoted, words))


def expression(text: str) -> str | None:
    """Return the expression with environment variables replaced by placeholders.

    The result is None if the expression does anything other than read request data and compute a value.
    """
    if not _EXPRESSION.fullmatch(text) or kinds.has_control(text):
        return None
    fetch, *converters = re.findall(_CALL, text)
    if fetch.startswith("env("):
        fetch = "str(stand-in)"
    name = fetch.partition("(")[0]
    known = name in _FETCHES or name.startswith(_FETCH_PREFIXES) or _MATCHES.sub("", name) in _FETCHES
    names = [each.partition("(")[0] for each in converters]
    if not known or not all(each in _CONVERTERS or each.startswith(_CONVERTER_PREFIXES) for each in names):
        return None
    return ",".join([fetch, *converters])


def log_format(text: str) -> str | None:
    """Return a string whose expressions have been checked as in `expression`, or None if any is not harmless."""
    parts, at = list[str](), 0
    if kinds.has_control(text):
        return None
    for match in _LOG_FORMAT.finditer(text):
        inner = match["expression"]
        harmless = expression(inner) if inner is not None else ""
        if harmless is None:
            return None
        parts += [
            text[at : match.start()],
            match[0] if inner is None else match[0].replace(f"[{inner}]", f"[{harmless}]"),
        ]
        at = match.end()
    rest = [part for index, part in enumerate(parts) if index % 2 == 0] + [text[at:]]
    return None if any("%" in part for part in rest) else "".join([*parts, text[at:]])


def accepts(specification: str, words: list[str]) -> bool:
    """Return whether the words match the kinds in the specification (see `kinds.accepts`)."""
    return kinds.accepts(specification, words, _is)


def first_refused(specification: str, words: list[str]) -> str:
    """Return the first word that does not match any of the kinds (see `kinds.first_refused`)."""
    return kinds.first_refused([specification], words, _is)


def _is(kind: str, word: str) -> bool:
    if kind in _PATTERNS:
        return _PATTERNS[kind].fullmatch(word) is not None
    if kind == "time":
        return len(word) < 32 and milliseconds(word) is not None
    if kind == "network":
        return is_network(word)
    if kind == "expression":
        return expression(word) is not None
    if kind == "format":
        return log_format(word) is not None
    return not kinds.has_control(word)
