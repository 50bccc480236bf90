"""The replica picker: maps a request's features and the table of replicas to an ordered list of replicas.

The code is pure: it does no I/O, and time and randomness are passed as arguments. The network service is in
`lbctl.picker`.
"""
