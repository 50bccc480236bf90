"""`lbctl up`: runs `lbctl serve` and one proxy on this machine together, in the foreground and without root."""
