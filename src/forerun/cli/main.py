"""The `forerun` command: finds the command's file, and turns errors into one line."""

import importlib
import os
import sys

import click

from forerun import __version__
from forerun.base.errors import ForerunError
from forerun.base.logs import configure
from forerun.settings import Settings

# name -> what it does; the file of the command is imported when it is run, or its help is asked for
COMMANDS = {
    "run": "Chat with a model, or answer one prompt.",
    "pull": "Fetch a model.",
    "create": "Make a model from a Modelfile.",
    "list": "List the models that are here.",
    "show": "Show what a model consists of.",
    "rm": "Remove models.",
    "cp": "Give a model a second name.",
    "bench": "Measure a model's speed on this machine.",
    "help": "Help on a command.",
}
INTERRUPTED = 130  # the shell's convention for Ctrl-C


class LazyGroup(click.Group):
    """Knows every command by name and help line without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"forerun.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Try: forerun run smollm2:135m "Why is the sky blue?"',
)
@click.version_option(__version__, "-v", "--version", message="forerun %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run large language models on your own machine, and run ahead of them."""
    context.obj = Settings.from_environment()
    configure(context.obj.log, context.obj.log_format)


def main() -> None:
    """Entry point: exits 0 on success, 1 on an error, 2 on bad usage, 130 on Ctrl-C."""
    sys.exit(_outcome())


def _outcome() -> int:
    try:
        cli.main(prog_name="forerun", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ForerunError as error:
        click.echo(f"Error: {error}", err=True)
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`| head`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
