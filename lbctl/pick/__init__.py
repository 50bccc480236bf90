"""The replica picker: it maps a request's features and the table of replicas to an ordered list of replicas.

The code is pure: time and randomness are arguments, and it does no I/O. `lbctl.picker` is the network service.
"""
