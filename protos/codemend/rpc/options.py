"""Channel arguments that both sides must agree on: message sizes and keepalive.

A server answers pings that come too often by ending the connection, so the client's interval and the server's least
interval stand side by side here and nowhere else.
"""

from datetime import timedelta

import grpc

MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024
"""Largest message in either direction; gRPC's own default for receiving, stated for sending too."""

KEEPALIVE_INTERVAL = timedelta(seconds=60)
KEEPALIVE_TIMEOUT = timedelta(seconds=10)
LEAST_PING_INTERVAL = timedelta(seconds=30)
"""The server's tolerance: strictly below the client's interval, or a quiet connection ends with "too many pings"."""

Options = list[tuple[str, int | str]]


def _milliseconds(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def _shared() -> Options:
    return [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(KEEPALIVE_INTERVAL)),
        ("grpc.keepalive_timeout_ms", _milliseconds(KEEPALIVE_TIMEOUT)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options() -> Options:
    """Arguments of a server. A port in use is an error, where gRPC's default would share it with the other process."""
    return [
        *_shared(),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(LEAST_PING_INTERVAL)),
        ("grpc.so_reuseport", 0),
    ]


def channel_options() -> Options:
    """Arguments of a client's channel."""
    return _shared()


def open_channel(address: str) -> grpc.aio.Channel:
    """A plain-text channel with the shared arguments. Make one for each target and close it at the end."""
    return grpc.aio.insecure_channel(address, options=channel_options())
