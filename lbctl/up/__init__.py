"""`lbctl up`: runs `lbctl serve` and one proxy on this machine, in the foreground and without root privileges."""
