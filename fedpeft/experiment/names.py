"""Names as settings: of columns, classes and words."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from fedpeft.methods.settings import listed

_WHOLE = re.compile(r"[+-]?\d+\.0+")


def label_text(value: object) -> str:
    """Return a label as text; 1, 1.0, "1" and "1.0" are the same label."""
    text = str(value).strip()
    return text.partition(".")[0] if _WHOLE.fullmatch(text) else text


#: Strings, also accepted as ``"a,b"``.
Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
#: A label, and several, written as those of a file are.
Label = Annotated[str, AfterValidator(label_text)]
Labels = Annotated[tuple[Label, ...], BeforeValidator(listed)]
