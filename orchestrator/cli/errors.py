"""What a command can fail with, drawn as one tree, and the exit codes that every command shares.

A command raises one of these and `main` prints its sentence on stderr; nobody sees a traceback for what was foreseen.

CliError              exit code 3 where nothing below says otherwise
├── UsageFault        2   an option or a file given is wrong: names it and states the limit
├── ServiceFault      3   a service could not be reached, or answered with an error
│   └── ServiceDied   3   a service started by this command ended by itself; ends with its log's last lines
├── ModelFault        3   the model cannot be used: its weights cannot be had
└── OutputClosed      141 whoever read this command's output has left; nothing is said any more
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `codemend`; `exec` gives its program's own instead of the first two."""

    OK = 0
    NOT_SOLVED = 1
    USAGE = 2
    SERVICE = 3
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as a shell shows it
    TERMINATED = 143


class CliError(Exception):
    """Root of the tree; its text is one sentence for the person at the terminal."""

    exit_code = ExitCode.SERVICE


class UsageFault(CliError):  # noqa: N818 - reads better without "Error"
    """Something that the caller gave is wrong.

    Attributes:
        option: the option or argument it was given by, such as "--tests".
    """

    exit_code = ExitCode.USAGE

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}" if option else message)
        self.option = option


class ServiceFault(CliError):  # noqa: N818 - as above
    """A service could not be reached, or answered with an error."""


class ServiceDied(ServiceFault):
    """A service started by this command ended by itself."""


class ModelFault(CliError):  # noqa: N818 - as above
    """The model cannot be used."""


class OutputClosed(CliError):  # noqa: N818 - as above
    """Whoever read this command's output has left."""

    exit_code = ExitCode.OUTPUT_CLOSED
