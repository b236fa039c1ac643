"""gRPC as Draftproof uses it: one way to make channels and servers, one mapping of errors."""
