"""Converts a decoded message to plain values for display: protobuf's JSON form with proto field names, redacted.

Private keys, API keys and credentials are omitted, regardless of which control plane sent them. The path of a file that
contains a secret is shown. A packed message of an unknown type is omitted entirely.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime, timedelta

from betterproto2 import Enum, Message
from envoy_data_plane.envoy.config.core.v3 import DataSource, HeaderValue
from envoy_data_plane.google.protobuf import Any as Packed
from envoy_data_plane.google.protobuf import Duration, ListValue, Struct, Timestamp, Value

from lbctl.ir.secrets import is_credential, looks_like_secret
from lbctl.xds.client.decode import DecodeError, decode, set_fields, type_name

Tree = dict[str, object]

REDACTED = "[redacted]"
_SECRET = frozenset(
    (
        "auth_password",
        "auth_username",
        "backend_token",
        "credentials_data_source",
        "downstream_auth_password",
        "downstream_auth_passwords",
        "downstream_auth_username",
        "password",
        "pkcs12",
        "private_key",
        "private_key_provider",
        "secret",
        "secret_access_key",
        "secret_data",
        "session_token",
        "web_identity_token_data_source",
    )
)
"""Names of fields that are secret in every message."""

_CALL = "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials"
_HTTP = "envoy.extensions.filters.http"
_TLS = "envoy.extensions.transport_sockets.tls.v3"
_SECRET_OF = frozenset(
    (
        f"{_CALL}.access_token",
        f"{_CALL}.google_refresh_token",
        f"{_CALL}.GoogleIAMCredentials.authorization_token",
        f"{_CALL}.ServiceAccountJWTAccessCredentials.json_key",
        f"{_HTTP}.api_key_auth.v3.Credential.key",
        f"{_HTTP}.basic_auth.v3.BasicAuth.users",
        f"{_HTTP}.basic_auth.v3.BasicAuthPerRoute.users",
        f"{_HTTP}.ext_authz.v3.CheckSettings.context_extensions",
        f"{_TLS}.GenericSecret.secrets",
        f"{_TLS}.PrivateKeyProvider.typed_config",
        f"{_TLS}.TlsSessionTicketKeys.keys",
    )
)
_PRIVATE_JWK = frozenset(("d", "dp", "dq", "k", "oth", "p", "q", "qi"))


def tree(message: Message) -> Tree:
    """Return the message as a dictionary with its keys in the order of the proto file, and secrets redacted."""
    if isinstance(message, Packed):
        return _unpacked(message)
    if isinstance(message, Struct):
        return dict(message.to_dict())
    kind = type_name(message)
    hidden = _hidden(message, kind)
    return {
        name: _redacted(value) if name in hidden or name in _SECRET or f"{kind}.{name}" in _SECRET_OF else _shown(value)
        for name, value in set_fields(message)
    }


def _hidden(message: Message, kind: str) -> tuple[str, ...]:
    """Return the fields that are secret depending on their own values or on other fields."""
    if isinstance(message, HeaderValue) and is_credential(message.key, message.value):
        return ("value", "raw_value")
    if kind.endswith(".JwtProvider") and not _public(getattr(message, "local_jwks", None)):
        return ("local_jwks",)
    return ()


def _public(keys: object) -> bool:
    """Return whether an inline JSON web key set contains no private key.

    A set that is not inline is considered public.
    """
    if not isinstance(keys, DataSource) or (keys.inline_string is None and keys.inline_bytes is None):
        return True
    try:
        key_set = json.loads(keys.inline_string or keys.inline_bytes or "")["keys"]
        return not any(_PRIVATE_JWK & set(key) for key in key_set)
    except (ValueError, KeyError, TypeError):
        return False


def _unpacked(packed: Packed) -> Tree:
    try:
        inside = decode(packed.type_url, packed.value)
    except DecodeError as error:
        return {"@type": packed.type_url, "not_decoded": f"{len(packed.value)} bytes: {error}"}
    if isinstance(inside, (Struct, Value, ListValue, Packed, Duration, Timestamp)):
        return {"@type": packed.type_url, "value": _shown(inside)}
    return {"@type": packed.type_url, **tree(inside)}


def _shown(value: object) -> object:
    if isinstance(value, (Value, ListValue, Duration, Timestamp)):
        return value.to_dict()
    if isinstance(value, Message):
        return tree(value)
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _shown(value[key]) for key in sorted(value)}
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return REDACTED if looks_like_secret(value) else value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Enum):
        return value.proto_name or value.name or value.value
    if isinstance(value, timedelta):
        return Duration.from_wrapped(value).to_dict()
    if isinstance(value, datetime):
        return Timestamp.from_wrapped(value).to_dict()
    return value


def _redacted(value: object) -> object:
    """Redact a value, but keep the location of the secret: the path of a file or the name of a variable."""
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if isinstance(value, dict):
        return {str(key): REDACTED for key in sorted(value)}
    if isinstance(value, DataSource) and (value.filename is not None or value.environment_variable is not None):
        return tree(value)
    return REDACTED
