"""`codemend runs`: its subcommands put together."""

import typer

from orchestrator.cli import runs_commands, runs_debugging

runs_app = typer.Typer(
    name="runs",
    help="Look into the runs of a running orchestrator, change their course, and play them again.",
    no_args_is_help=True,
)
runs_app.command("list")(runs_commands.list_command)
runs_app.command("show")(runs_commands.show_command)
runs_app.command("watch")(runs_commands.watch_command)
runs_app.command("cancel")(runs_commands.cancel_command)
runs_app.command("checkpoints")(runs_debugging.checkpoints_command)
runs_app.command("state")(runs_debugging.state_command)
runs_app.command("edit")(runs_debugging.edit_command)
runs_app.command("resume")(runs_debugging.resume_command)
runs_app.command("fork")(runs_debugging.fork_command)
runs_app.command("replay")(runs_debugging.replay_command)
runs_app.command("compare")(runs_debugging.compare_command)
