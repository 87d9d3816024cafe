"""The handle of a cell that has a keeper: a byte asks for its end, and one that is gone already is no error."""

import socket

from sandbox_service.cells import handle


def test_a_keeper_is_told_by_a_byte():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handle.kill(ours.fileno())
        assert len(theirs.recv(16)) == 1


def test_a_keeper_that_is_gone_is_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        handle.kill(ours.fileno())
