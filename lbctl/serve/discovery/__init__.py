"""Discovery of replicas that the files do not list: the sources, and the rules for accepting their answers."""
