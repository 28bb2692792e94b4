"""The `forerun` command: finds the command's file, and turns errors into one line."""

import difflib
import importlib
import io
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
    "serve": "Answer clients of Ollama's and OpenAI's APIs.",
    "ps": "List the models that a server has loaded.",
    "cache": "Show what a loaded model keeps of conversations.",
    "stop": "Unload a model from the server.",
    "pull": "Fetch a model.",
    "create": "Make a model from a Modelfile.",
    "list": "List the models that are here.",
    "show": "Show what a model consists of, or what models run on here.",
    "rm": "Remove models.",
    "cp": "Give a model a second name.",
    "train-draft": "Train a draft head for a model.",
    "bench": "Measure a model's speed on this machine.",
    "help": "Help on a command, or on the environment.",
}
INTERRUPTED = 130  # the shell's convention for Ctrl-C


class LazyGroup(click.Group):
    """Knows every command by name and help line without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"forerun.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown command is answered with the nearest one and the list."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            known = ", ".join(COMMANDS)
            raise click.UsageError(f"no command {args[0]!r}; {hint}there are {known}")
        return super().resolve_command(ctx, args)

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
    configure(context.obj.log or "warning", context.obj.log_format)


def main() -> None:
    """Entry point: exits 0 on success, 1 on an error, 2 on bad usage, 130 on Ctrl-C."""
    _open_streams()
    sys.exit(_outcome())


def _open_streams() -> None:
    """Closed streams swallow what is written; a terminal without a character shows another."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the process's life
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _outcome() -> int:
    try:
        cli.main(prog_name="forerun", standalone_mode=False)
        sys.stdout.flush()
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
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        _write_no_more()
        return 1
    except OSError as error:
        _write_no_more()
        where = f" {error.filename}" if error.filename else ""
        click.echo(f"Error: the system refused{where}: {error.strerror}", err=True)
        return 1
    return 0


def _write_no_more() -> None:
    """Standard output takes nothing any more; Python would complain of that again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
