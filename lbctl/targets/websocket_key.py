"""The API key of a browser's WebSocket. Browsers cannot set headers, so the key is one of the subprotocols.

`Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.KEY`, as sent by OpenAI's clients. If there are several keys,
the last one is used. Replicas receive the other items.
"""

from __future__ import annotations

HEADER = "sec-websocket-protocol"
ITEM = "openai-insecure-api-key"
"""Text in front of the dot and the key."""
BEFORE, KEY, BEHIND = rf"(?:.*,)?[[:space:]]*{ITEM}[.]", "[^,[:space:]]*", ".*$"
"""Expressions (PCRE) for the parts of a header that contains a key: the text before the key, the key, and the rest."""
