"""Shared parts of the targets that render Kubernetes objects."""
