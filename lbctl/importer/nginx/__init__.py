"""nginx: read by crossplane, understood as nginx's manual describes the directives."""
