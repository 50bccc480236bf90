"""Converts the TLS settings of listeners and clusters. Settings that verify certificates are never dropped silently."""

from __future__ import annotations

from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.base.system_ca import WORD
from lbctl.importer import provider
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.view import EMPTY, ConfigView

_VERSIONS = {"TLSv1_2": "1.2", "TLSv1_3": "1.3"}
_STRICTER = frozenset({"allow_expired_certificate", "only_verify_leaf_cert_crl", "@type"})
"""Settings that make client certificate checks less strict than in a fleet."""
_CLOSING = "verification of client certificates beyond their CA and its revocation list"


def downstream(context: EnvoyImport, path: Path, socket: ConfigView, match: ConfigView) -> list[tuple[ConfigView, str]]:
    """Set a listener's TLS. Returns protections that cannot be converted, with the reason."""
    typed = socket.get("typed_config")
    common = typed.get("common_tls_context")
    names = match.get("server_names")
    _certificates(context, path, common, names)
    context.imply("this field is only the name of the transport", socket.get("name"), typed.get("@type"))
    context.imply("lbctl offers HTTP/1.1 and HTTP/2", common.get("alpn_protocols"))
    oldest = common.get("tls_params", "tls_minimum_protocol_version")
    if (version := _VERSIONS.get(oldest.text)) is not None:
        context.put((*path, "tls", "min_version"), version, oldest)
    return list(_clients(context, path, typed, common))


def _certificates(context: EnvoyImport, path: Path, common: ConfigView, names: ConfigView) -> None:
    pairs = list(context.draft.get((*path, "tls", "certificates")) or [])
    hosts = [item.text for item in names]
    items = list(common.get("tls_certificates")) or [EMPTY]
    for item in items:
        chain, key = item.get("certificate_chain", "filename"), item.get("private_key", "filename")
        pair: dict[str, Any] = {"certificate": chain.text, "key": key.text}
        if not chain.text or not key.text:
            pair = {"certificate": f"tls/{path[1]}.crt", "key": f"tls/{path[1]}.key"}
            message = "this listener uses TLS, but the configuration does not include its certificate file"
            context.draft.ledger.advise(
                common.statement, message, "set `tls.certificates` to the certificate and key files"
            )
        pairs.append(pair | ({"hosts": hosts} if hosts and pairs else {}))
        context.put((*path, "tls", "certificates"), pairs, chain, key, names)


def _clients(context: EnvoyImport, path: Path, typed: ConfigView, common: ConfigView) -> list[tuple[ConfigView, str]]:
    """Set which client certificates are accepted."""
    combined = common.get("combined_validation_context")
    checks = common.get("validation_context") or combined.get("default_validation_context")
    ca, crl = checks.get("trusted_ca", "filename"), checks.get("crl", "filename")
    required = typed.get("require_client_certificate")
    closing = [
        child
        for name, child in checks.fields()
        if name not in _STRICTER and not (name == "trusted_ca" and ca) and not (name == "crl" and crl)
    ]
    closing += filter(None, (common.get("validation_context_sds_secret_config"),))
    closing += filter(None, (combined.get("validation_context_sds_secret_config"),))
    present = context.draft.get((*path, "tls")) or {}
    closing += [
        item
        for key, item in (("client_ca", ca), ("client_crl", crl))
        if item and present.get(key) not in {None, item.text}
    ]
    if ca and ca not in closing:
        context.put((*path, "tls", "client_ca"), ca.text, ca)
        is_required = required.text == "true" or present.get("client_certificate") == "required"
        context.put((*path, "tls", "client_certificate"), "required" if is_required else "optional", required)
        if crl and crl not in closing:
            context.put((*path, "tls", "client_crl"), crl.text, crl)
    elif required.text == "true" and not closing:
        closing.append(required)
    return [(item, _CLOSING) for item in closing]


def upstream(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    """Set a pool's TLS."""
    typed, tls = view.get("typed_config"), dict[str, Any]()
    common = typed.get("common_tls_context")
    checks = common.get("validation_context")
    ca, system = checks.get("trusted_ca", "filename"), checks.get("system_root_certs")
    pair = next(iter(common.get("tls_certificates")), EMPTY)
    chain, key = pair.get("certificate_chain", "filename"), pair.get("private_key", "filename")
    subjects = [item.get("matcher", "exact") for item in checks.get("match_typed_subject_alt_names")]
    name = typed.get("sni") or (subjects[0] if len(subjects) == 1 else EMPTY)
    for setting, item in (("server_name", name), ("certificate", chain), ("key", key)):
        if item.text:
            tls[setting] = item.text
    if system:
        tls["ca"] = WORD
    elif ca:
        tls["ca"] = provider.authority(ca.text)
    context.put((*path, "tls"), tls, ca, system, name, chain, key, view.get("name"), typed.get("@type"))
    if len(subjects) == 1 and subjects[0].text == name.text:
        context.imply("lbctl requires this name in the certificate", checks.get("match_typed_subject_alt_names"))
    context.imply("`protocol` selects HTTP/1.1 or HTTP/2", common.get("alpn_protocols"))
    _advise(context, view, checks, "ca" in tls)


def _advise(context: EnvoyImport, view: ConfigView, checks: ConfigView, verified: bool) -> None:
    ledger = context.draft.ledger
    if not verified:
        message = "replica certificates are not verified: an attacker on the network can read and change prompts"
        ledger.advise(view.statement, message, "set `tls.ca` to the CA that signed the certificates")
    for name, child in checks.fields():
        if name not in {"trusted_ca", "system_root_certs", "match_typed_subject_alt_names", "@type"}:
            message = f"{name}: this check of replica certificates is not converted"
            ledger.advise(child.statement, message, "`tls` verifies the CA and `server_name`")
