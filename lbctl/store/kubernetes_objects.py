"""How the state is distributed across ConfigMaps, and their format.

A ConfigMap is limited to 1 MiB, and every watcher receives the entire object after each change. The state is therefore
split into several ConfigMaps, each containing values that change together. A value is stored with its version. The
version is the resourceVersion that the write replaced, and therefore never repeats. Long values are compressed.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lbctl.store.interface import StoreEntry, StoreError
from lbctl.store.kubernetes_client import CONFIG_MAPS, LEASES, Object
from lbctl.store.kubernetes_lease import EPOCH

MAX_BYTES = 1 << 20
"""Maximum total size of the values in a ConfigMap."""
MAX_DECOMPRESSED_BYTES = 32 << 20
"""Maximum total size of the compressed values in a ConfigMap after decompression."""
_OTHERS = "decisions"
_BY_PREFIX = {
    "fleet/": "fleet",
    "history/": "history",
    "audit/": "audit",
    "loop_output": "weights",
    "leader/": "leader",
    "damaged/": "damaged",
}
"""Maps a key prefix to the part that contains these keys."""
PARTS = (_OTHERS, *_BY_PREFIX.values())
"""Parts of the state; each is the ConfigMap `NAME.PART`."""
MEMBERS = "members"
"""ConfigMap with the announcements of members, which every member writes."""
_DROPPED = ("audit/", "history/files/", "damaged/")
"""Key prefixes whose oldest entries are deleted if their ConfigMap becomes too large."""
_SHORT = 1024
"""Maximum size, in bytes, of a value that is stored as readable text."""
_MAX_NAME_LENGTH = 253
_SAFE = re.compile(r"[A-Za-z0-9-]")
_EPOCH = re.compile(r"[0-9]{1,20}")
_NAME = re.compile(r"[A-Za-z0-9.-]|_[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class ConfigMapPart:
    """A ConfigMap as it was read."""

    version: str
    """resourceVersion of the ConfigMap."""
    epoch: int
    """Epoch of the leader that may change it."""
    entries: Mapping[str, StoreEntry]
    """Maps a key to its entry."""
    sizes: Mapping[str, int]
    """Maps a key to the size of its value in bytes."""

    @property
    def size(self) -> int:
        """Total size of the values in bytes."""
        return sum(self.sizes.values())


def object_name(name: str, part: str) -> str:
    """Return the name of a part's ConfigMap."""
    return f"{name}.{part}"


def rights(namespace: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield collection, verb and name of each permission that a member needs; an empty name means any."""
    leases, config_maps = LEASES.format(namespace), CONFIG_MAPS.format(namespace)
    yield leases, "create", ""
    yield from ((leases, verb, name) for verb in ("get", "patch"))
    yield config_maps, "create", ""
    for part in (*PARTS, MEMBERS):
        yield from ((config_maps, verb, object_name(name, part)) for verb in ("get", "patch", "watch"))


def part_of(key: str) -> str:
    """Return the part that contains a key."""
    return next((part for prefix, part in _BY_PREFIX.items() if key.startswith(prefix)), _OTHERS)


def parts_with(prefix: str) -> tuple[str, ...]:
    """Return the parts that may have keys with the prefix."""
    if (part := part_of(prefix)) != _OTHERS:
        return (part,)
    return (_OTHERS, *(part for begin, part in _BY_PREFIX.items() if begin.startswith(prefix)))


def parsed(value: Object) -> ConfigMapPart | None:
    """Parse a ConfigMap; None if it has content that lbctl has not written."""
    metadata = value["metadata"]
    epoch = (metadata.get("annotations") or {}).get(EPOCH)
    written = {**(value.get("data") or {}), **(value.get("binaryData") or {})}
    if (epoch is None and written) or not _EPOCH.fullmatch(epoch or "0"):
        return None
    try:
        raws = dict(_raw(value))
    except binascii.Error:
        return None
    entries, left = {}, MAX_DECOMPRESSED_BYTES
    for name, (raw, long) in raws.items():
        entry = _entry(name, raw, left if long else None)
        entries[entry.key] = entry
        left -= len(entry.value) if long else 0
    sizes = {key_of(name): len(raw) for name, (raw, _) in raws.items()}
    return ConfigMapPart(str(metadata["resourceVersion"]), int(epoch or "0"), entries, sizes)


def _raw(value: Object) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    """Yield each value's name and bytes, and whether the bytes are compressed."""
    for name, text in (value.get("data") or {}).items():
        yield name, (text.encode("utf-8", "surrogatepass"), False)
    for name, text in (value.get("binaryData") or {}).items():
        yield name, (base64.b64decode(text), True)


def _entry(name: str, raw: bytes, most: int | None) -> StoreEntry:
    """Parse a value. A foreign value is kept unchanged and gets a version derived from its content.

    `most`: maximum size of a compressed value in bytes; None if the value is not compressed.
    """
    version, space, rest = raw.partition(b" ")
    try:
        if space and version.isdigit():
            return StoreEntry(
                key_of(name),
                (rest if most is None else _decompressed(rest, most)).decode("utf-8", "surrogatepass"),
                version.decode(),
            )
    except (zlib.error, UnicodeDecodeError):
        pass
    return StoreEntry(key_of(name), raw.decode("utf-8", "replace"), f"unknown-{binascii.crc32(raw):08x}")


def _decompressed(data: bytes, most: int) -> bytes:
    """Return the decompressed value. Raises zlib.error for data that `stored` has not written."""
    inflater = zlib.decompressobj()
    value = inflater.decompress(data, max(1, most))
    if not inflater.eof:
        raise zlib.error("too large or truncated")
    return value


def stored(value: str, version: str) -> tuple[str, str, int]:
    """Return a value's ConfigMap field, its content there, and its size in bytes."""
    text = f"{version} {value}"
    if len(value) <= _SHORT and text.isprintable() and len(text.encode()) <= 2 * _SHORT:
        return "data", text, len(text.encode())
    raw = version.encode() + b" " + zlib.compress(value.encode("utf-8", "surrogatepass"))
    return "binaryData", base64.b64encode(raw).decode(), len(raw)


def dropped(part: ConfigMapPart, key: str, size: int) -> tuple[str, ...]:
    """Return the keys to delete so that a value of `size` bytes fits. Raises StoreError.

    The oldest entries of expendable kinds are deleted first.
    """
    free = MAX_BYTES - size - part.size + part.sizes.get(key, 0)
    names = [name for name in part.entries if name.startswith(_DROPPED) and name != key]
    names.sort(key=lambda name: (len(part.entries[name].version), part.entries[name].version))
    gone = []
    while free < 0 and names:
        gone.append(names.pop(0))
        free += part.sizes[gone[-1]]
    if free < 0:
        raise StoreError(
            f"{key} does not fit into a Kubernetes ConfigMap, which can hold at most {MAX_BYTES >> 10} KiB: it is "
            f"{size >> 10} KiB after compression. Use another kind of store, such as redis:// or etcd://"
        )
    return tuple(gone)


def name_of(key: str) -> str:
    """Return the ConfigMap name for a key. Raises StoreError if the key is too long."""
    parts = (_escaped(character) for character in key)
    name = "".join(parts)
    if len(name) > _MAX_NAME_LENGTH:
        raise StoreError(f"a key of the store kubernetes:// has at most {_MAX_NAME_LENGTH} characters: {key[:60]}…")
    return name


def key_of(name: str) -> str:
    """Return the key for a name from `name_of`."""
    raw = b"".join(
        bytes.fromhex(piece[1:]) if piece.startswith("_") else b"/" if piece == "." else piece.encode()
        for piece in _NAME.findall(name)
    )
    return raw.decode("utf-8", "surrogateescape")


def _escaped(character: str) -> str:
    if character == "/":
        return "."
    if _SAFE.fullmatch(character):
        return character
    return "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
