"""The Kubernetes API: clusters and credentials, requests, and continuously updated copies of collections."""
