"""The HTTP API's contract: its documents, their JSON encoding, its routes and its OpenAPI document."""
