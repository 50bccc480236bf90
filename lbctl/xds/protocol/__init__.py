"""The xDS transport protocol: subscriptions, streams, sessions and the gRPC server."""
