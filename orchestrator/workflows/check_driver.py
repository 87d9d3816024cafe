"""Runs a check script as the main program inside the sandbox, and vouches for its end.

Exit code 0 alone proves nothing: code under test that ends the interpreter while it is imported gives it as well. So
this program writes a token as the last line of stdout once the check itself has ended well. It is sent to the sandbox
as a file beside the check, and uses the standard library alone.

The token keeps honest code from passing by accident. Code that is out to find it, in this process's memory, can: to
withstand that, the check has to run in another process than the code under test.
"""

# ruff: noqa: PTH100, PTH117, PTH118, PTH119, PTH120 - no import that a file beside this one could stand in for

import atexit
import contextlib
import os
import sys
from types import TracebackType


class _Proof:
    """Writes the token when the interpreter ends, after whatever other exit handlers and threads still print."""

    def __init__(self, token: str) -> None:
        self.earned = False
        self._token = token
        self._process = os.getpid()
        self._stdout = os.dup(1)  # the check may redirect or close its own
        atexit.register(self._write)  # the first one registered is the last one called

    def _write(self) -> None:
        if not self.earned or os.getpid() != self._process:
            return
        for stream in (sys.stdout, sys.__stdout__):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):  # the check may have closed it
                    stream.flush()
        os.write(self._stdout, f"\n{self._token}\n".encode())


def main(name: str, token: str) -> None:
    """Runs the check.

    Args:
        name: the check's file, in the folder of this one.
        token: what proves its end.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    check = os.path.join(folder, name)
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != folder]
    import runpy  # noqa: PLC0415 - the real one, whatever the files beside this one are called

    sys.path[:] = path
    sys.argv[:] = [check]
    proof = _Proof(token)
    try:
        runpy.run_path(check, run_name="__main__")
    except SystemExit as ended:
        stranger = _stranger(ended.__traceback__, check, folder)
        if stranger:
            sys.stderr.write(f"the program was ended by {stranger} (SystemExit) before the check came to its end\n")
            sys.exit(1)
        proof.earned = ended.code is None or ended.code == 0
        sys.exit(ended.code)
    except BaseException as error:  # noqa: BLE001 - shown as python shows it, without the frames of this file
        trace = _from(check, error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
    proof.earned = True


def _from(check: str, trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the check's own first frame on; None where the check did not begin."""
    while trace is not None and trace.tb_frame.f_code.co_filename != check:
        trace = trace.tb_next
    return trace


def _stranger(trace: TracebackType | None, check: str, folder: str) -> str:
    """Where an exit passed through code that is neither the check's nor a library's; empty where it did not."""
    trace = _from(check, trace)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        library = file.startswith("<frozen ") or (os.path.isabs(file) and not file.startswith(folder + os.sep))
        if file != check and not library:
            return f"{os.path.basename(file)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:3])
