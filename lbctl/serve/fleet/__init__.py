"""The fleet in the files: watched, read, compared with the running fleet, reconciled and published."""
