"""The interactive conversation: a prompt with history, and commands that start with a slash."""

from contextlib import ExitStack

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from forerun.base.errors import ForerunError
from forerun.cli.chat import Chat, Screen, Shown, answer, cut_short, described, write_now
from forerun.cli.places import OpenModel, Place
from forerun.cli.run import load_options
from forerun.cli.slash import SlashCommands
from forerun.protocol.cache import CacheReport
from forerun.settings import Settings
from forerun.store.names import ModelName

QUOTES = '"""'


class Repl:
    """Reads a line, answers it, and reads the next, until /bye or the end of input.

    Ctrl-C stops an answer, or clears the line being typed; it never ends the program.
    """

    def __init__(
        self,
        model: ModelName,
        settings: Settings,
        place: Place,
        *,
        chat: Chat,
        shown: Shown,
    ) -> None:
        self.model = model
        self.settings = settings
        self.place = place
        self.chat = chat
        self.shown = shown
        self._resources = ExitStack()
        self._opened: OpenModel | None = None
        self._commands = SlashCommands(self)
        self._session: PromptSession[str] = PromptSession(
            history=_history(settings),
            completer=WordCompleter(self._commands.names, sentence=True),
            complete_while_typing=False,
        )

    def run(self) -> None:
        """Converse until the user leaves."""
        try:
            self.load(self.model)
            click.echo("Type a message, /? for help, /bye to leave.", err=True)
            while (text := self._read()) is not None:
                if not self._handle(text):
                    return
        finally:
            self._resources.close()

    def load(self, model: ModelName) -> None:
        """Serve `model` from now on; the turns so far stay."""
        fresh = ExitStack()
        options = load_options(self.chat.options)
        self._opened = fresh.enter_context(self.place.opened(model, options))
        self._resources.close()
        self._resources = fresh
        self.model = model

    def cache(self, *, clear: bool = False) -> CacheReport:
        """What the model has cached, after a clear if that is asked for."""
        assert self._opened is not None, "a model is loaded before the first message"
        return self._opened.cache(clear=clear)

    def _read(self) -> str | None:
        """One message; an open triple quote goes on over lines. None at the end of input."""
        try:
            text = self._session.prompt(">>> ")
            while text.count(QUOTES) % 2:
                text += "\n" + self._session.prompt("... ")
            if text.lstrip().startswith(QUOTES):
                return text.lstrip()[len(QUOTES) :].partition(QUOTES)[0]
            return text
        except KeyboardInterrupt:
            click.echo("(Ctrl-D or /bye to leave)", err=True)
            return ""
        except EOFError:
            return None

    def _handle(self, text: str) -> bool:
        """Do what a line asks for; False ends the conversation. Errors are shown, not fatal."""
        try:
            if text.startswith("/"):
                return self._commands.run(text)
            if text.strip():
                self._answer(text)
        except KeyboardInterrupt:
            click.echo("(stopped)", err=True)
        except ForerunError as error:
            click.echo(f"Error: {error}", err=True)
            if self._opened is None or self._opened.gone:
                self.load(self.model)
        return True

    def _answer(self, text: str) -> None:
        assert self._opened is not None, "a model is loaded before the first message"
        request = self.chat.request(text)
        screen = Screen(hide_thinking=self.shown.hide_thinking)
        done = answer(self._opened, request, screen)
        write_now("\n\n")
        self.chat.answered(text, screen.message())
        if done is not None and (note := cut_short(done, request)) is not None:
            click.echo(note + "\n/clear forgets the conversation and makes room.\n", err=True)
        if done is not None and self.shown.verbose:
            click.echo(described(done.figures) + "\n", err=True)


def _history(settings: Settings) -> History:
    """What was typed in earlier conversations too, where the store's folder can be written."""
    path = settings.models / "history"
    try:
        settings.models.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # what somebody typed is nobody else's
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
