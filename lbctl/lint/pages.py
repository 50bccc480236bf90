"""Every code that lbctl can show, with its page: `lbctl rule`, docs/rules.md and SARIF are made of it.

Rules of lint bring their own; what a proxy cannot say comes from the tables of the targets; the rest is in `words`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from lbctl.lint.page import Page, markdown
from lbctl.lint.rules import rules
from lbctl.lint.words import WORDS
from lbctl.targets import KINDS, target
from lbctl.targets.features import FEATURES, Feature
from lbctl.targets.target import NotYet, Rendered, Since, Unsupported

_FAMILIES = {
    "LB0": "Reading",
    "LB1": "References",
    "LB2": "Weights and capacity",
    "LB3": "Timeouts, retries, health",
    "LB4": "What a proxy cannot say",
    "LB5": "Security",
    "LB6": "Signals",
    "LB7": "Rollouts",
    "LB9": "Run time",
}
_INTRODUCTION = """\
<!-- Generated from lbctl/lint by `python -m tests.docs.regenerate`; edit the rules there. -->

# Rules

Every code that lbctl shows, as `lbctl rule CODE` prints it, offline. Those with YAML before and after are
`lbctl lint`'s: the fleet is legal, and unwise for inference. The fleets are whole: each first one gets exactly this
finding, each second one none.

`# lbctl: ignore LB210 (why it is right here)` at the end of a line silences that code on that line, in `lint`,
`validate` and `render` alike: warnings, notes, and what the rules of `lint` find. Errors that keep a fleet from being
rendered cannot be ignored. A comment that silences nothing is a finding of `lint` itself (LB017), unless its code was
not judged: a load that is not stated, a file that only another machine lacks, what the proxies' own checkers say.
What some kind of proxy cannot say counts as found, whether or not the fleet names one. `lbctl lint --fix` makes those
mends that are certain and keeps comments.

What no proxy does without a control plane (telemetry, live weights, deep health) is told by `render`, not by `lint`.
"""
_NOT_YET = Page(
    "LB499",
    "not rendered yet",
    "The proxy could do it, but lbctl does not render it for that proxy in this version; docs/capabilities.md lists "
    "what.",
    advice="Use another proxy for it, or do without.",
    severity="warning",
)


@cache
def pages() -> Mapping[str, Page]:
    """Code → page, in the order of codes."""
    found = [*WORDS, _NOT_YET, *(item.page for item in rules().values())]
    told = {page.code for page in found}
    found += [_feature(feature) for feature in FEATURES if feature.code not in told]
    return {page.code: page for page in sorted(found, key=lambda page: page.code)}


def document() -> str:
    """The text of docs/rules.md."""
    blocks = [_INTRODUCTION]
    for prefix, title in _FAMILIES.items():
        family = [page for page in pages().values() if page.code.startswith(prefix)]
        blocks += [f"## {title}\n", *map(markdown, family)]
    return "\n".join(blocks)


def _feature(feature: Feature) -> Page:
    keys = ", ".join(f"`{key.replace('@cleartext', '').replace('=', ': ')}`" for key in feature.keys)
    closes = (
        " It protects: where a proxy cannot say it, the routes that it covers answer 503 there, closed and not open."
    )
    return Page(
        feature.code,
        f"{feature.title}: not on this proxy",
        f"{keys}: a proxy of the fleet cannot say what stands here, or not wholly.{closes if feature.protects else ''}",
        advice=f"choose a proxy that can, or live with what stands in its place. {' '.join(_answers(feature))}",
        severity="warning",
    )


def _answers(feature: Feature) -> Iterator[str]:
    for kind in KINDS:
        held = target(kind).capabilities[feature.id]
        match held:
            case Unsupported():
                yield f"{kind}: {held.reason}; instead: {held.instead}."
            case Since():
                version = ".".join(map(str, held.version))
                yield f"{kind}: from {version} on; before: {held.below.reason}; instead: {held.below.instead}."
            case NotYet():
                yield f"{kind}: not rendered yet."
            case Rendered():
                yield f"{kind}: yes{', ' + held.note if held.note else ''}."
