"""`forerun help [COMMAND]`."""

import click


@click.command("help")
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Help on a command, or the list of commands."""
    parent = context.parent
    assert parent is not None, "help is a command of a group"
    group = parent.command
    assert isinstance(group, click.Group)
    if name is None:
        click.echo(parent.get_help())
        return
    found = group.get_command(parent, name)
    if found is None:
        raise click.UsageError(
            f"no command {name!r}; there are {', '.join(group.list_commands(parent))}"
        )
    with click.Context(found, info_name=name, parent=parent) as own:
        click.echo(found.get_help(own))
