"""The Kubernetes API: clusters and credentials, requests, and copies of collections that are kept up to date."""
