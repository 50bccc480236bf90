"""nginx: parsed by crossplane, interpreted according to nginx's manual."""
