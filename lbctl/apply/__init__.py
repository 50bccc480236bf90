"""What leaves lbctl: files, the proxies' own checkers, running proxies."""
