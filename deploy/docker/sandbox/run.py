"""Starts one of the guest's entries in a container: `run container [SESSION]` is process 1, `run relay` its relay."""  # noqa: INP001 - a script

import importlib
import sys

sys.path.insert(0, "/opt/codemend/guest")
importlib.import_module(f"sandbox_service.guest.{sys.argv.pop(1)}").main()
