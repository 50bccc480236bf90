"""Where browsers put an API key for a WebSocket: they cannot set headers, so it is an item of the subprotocols.

`Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.KEY`, as OpenAI's clients write it. Of several keys the last
one counts. Replicas get the other items.
"""

from __future__ import annotations

HEADER = "sec-websocket-protocol"
ITEM = "openai-insecure-api-key"
"""The text in front of the dot and the key."""
BEFORE, KEY, BEHIND = rf"(?:.*,)?[[:space:]]*{ITEM}[.]", "[^,[:space:]]*", ".*$"
"""Expressions (PCRE) for the parts of a header with a key: the text in front of the key, the key, and the rest."""
