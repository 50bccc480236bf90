"""Applies rendered configuration by writing files, running the proxies' checkers, and updating running proxies."""
