"""Updates a running nginx with configuration generations, checked reloads and slow start."""
