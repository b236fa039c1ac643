"""Health check: `healthy.py grpc HOST:PORT` asks the health service, `healthy.py tcp HOST:PORT` connects."""

import socket
import sys


def healthy(kind: str, address: str) -> bool:
    """Whether the server is well."""
    if kind == "grpc":
        from draftproof.cli import health
        from draftproof.errors import DraftproofError

        try:
            return health.check(address, insecure=True)
        except DraftproofError:
            return False
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if healthy(*sys.argv[1:]) else 1)
