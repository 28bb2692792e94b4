"""`forerun help [COMMAND]`, and `forerun help environment`."""

import click

from forerun.settings import VARIABLES

ENVIRONMENT = "environment"


@click.command("help")
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Help on a command, or the list of commands.

    `forerun help environment` lists the variables that are read.
    """
    parent = context.parent
    assert parent is not None, "help is a command of a group"
    group = parent.command
    assert isinstance(group, click.Group)
    if name is None:
        click.echo(parent.get_help())
        return
    if name == ENVIRONMENT:
        click.echo(_variables())
        return
    found = group.get_command(parent, name)
    if found is None:
        raise click.UsageError(
            f"no command {name!r}; there are {', '.join(group.list_commands(parent))}"
        )
    with click.Context(found, info_name=name, parent=parent) as own:
        click.echo(found.get_help(own))


def _variables() -> str:
    """Every variable and what it sets."""
    width = max(map(len, VARIABLES))
    lines = [f"{name:<{width}}  {meaning}" for name, meaning in VARIABLES.items()]
    return "\n".join([*lines, "", "OLLAMA_* variables are not read."])
