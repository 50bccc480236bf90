"""All codes of lbctl with their pages, for `lbctl rule`, docs/reference/codes.md and SARIF.

Pages are files in `codes`, except those about features that a proxy does not support: these come from the tables of the
targets. A code never gets another meaning. If lbctl no longer reports a code, its page stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from lbctl.lint.page import FOLDER, CodePage, markdown, read_page
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
<!-- Generated from lbctl/lint by `python -m tests.docs.regenerate`; edit the pages in lbctl/lint/codes. -->

# Rules

Every code that lbctl shows, as `lbctl rule CODE` prints it, offline. Those with YAML before and after are
`lbctl lint`'s: the fleet is legal, and unwise for inference. The fleets are whole: each first one gets exactly this
finding, each second one none.

`# lbctl: ignore LB210 (why it is right here)` at the end of a line silences that code on that line, in `lint`,
`validate` and `render` alike: warnings, notes, and what the rules of `lint` find. Errors that keep a fleet from being
rendered cannot be ignored. A comment that silences nothing is a finding of `lint` itself (LB017), unless its code was
not judged: a load that is not stated, a file that only another machine lacks, what the proxies' own checkers say.
What some kind of proxy cannot say counts as found, whether or not the fleet names one. `lbctl lint --fix` applies
the fixes that are certain and keeps comments.

What no proxy does without a control plane (telemetry, live weights, deep health) is reported by `render`, not by
`lint`.
"""


@cache
def pages() -> Mapping[str, CodePage]:
    """Map each code to its page, in the order of codes."""
    return {page.code: page for page in sorted(all_pages(), key=lambda page: page.code)}


def all_pages() -> Iterator[CodePage]:
    """Yield the page of each code, in any order."""
    yield from (read_page(file.stem) for file in FOLDER.glob("*.md"))
    yield from map(_feature, FEATURES)


def document() -> str:
    """Return the text of docs/reference/codes.md."""
    blocks = [_INTRODUCTION]
    for prefix, title in _FAMILIES.items():
        family = [page for page in pages().values() if page.code.startswith(prefix)]
        blocks += [f"## {title}\n", *map(markdown, family)]
    return "\n".join(blocks)


def _feature(feature: Feature) -> CodePage:
    keys = ", ".join(f"`{key.replace('@cleartext', '').replace('=', ': ')}`" for key in feature.keys)
    protects = (
        " It protects: where a proxy does not support it, the routes that it covers answer 503 there, "
        "closed and not open."
    )
    unsupported = f"{keys}: a proxy of the fleet does not support this setting, or only in part."
    return CodePage(
        feature.code,
        f"{feature.title}: not on this proxy",
        "warning",
        unsupported + (protects if feature.protects else ""),
        advice=f"choose a proxy that does, or accept what this one does instead. {' '.join(_answers(feature))}",
    )


def _answers(feature: Feature) -> Iterator[str]:
    for kind in KINDS:
        support = target(kind).capabilities[feature.id]
        match support:
            case Unsupported():
                yield f"{kind}: {support.reason}; instead: {support.instead}."
            case Since():
                version = ".".join(map(str, support.version))
                yield f"{kind}: from {version} on; before: {support.below.reason}; instead: {support.below.instead}."
            case NotYet():
                yield f"{kind}: not rendered yet."
            case Rendered(in_part=True):
                yield f"{kind}: in part: {support.note}."
            case Rendered():
                yield f"{kind}: yes{', ' + support.note if support.note else ''}."
