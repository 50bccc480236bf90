"""The contract of the HTTP API: its documents, their JSON, its routes, and the OpenAPI document made of both."""
