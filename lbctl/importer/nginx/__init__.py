"""nginx configurations, parsed by crossplane and interpreted according to the nginx manual."""
