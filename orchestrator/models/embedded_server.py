"""The child process that serves the embedded model: llama.cpp's OpenAI-compatible server on a free loopback port.

Run as a file, not as a module, so that it loads nothing of the service. It reads one JSON line on stdin, writes one
with its address on stdout, and ends when stdin ends or its parent dies.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Serves until the parent is gone or closes stdin."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    config = json.loads(sys.stdin.readline() or "null")
    if config is None or os.getppid() != config["parent_pid"]:  # it died before it could be watched
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints goes to the log, not between the answers
    server = _serve(config)
    answers.write(json.dumps({"address": server.listening_address}) + "\n")
    answers.flush()
    sys.stdin.read()
    os._exit(0)  # replies still running are nobody's any more; waiting for them could hang


def _serve(config: dict[str, Any]) -> Any:  # noqa: ANN401 - the library has no types
    import xllamacpp  # noqa: PLC0415 - loading it takes a second, which a dead parent need not wait for

    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    params.model_alias = {config["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["api_key"]]
    params.n_parallel = config["parallel"]
    params.n_ctx = config["context_tokens"] * config["parallel"]  # divided among the slots
    params.cpuparams.n_threads = config["threads"]
    params.cpuparams_batch.n_threads = config["threads"]
    params.n_threads_http = config["parallel"] + 4  # health and model list must answer while every slot is busy
    params.cache_ram_mib = 0  # the default keeps up to 8 GiB of old prompts
    params.fit_params = False  # the context asked for, or an error; never silently less
    params.ui = False
    params.endpoint_slots = False
    params.cors_origins = ""
    params.verbosity = 2  # warnings and errors
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
