"""nginx: parsed by crossplane and interpreted according to nginx's manual."""
