"""The agent, a process that runs next to an engine and reports the health of the engine and its GPUs."""
