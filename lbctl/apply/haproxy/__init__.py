"""A running HAProxy, moved: by its Runtime API what that can move, by a checked file and a reload the rest."""
