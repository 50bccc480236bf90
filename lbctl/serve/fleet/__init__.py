"""The fleet in the files: watched, read, checked against the running fleet, reconciled and published."""
