"""Updates a running nginx: configuration generations, checked reloads, slow start."""
