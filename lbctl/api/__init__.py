"""The contract of the HTTP API: its documents, their JSON encoding, its routes and its OpenAPI document."""
