"""The slash commands of the conversation: what each does, and its help."""

from collections.abc import Callable
from typing import Protocol

import click

from forerun.base.errors import RequestError
from forerun.base.options import parse_option
from forerun.cli.chat import Chat
from forerun.cli.progress import import_model
from forerun.cli.show import SECTIONS, text_of
from forerun.protocol.imports import CreateRequest
from forerun.settings import Settings
from forerun.store.messages import Message
from forerun.store.modelfile import Modelfile, format_modelfile
from forerun.store.names import ModelName
from forerun.store.store import Store


class Conversation(Protocol):
    """What the commands act on."""

    model: ModelName
    settings: Settings
    chat: Chat
    verbose: bool

    def load(self, model: ModelName) -> None: ...


HELP = '''\
/set parameter NAME VALUE   an option of the answers to come, such as temperature 0
/set system TEXT            a system prompt instead of the model's own
/set verbose | quiet        counts and speeds after each answer, or not
/show info | parameters | template | system | license | modelfile
/clear                      forget the conversation so far
/save NAME                  keep model, parameters, system prompt and conversation as NAME
/load NAME                  go on with another model
/bye                        leave (so does Ctrl-D)
"""                         begins and ends a message of several lines
Ctrl-C                      stops an answer\
'''


class SlashCommands:
    """Runs one line that starts with a slash."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._table: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/clear": self._clear,
            "/save": self._save,
            "/load": self._load,
            "/help": self._help,
            "/?": self._help,
        }

    @property
    def names(self) -> list[str]:
        """Every command, for completion."""
        return [*self._table, "/bye"]

    def run(self, line: str) -> bool:
        """Run it; False for /bye. Raises RequestError for what it does not know."""
        name, _, rest = line.strip().partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            return False
        command = self._table.get(name)
        if command is None:
            raise RequestError(f"no command {name!r}; /? lists them")
        command(rest.strip())
        return True

    def _set(self, rest: str) -> None:
        what, _, value = rest.partition(" ")
        chat = self._conversation.chat
        if what == "system":
            chat.system = value.strip().strip('"') or None
        elif what in ("verbose", "quiet"):
            self._conversation.verbose = what == "verbose"
        elif what == "parameter":
            name, _, text = value.strip().partition(" ")
            chat.options[name] = parse_option(name, text.strip())
        else:
            raise RequestError(f"/set {what}: write /set parameter, system, verbose or quiet")

    def _show(self, rest: str) -> None:
        if rest not in SECTIONS:
            raise RequestError(f"/show {rest}: write one of {', '.join(SECTIONS)}")
        model = Store(self._conversation.settings.models).get(self._conversation.model)
        click.echo(text_of(model, rest))
        chat = self._conversation.chat
        if rest == "parameters" and chat.options:
            click.echo("set here:\n" + "\n".join(f"{k} {v}" for k, v in chat.options.items()))
        if rest == "system" and chat.system is not None:
            click.echo(f"set here: {chat.system}")

    def _clear(self, _rest: str) -> None:
        self._conversation.chat.turns.clear()
        click.echo("The conversation is forgotten.", err=True)

    def _save(self, rest: str) -> None:
        if not rest:
            raise RequestError("/save needs a name")
        chat, settings = self._conversation.chat, self._conversation.settings
        text = format_modelfile(
            Modelfile(
                source=str(self._conversation.model),
                parameters=dict(chat.options),
                system=chat.system,
                messages=tuple(Message(turn.role, str(turn.content)) for turn in chat.turns),
            )
        )
        request = CreateRequest(name=rest, modelfile=text, folder=str(settings.models))
        click.echo(f"saved {import_model(request, settings)}", err=True)

    def _load(self, rest: str) -> None:
        if not rest:
            raise RequestError("/load needs a model's name")
        self._conversation.load(ModelName.parse(rest))

    def _help(self, _rest: str) -> None:
        click.echo(HELP)
