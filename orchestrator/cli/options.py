"""Options that several commands share, so that they read and mean the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

_SERVICES = "Services and model"
DEFAULT_ADDRESS = "127.0.0.1:50051"  # where `codemend serve` listens unless it is told otherwise

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
RunningAddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="CODEMEND_ORCHESTRATOR",
        metavar="ADDR",
        help="The running orchestrator that keeps the runs, host:port or unix:/path.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `runs list` prints it.")]
BreakBeforeOption = Annotated[
    list[str] | None,
    typer.Option("--break-before", metavar="NODE", help="Wait before this node each time; repeatable; *: every node."),
]
BreakAfterOption = Annotated[
    list[str] | None,
    typer.Option("--break-after", metavar="NODE", help="Wait after this node each time; repeatable; *: every node."),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option("--prompt", metavar="NAME=@F", help="Text in the place of a prompt file; repeatable."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help='JSON or text for a field, as plan.note="mind 0"; repeatable.'),
]
ValuesOption = Annotated[
    Path | None, typer.Option("--values", metavar="F.json", help="A JSON object of fields to change.")
]
StateFileOption = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="PATH=@F", help="A file to lay over the draft that is to be executed; repeatable."),
]
AsNodeOption = Annotated[
    str,
    typer.Option(
        "--as-node",
        metavar="NODE",
        help="In whose name, which decides what comes next.",
        show_default="the one that ran last",
    ),
]
