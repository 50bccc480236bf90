"""Applies rendered configuration: writes files, runs the proxies' checkers, and updates running proxies."""
