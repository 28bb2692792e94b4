"""`forerun run NAME [PROMPT]`: one answer, or a conversation."""

import sys

import click

from forerun.base.errors import RequestError
from forerun.base.options import OPTIONS, OptionValue, check_names, parse_option
from forerun.cli.chat import Chat, Screen, Shown, answer, cut_short, described, write_now
from forerun.cli.places import OpenModel
from forerun.cli.reach import place_of
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions
from forerun.settings import Settings
from forerun.store.names import ModelName

THINK_LEVELS = ("low", "medium", "high", "max")


@click.command("run")
@click.argument("name")
@click.argument("prompt", nargs=-1)
@click.option("--system", help="System prompt, instead of the model's own.")
@click.option(
    "-o",
    "--option",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the request, such as temperature=0; may be repeated.",
)
@click.option(
    "--draft",
    type=click.Choice(OPTIONS["draft"].choices),
    help="Which drafter runs ahead of the model, as -o draft=NAME.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without a template.")
@click.option(
    "--think",
    metavar="LEVEL",
    help="true, false, low, medium, high or max, for models that think.",
)
@click.option("--hide-thinking", is_flag=True, help="Do not show what the model thinks.")
@click.option("--verbose", is_flag=True, help="Show counts and speeds after each answer.")
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    prompt: tuple[str, ...],
    *,
    system: str | None,
    pairs: tuple[str, ...],
    draft: str | None,
    raw: bool,
    think: str | None,
    hide_thinking: bool,
    verbose: bool,
) -> None:
    """Chat with a model; with a PROMPT or text piped in, answer once and end.

    A server that is up (`forerun serve`) answers; without one the model is loaded for this command
    alone. A model that is not here yet is pulled first. The answer goes to standard output,
    thinking and figures to standard error.
    """
    model = ModelName.parse(name)
    options = parse_pairs(pairs if draft is None else (*pairs, f"draft={draft}"))
    text = _whole_prompt(prompt)
    if raw and (text is None or system is not None or think is not None):
        raise RequestError(
            "--raw continues a PROMPT; it takes no --system, no --think and is no conversation"
        )
    chat = Chat(system=system, options=options, think=parse_think(think))
    shown = Shown(verbose=verbose, hide_thinking=hide_thinking)
    place = place_of(settings)
    if text is None:
        from forerun.cli.repl import Repl  # prompt_toolkit takes 100 ms to import

        Repl(model, settings, place, chat=chat, shown=shown).run()
        return
    request = CompletionRequest(prompt=text, options=options) if raw else chat.request(text)
    with place.opened(model, load_options(options)) as opened:
        _answer_once(opened, request, shown)


def _answer_once(model: OpenModel, request: CompletionRequest, shown: Shown) -> None:
    done = answer(model, request, Screen(hide_thinking=shown.hide_thinking))
    write_now("\n")
    if done is None:
        raise KeyboardInterrupt
    if (note := cut_short(done, request)) is not None:
        click.echo(note, err=True)
    if shown.verbose:
        click.echo(described(done.figures), err=True)


def parse_think(text: str | None) -> bool | str | None:
    """The level of `--think` and `/set think`. RequestError for what is none."""
    if text is None or text in THINK_LEVELS:
        return text
    if text not in ("true", "false"):
        raise RequestError(
            f"think is {text!r}; it must be true, false or one of {', '.join(THINK_LEVELS)}"
        )
    return text == "true"


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, OptionValue]:
    """The options of `-o NAME=VALUE`, checked; a list option collects."""
    options: dict[str, OptionValue] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise RequestError(f"-o {pair!r} has no value; write -o NAME=VALUE")
        check_names([name.strip()])
        value = parse_option(name.strip(), text.strip())
        former = options.get(name.strip())
        if isinstance(former, list) and isinstance(value, list):
            value = former + value
        options[name.strip()] = value
    return options


def load_options(options: dict[str, OptionValue]) -> LoadOptions:
    """What among `options` is fixed when a model is loaded."""
    given = {name: options[name] for name in options if OPTIONS[name].load_time}
    num_ctx, num_thread = given.get("num_ctx"), given.get("num_thread")
    return LoadOptions(
        num_ctx=num_ctx if isinstance(num_ctx, int) else None,
        num_thread=num_thread if isinstance(num_thread, int) else None,
        device="cpu" if given.get("num_gpu") == 0 else None,
    )


def _whole_prompt(words: tuple[str, ...]) -> str | None:
    """The arguments, then what is piped in; None: there is neither, so this is a conversation."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else _read_pipe()
    parts = [part for part in (" ".join(words), piped) if part.strip()]
    if not parts and not words and sys.stdin is not None and sys.stdin.isatty():
        return None
    if not parts:
        raise RequestError("the prompt is empty; give it as an argument or pipe it in")
    return "\n".join(parts)


def _read_pipe() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8: byte {error.start} is {data[error.start]:#04x}; "
            "convert it first, for example with iconv"
        ) from None
