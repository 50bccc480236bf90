"""The agent: a process next to an engine that reports the health of the engine and its GPUs."""
