"""Values of headers that a route sets: text with variables in braces."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.ir.header_text import VARIABLES, unknown_words
from lbctl.model import values as v
from lbctl.model.section import refuse

_WORDS = " ".join(f"{{{name}}}" for name in VARIABLES)


def _variables(text: str) -> str:
    for word in unknown_words(text):
        hint = did_you_mean(word, [f"{{{name}}}" for name in VARIABLES])
        raise refuse("LB140", f"{show(word)} is no variable", f"{hint + '; ' if hint else ''}one of {_WORDS}")
    return text


HeaderText = Annotated[
    v.HeaderValue,
    AfterValidator(_variables),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": v.HEADER_VALUE,
            "grammar": f"a header's value: printable ASCII; of words in braces only {_WORDS}",
        }
    ),
]
HeaderTexts = Annotated[dict[v.HeaderName, HeaderText], BeforeValidator(v.unique_headers)]
