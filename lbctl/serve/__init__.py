"""The control plane: watches the files, serves the proxies, tells what it does. Wired together in `app`."""
