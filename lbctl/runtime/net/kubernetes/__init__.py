"""The Kubernetes API: where a cluster is, who asks, requests, and copies of collections that follow their changes."""
