"""What the user writes, as strict typed objects; one file a section of the fleet file."""
