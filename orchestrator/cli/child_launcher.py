"""Turns a fresh process into a service that ends when the process that started it ends.

Run by path as `python -I child_launcher.py PARENT_PID PROGRAM [ARG…]`: it asks the kernel for a SIGTERM at its
parent's death and then becomes PROGRAM. An own step between start and program, since code between fork and exec is
not safe in a process that uses gRPC.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent and becomes the program; ends at once if the parent is gone already."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the kernel was asked
        raise SystemExit(0)
    os.execv(program[0], program)  # noqa: S606 - replacing this process, without a shell, is its purpose


if __name__ == "__main__":
    main()
