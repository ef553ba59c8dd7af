"""Links that may be followed: to the web, and nowhere else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

_KEYS = ("url", "source_url", "source")
"""Metadata under which documents tell where they come from."""

_NOT_ESCAPED = "%/:?#[]@!$&'()*+,;=~-._"


def safe_url(value: object) -> str:
    """Return an address of the web in ASCII, or "" where it is none.

    What browsers ignore in an address, controls and invisible characters, is taken out before the
    scheme is looked at.

    Args:
        value: What a document gives as its address.
    """
    if not isinstance(value, str):
        return ""
    kept = "".join(c for c in value if not unicodedata.category(c).startswith("C")).strip()
    if not re.match(r"https?://[^/?#]", kept, re.IGNORECASE):
        return ""
    address = quote(kept, safe=_NOT_ESCAPED, errors="replace")
    return address if host(address) else ""


def host(url: str) -> str:
    """Return the host that a link leads to; "" where the address is malformed."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def find_url(metadata: Mapping[str, Any], document_id: str = "") -> str:
    """Return the first address of the web in a passage's metadata, or its document's id where that is one."""
    addresses = (safe_url(value) for value in (*(metadata.get(key) for key in _KEYS), document_id))
    return next((address for address in addresses if address), "")
