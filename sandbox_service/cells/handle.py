"""The handle by which a cell is watched and killed: what the guest gave the service when it had forked process 1.

It is a pid descriptor, or where the kernel has none (gVisor before 2024) the service's end of the socket pair of the
cell's keeper (`guest.process.keeper`). Both become readable when the cell is gone.
"""

import contextlib
import os
import signal
import stat


def kill(handle: int) -> None:
    """Kills process 1 of the cell, and with it all that is in it; nothing happens where it is gone already."""
    with contextlib.suppress(ProcessLookupError, ConnectionError):
        if stat.S_ISSOCK(os.fstat(handle).st_mode):
            os.write(handle, b"k")
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
