"""The picker in `serve`: the tables that feed it, its child process, and its fallbacks."""
