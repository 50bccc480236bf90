"""Ground floor: what every other room needs and what knows of none of them."""
