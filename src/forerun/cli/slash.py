"""The slash commands of the conversation: what each does, and its help."""

from collections.abc import Callable
from typing import Protocol

import click

from forerun.base.errors import RequestError
from forerun.base.options import REQUEST_OPTIONS, check_names, check_option, parse_option
from forerun.base.units import format_bytes
from forerun.cli.cache_picture import show
from forerun.cli.chat import Chat, Shown
from forerun.cli.places import Place
from forerun.cli.run import parse_think
from forerun.cli.sections import SECTIONS
from forerun.protocol.cache import CacheReport
from forerun.store.messages import Message
from forerun.store.modelfile import Modelfile
from forerun.store.names import ModelName
from forerun.store.parameters import parameter_texts

QUOTES = '"""'


class Conversation(Protocol):
    """What the commands act on."""

    model: ModelName
    place: Place
    chat: Chat
    shown: Shown

    def load(self, model: ModelName) -> None: ...

    def cache(self, *, clear: bool = False) -> CacheReport: ...


HELP = '''\
/set parameter NAME VALUE   an option of answers to come: temperature 0
/set parameter NAME         back to the model's own
/set system TEXT            a system prompt instead of the model's own
/set think | nothink        let a model think that can, or not; a level may
                            follow: /set think high
/set verbose | quiet        counts and speeds after each answer, or not
/show                       the model; or one of: parameters, template,
                            system, license, modelfile
/cache                      what the model keeps of conversations
/cache clear                let the model forget them all
/clear                      forget the conversation so far
/save NAME                  keep model, parameters, system prompt and
                            conversation as the new model NAME
/load NAME                  go on with another model
/bye                        leave (so does Ctrl-D)
"""                         begins and ends a text of several lines
Ctrl-C                      stops an answer\
'''


class SlashCommands:
    """Runs one line that starts with a slash."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._table: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/cache": self._cache,
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
            text = value.strip()
            for quote in (QUOTES, '"'):
                text = text.removeprefix(quote).removesuffix(quote)
            chat.system = text or None
            _say("system prompt set" if text else "the model's own system prompt")
        elif what in ("verbose", "quiet"):
            _refuse(value, f"/set {what}")
            self._conversation.shown.verbose = what == "verbose"
            _say(what)
        elif what in ("think", "nothink"):
            if what == "nothink":
                _refuse(value, "/set nothink")
            chat.think = parse_think(value.strip() or "true") if what == "think" else False
            _say(f"think {str(chat.think).lower()}")
        elif what == "parameter":
            self._set_parameter(value.strip())
        else:
            raise RequestError(
                "write /set parameter NAME VALUE, /set system TEXT, think, nothink, verbose or "
                "quiet"
            )

    def _set_parameter(self, pair: str) -> None:
        name, _, text = pair.partition(" ")
        if not name:
            raise RequestError(
                f"write /set parameter NAME VALUE; names: {', '.join(REQUEST_OPTIONS)}"
            )
        check_names([name])
        options = self._conversation.chat.options
        if text.strip():
            options[name] = parse_option(name, text.strip())
            _say(f"{name} {' '.join(parameter_texts(options[name]))}")
        else:
            check_option(name, None)
            options.pop(name, None)
            _say(f"{name} as the model has it")

    def _show(self, rest: str) -> None:
        which = rest or "info"
        if which not in SECTIONS:
            raise RequestError(f"write /show, or /show and one of {', '.join(SECTIONS)}")
        click.echo(self._conversation.place.section(self._conversation.model, which))
        chat = self._conversation.chat
        if which == "parameters":
            for name, value in chat.options.items():
                click.echo(f"{name} {' '.join(parameter_texts(value))}  (set here)")
        if which == "system" and chat.system is not None:
            click.echo(f"set here: {chat.system}")

    def _cache(self, rest: str) -> None:
        if rest not in ("", "clear"):
            raise RequestError(f"write /cache, or /cache clear; {rest!r} is neither")
        report = self._conversation.cache(clear=rest == "clear")
        if rest:
            _say(f"freed {format_bytes(report.freed_bytes)}")
        show(str(self._conversation.model), report)

    def _clear(self, rest: str) -> None:
        _refuse(rest, "/clear")
        self._conversation.chat.turns.clear()
        _say("the conversation is forgotten here; /cache clear lets the model forget it, too")

    def _save(self, rest: str) -> None:
        if not rest:
            raise RequestError("/save needs a name")
        chat, place = self._conversation.chat, self._conversation.place
        name = ModelName.parse(rest)
        if place.has(name):
            raise RequestError(f"there is a model {rest} already; choose another name")
        made = Modelfile(
            source=str(self._conversation.model),
            parameters=dict(chat.options),
            system=chat.system,
            messages=tuple(Message(turn.role, str(turn.content)) for turn in chat.turns),
        )
        place.create(name, made)
        _say(f"saved {name}")

    def _load(self, rest: str) -> None:
        if not rest:
            raise RequestError("/load needs a model's name")
        self._conversation.load(ModelName.parse(rest))
        _say(f"now {rest}")

    def _help(self, _rest: str) -> None:
        click.echo(HELP)


def _refuse(rest: str, command: str) -> None:
    """For a command that is complete as it is."""
    if rest.strip():
        raise RequestError(f"{command} takes no {rest.strip()!r}; write {command} alone")


def _say(text: str) -> None:
    """What was done, apart from what the model says."""
    click.echo(f"({text})", err=True)
