"""The picker in `serve`: the tables that it receives, its child process, and its fallbacks."""
