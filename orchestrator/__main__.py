"""Entry of `python -m orchestrator`: reads the settings, starts the logs, serves.

Exit codes: 0 after a signal, 1 where the service cannot start on this machine, 2 where its settings are wrong.
"""

import os

# gRPC reads these when it is imported. Its fork handlers only harm here: nothing forks in this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# LangGraph reads this when it is imported: checkpoints give back known types and nothing else.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"

import argparse
import asyncio
import logging
import sqlite3
import sys
from pathlib import Path

from codemend.rpc import AddressError, configure_logging, describe_settings_error, write_ready_file
from pydantic import ValidationError

from orchestrator.errors import StoreError
from orchestrator.server import serve
from orchestrator.settings import PREFIX, Settings

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Runs the service and returns the process's exit code."""
    variables = [f"  {PREFIX}{name.upper():<20} {field.description}" for name, field in Settings.model_fields.items()]
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator",
        description="Turns coding tasks into code that passes its tests, over gRPC.",
        epilog="\n".join(["environment variables:", *variables]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--address", help=f"where to listen, over {PREFIX}ADDRESS: host:port, [v6]:port or unix:/path")
    parser.add_argument("--sandbox", help=f"where the sandbox service listens, over {PREFIX}SANDBOX_ADDRESS")
    parser.add_argument("--ready-file", type=Path, help="gets the bound address once the service serves")
    options = parser.parse_args(arguments)
    given = {"address": options.address, "sandbox_address": options.sandbox}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        print(describe_settings_error(error, PREFIX), file=sys.stderr)  # noqa: T201 - there is no log yet
        return 2
    configure_logging(settings.log_level)
    try:
        asyncio.run(serve(settings, lambda bound: write_ready_file(options.ready_file, bound)))
    except (AddressError, OSError, StoreError, sqlite3.Error, ValueError) as error:
        logger.critical("cannot serve: %s", error)
        return 1
    finally:
        if options.ready_file is not None:
            options.ready_file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
