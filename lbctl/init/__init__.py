"""`lbctl init`: writes a fleet file, from nothing or from running servers."""
