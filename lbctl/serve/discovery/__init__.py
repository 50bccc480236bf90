"""Discovery of replicas that the files do not list: the sources, and the rules for which of their answers count."""
