"""The fleet of the files: watched, read, checked against what runs, reconciled and published."""
