"""Asks a server's gRPC health for the whole server: `healthcheck HOST:PORT` exits 0 where it says SERVING."""  # noqa: INP001 - a script

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 4


def main() -> int:
    """Returns the exit code."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            print(error.code().name, file=sys.stderr)  # noqa: T201 - what the engine shows of a failed check
            return 1
    return 0 if reply.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
