"""The picker as `serve` needs it: the tables that feed it, its child process, and its fallbacks."""
