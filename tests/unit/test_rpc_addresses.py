import socket
import stat

import grpc
import pytest
from codemend.rpc import Address, AddressError, parse_address
from codemend.rpc.addresses import bind
from codemend.rpc.options import KEEPALIVE_INTERVAL, LEAST_PING_INTERVAL, channel_options, server_options


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50061", Address("127.0.0.1", 50061)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:8080", Address("::1", 8080)),
        ("unix:/run/x.sock", Address(path="/run/x.sock")),
        ("unix:///run/x.sock", Address(path="/run/x.sock")),
    ],
)
def test_an_address_is_read_and_written_in_the_form_that_grpc_takes(text, address):
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no address"),
        ("50061", "no address"),
        (":50061", "no address"),
        ("host:", "0 to 65535"),
        ("host:http", "0 to 65535"),
        ("host:65536", "0 to 65535"),
        ("host:-1", "0 to 65535"),
        ("::1:80", "brackets"),
        ("[::zz]:80", "::zz"),
        ("unix:relative.sock", "absolute"),
        ("unix:", "absolute"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
    ],
)
def test_what_is_no_address_is_refused_with_its_reason(text, reason):
    with pytest.raises(AddressError, match=reason.replace(".", r"\.")):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("127.0.0.2:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("some.host:1", False),
    ],
)
def test_only_loopback_and_sockets_are_private(text, is_private):
    assert parse_address(text).is_private is is_private


async def test_a_free_port_is_taken_and_told():
    server = grpc.aio.server(options=server_options())
    bound = bind(server, parse_address("127.0.0.1:0"))
    assert bound.host == "127.0.0.1"
    assert bound.port > 0
    await server.stop(None)


async def test_a_port_in_use_is_refused_with_the_system_s_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = grpc.aio.server(options=server_options())
        with pytest.raises(AddressError, match="address already in use"):
            bind(server, Address("127.0.0.1", taken.getsockname()[1]))
        await server.stop(None)


async def test_two_servers_do_not_share_a_port():
    first, second = (grpc.aio.server(options=server_options()) for _ in range(2))
    bound = bind(first, parse_address("127.0.0.1:0"))
    with pytest.raises(AddressError, match="address already in use"):
        bind(second, bound)
    await first.stop(None)
    await second.stop(None)


async def test_a_socket_belongs_to_its_owner_alone(tmp_path):
    server = grpc.aio.server(options=server_options())
    bind(server, Address(path=str(tmp_path / "s")))
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    await server.stop(None)


async def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "s"))
    stale.close()
    server = grpc.aio.server(options=server_options())
    bind(server, Address(path=str(tmp_path / "s")))
    assert (tmp_path / "s").is_socket()
    await server.stop(None)


async def test_a_socket_that_a_server_listens_on_is_not_taken_from_it(tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        server = grpc.aio.server(options=server_options())
        with pytest.raises(AddressError, match="another server listens"):
            bind(server, Address(path=str(tmp_path / "s")))
        await server.stop(None)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "s").write_text("precious")
    server = grpc.aio.server(options=server_options())
    with pytest.raises(AddressError, match="no socket"):
        bind(server, Address(path=str(tmp_path / "s")))
    assert (tmp_path / "s").read_text() == "precious"
    await server.stop(None)


async def test_a_socket_in_a_missing_folder_is_refused_with_the_system_s_reason(tmp_path):
    server = grpc.aio.server(options=server_options())
    with pytest.raises(AddressError, match="no such file or directory"):
        bind(server, Address(path=str(tmp_path / "missing" / "s")))
    await server.stop(None)


def test_both_sides_agree_on_keepalive_and_sizes():
    server, client = dict(server_options()), dict(channel_options())
    assert LEAST_PING_INTERVAL < KEEPALIVE_INTERVAL
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
    for option in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert server[option] == client[option] == 4 * 1024 * 1024
