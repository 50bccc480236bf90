"""`lbctl up`: runs `lbctl serve` and one proxy of this machine together, in the foreground and without root."""
