"""Options that several commands share, so that they read and mean the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

_SERVICES = "Services and model"

WallOption = Annotated[
    str | None,
    typer.Option(
        "--wall", metavar="TIME", help="Limit of real time, such as 10s or 2min.", show_default="the server's"
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Limit of memory, such as 256MiB.", show_default="the server's"),
]
LanguageOption = Annotated[
    str,
    typer.Option(
        "--language",
        metavar="NAME",
        help="Language of the program or the tests, such as python or node.",
        show_default="by the file's name",
    ),
]
EnvironmentOption = Annotated[
    str,
    typer.Option(
        "--environment",
        metavar="NAME",
        help="Set of preinstalled packages, such as base or data; those that the sandbox service was started with.",
        show_default="base",
    ),
]
SandboxAddressOption = Annotated[
    str,
    typer.Option(
        "--sandbox-address",
        envvar="CODEMEND_SANDBOX_ADDRESS",
        metavar="ADDR",
        help="A running sandbox service, host:port or unix:/path; without it one is started for this command.",
        show_default=False,
        rich_help_panel=_SERVICES,
    ),
]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="CODEMEND_ORCHESTRATOR",
        metavar="ADDR",
        help="A running orchestrator, host:port or unix:/path; without it both services are started for this command.",
        show_default=False,
        rich_help_panel=_SERVICES,
    ),
]
ModelUrlOption = Annotated[
    str,
    typer.Option(
        "--model-url",
        envvar="CODEMEND_MODEL_URL",
        metavar="URL",
        help="An OpenAI-compatible endpoint, such as http://localhost:8000/v1; its key comes from CODEMEND_API_KEY or "
        "OPENAI_API_KEY. Without it the embedded model serves.",
        show_default=False,
        rich_help_panel=_SERVICES,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        envvar="CODEMEND_MODEL_NAME",
        metavar="NAME",
        help="Name of the model at the endpoint.",
        show_default=False,
        rich_help_panel=_SERVICES,
    ),
]
EmbeddedModelOption = Annotated[
    str,
    typer.Option(
        "--embedded-model",
        envvar="CODEMEND_EMBEDDED_MODEL",
        metavar="MODEL",
        help="1.5b (1.1 GB, fetched once), 0.5b (0.5 GB), or the path of a .gguf file.",
        rich_help_panel=_SERVICES,
    ),
]
AttemptsOption = Annotated[
    int | None,
    typer.Option(
        "--attempts",
        min=1,
        max=100,
        metavar="N",
        help="Attempts in all, drafts and repairs, 1 to 100.",
        show_default="the server's, 4",
    ),
]
CandidatesOption = Annotated[
    int,
    typer.Option(
        "--candidates",
        min=1,
        max=16,
        metavar="N",
        help="First drafts made side by side, 1 to 16; they count as attempts.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="Time of the whole run, such as 300 or 10min.",
        show_default="the server's, 10min",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead, with the contract's field names.")]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="F.jsonl", help="Where the results go, one JSON line a task.")
]
