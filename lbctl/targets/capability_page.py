"""The page docs/reference/capabilities.md, generated from the features and the capability table of each target.

The page contains only data from the tables. To change what it reports about a feature, change the proxy's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.targets import KINDS, MANIFESTS, target
from lbctl.targets.assess import MODEL
from lbctl.targets.features import FEATURES, Feature, Scope
from lbctl.targets.target import Capability, NotYet, Rendered, Since, Target, Unsupported, Version

_SCOPES: dict[Scope, str] = {"listener": "Listeners", "route": "Routes", "pool": "Pools", "fleet": "The fleet"}
_INTRODUCTION = """\
<!-- Generated from lbctl/targets by `python -m tests.docs.regenerate`; edit the tables there. -->

# Capabilities of each proxy

lbctl never ignores a setting silently. Every key of a fleet file belongs to one of the features below. The tables show
how each proxy supports the feature:

- **✔**: The proxy supports the feature. *from VERSION* means that this version of the proxy and later versions support
  it. Set the version with `proxies.*.version` or `--proxy-version` (default: the oldest supported version).
- **in part**: The proxy supports the feature as described in its notes. If a fleet uses the unsupported part, lbctl
  reports a warning with the code in that cell.
- **not yet**: The proxy supports the feature, but this version of lbctl does not render it. If a fleet uses the
  feature, lbctl reports the warning LB499.
- **no**: The proxy does not support the feature. If a fleet uses the feature, lbctl reports a warning with the code in
  that cell, the reason, and the substitute.

Features marked with † protect routes. If a proxy does not support such a feature, or lbctl does not render it yet, the
affected routes return 503 on that proxy instead of being served without protection.
"""


_KUBERNETES = """\
## Kubernetes objects

These kinds are rendered as objects for a gateway in a Kubernetes cluster. `lbctl serve` does not drive such a gateway.
If another component provides a protection, list the ID of the feature in `proxies.*.kubernetes.assume` to keep the
routes open.
"""


def page(run_with: str = "") -> str:
    """Return the text of docs/reference/capabilities.md.

    The section `run_with` comes after the oldest supported versions.
    """
    proxies, manifests = map(target, KINDS), map(target, MANIFESTS.names)
    targets, objects = list(proxies), list(manifests)
    oldest = "".join(map(_oldest, [*targets, *objects]))
    blocks = [_INTRODUCTION, f"## Oldest supported versions\n\n{oldest}", run_with]
    blocks += (f"## {title}\n\n{_table(scope, targets)}" for scope, title in _SCOPES.items())
    blocks += map(_details, targets)
    blocks += [_KUBERNETES, _protections(objects)]
    blocks += (f"### {title} in Kubernetes\n\n{_table(scope, objects)}" for scope, title in _SCOPES.items())
    blocks += map(_details, objects)
    return "\n".join(blocks)


def _protections(targets: Iterable[Target]) -> str:
    """Return the IDs of the features that protect routes and that at least one target does not fully support."""
    partial = {
        name
        for item in targets
        for name, capability in item.capabilities.items()
        if name == MODEL or not isinstance(capability, Rendered) or capability.in_part
    }
    listed = [
        f"- `{feature.id}`: {feature.title}\n" for feature in FEATURES if feature.protects and feature.id in partial
    ]
    return "".join(["### Protections that can be assumed\n\n", *listed])


def _oldest(item: Target) -> str:
    return f"- {item.title} {_dotted(item.versions[0])}\n"


def _table(scope: Scope, targets: Iterable[Target]) -> str:
    targets = list(targets)
    head = ["feature", "keys", *(item.title for item in targets)]
    lines = [_row(head), "|---" * len(head) + "|"]
    for feature in FEATURES:
        if feature.scope == scope:
            cells = (_cell(feature, item.capabilities[feature.id]) for item in targets)
            lines.append(_row([_name(feature), ", ".join(map(_key, feature.keys)), *cells]))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(feature: Feature) -> str:
    return f"{feature.title} †" if feature.protects else feature.title


def _key(key: str) -> str:
    path, _, value = key.replace("@cleartext", "").partition("=")
    return f"`{path}: {value}`" if value else f"`{path}`"


def _cell(feature: Feature, capability: Capability) -> str:
    match capability:
        case Rendered(in_part=True):
            return f"in part ({feature.code})"
        case Rendered():
            return "✔"
        case Since():
            return f"✔ from {_dotted(capability.version)}"
        case NotYet():
            return "not yet"
        case Unsupported():
            return f"no ({feature.code})"


def _details(item: Target) -> str:
    """Return the section of one proxy: unsupported features, unrendered features, and notes on the others."""
    sections = {
        f"Features that {item.title} does not support": "".join(_refusals(item)),
        f"Features that lbctl does not render for {item.title} yet (LB499)": "".join(_missing(item)),
        f"Notes on {item.title}": "".join(_notes(item)),
    }
    return f"## {item.title}\n\n" + "\n".join(f"### {title}\n\n{text}" for title, text in sections.items() if text)


def _refusals(item: Target) -> Iterator[str]:
    for feature in FEATURES:
        capability = item.capabilities[feature.id]
        before_version = f", before {_dotted(capability.version)}" if isinstance(capability, Since) else ""
        effective = capability.below if isinstance(capability, Since) else capability
        if isinstance(effective, Unsupported):
            codes = f"{feature.code}{before_version}"
            yield f"- **{_name(feature)}** ({codes}): {_sentence(effective.reason)} Instead, {effective.instead}.\n"


def _missing(item: Target) -> Iterator[str]:
    for feature in FEATURES:
        capability = item.capabilities[feature.id]
        if isinstance(capability, NotYet):
            yield f"- **{_name(feature)}**{_with_note(capability.note)}\n"


def _notes(item: Target) -> Iterator[str]:
    for feature in FEATURES:
        capability = item.capabilities[feature.id]
        if isinstance(capability, Rendered | Since) and capability.note:
            yield f"- **{_name(feature)}**{_with_note(capability.note)}\n"


def _with_note(note: str) -> str:
    return f": {note}." if note else ""


def _sentence(clause: str) -> str:
    """Return the clause as a sentence. Proxy names and lbctl stay in lower case."""
    begins_with_name = clause.startswith((*KINDS, "lbctl"))
    return f"{clause if begins_with_name else clause[:1].upper() + clause[1:]}."


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
