"""The Kubernetes API: clusters and credentials, requests, and copies of collections that follow their changes."""
