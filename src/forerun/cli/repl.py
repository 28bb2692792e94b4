"""The interactive conversation: a prompt with history, and commands that start with a slash."""

from contextlib import ExitStack

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory

from forerun.base.errors import ForerunError
from forerun.cli.chat import Chat, answer, described, write_now
from forerun.cli.progress import loaded, pull_if_absent
from forerun.cli.slash import SlashCommands
from forerun.scheduler.runners import LoadOptions, RunnerProcess
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
        options: LoadOptions,
        *,
        chat: Chat,
        verbose: bool,
    ) -> None:
        self.model = model
        self.settings = settings
        self.options = options
        self.chat = chat
        self.verbose = verbose
        self._resources = ExitStack()
        self._runner: RunnerProcess | None = None
        self._commands = SlashCommands(self)
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(_history_file(settings)),
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
        pull_if_absent(model, self.settings)
        fresh = ExitStack()
        self._runner = fresh.enter_context(loaded(model, self.settings, self.options))
        self._resources.close()
        self._resources = fresh
        self.model = model

    def _read(self) -> str | None:
        """One message; several lines between triple quotes. None at the end of input."""
        try:
            text = self._session.prompt(">>> ")
            if not text.lstrip().startswith(QUOTES):
                return text
            body = text.lstrip()[len(QUOTES) :]
            while QUOTES not in body:
                body += "\n" + self._session.prompt("... ")
            return body.partition(QUOTES)[0]
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
        except ForerunError as error:
            click.echo(f"Error: {error}", err=True)
            if self._runner is None or self._runner.exited:
                self.load(self.model)
        return True

    def _answer(self, text: str) -> None:
        assert self._runner is not None, "a model is loaded before the first message"
        said, figures = answer(self._runner.connection, self.chat.request(text), write_now)
        write_now("\n\n")
        self.chat.answered(text, said)
        if figures is not None and self.verbose:
            click.echo(described(figures) + "\n", err=True)


def _history_file(settings: Settings) -> str:
    settings.models.mkdir(parents=True, exist_ok=True)
    return str(settings.models / "history")
