"""The replica picker: a request's features and the table of replicas in, an ordered list of replicas out.

Pure: time and randomness are arguments, nothing is read or sent. The gRPC and HTTP service around it is `serve`'s.
"""
