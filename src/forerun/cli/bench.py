"""`forerun bench NAME`: speed and memory of a model on this machine, through its own runner."""

import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from forerun.base.errors import RunnerError
from forerun.base.units import format_bytes, format_seconds
from forerun.cli.list import table
from forerun.cli.progress import loaded, pull_if_absent, shown
from forerun.protocol.events import Done, Figures
from forerun.protocol.requests import CompletionRequest, TokenizeRequest
from forerun.scheduler.connection import Connection
from forerun.scheduler.runners import LoadOptions, RunnerProcess
from forerun.settings import Settings
from forerun.store.names import ModelName

WORDS = "the of and to in is you that it he was for on are as with his they at be this have".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the runs."""

    model: str
    prompt_tokens: int
    new_tokens: int
    runs: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_spread: tuple[float, float]  # slowest and fastest run
    first_token_s: float
    load_s: float
    peak_memory_bytes: int  # of the runner process: resident, mapped weights included


@click.command("bench")
@click.argument("name")
@click.option("--prompt-tokens", default=512, show_default=True, type=click.IntRange(2))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of the table.")
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    *,
    prompt_tokens: int,
    new_tokens: int,
    runs: int,
    as_json: bool,
) -> None:
    """Measure prefill and decode speed, time to the first token, and peak memory.

    Greedy and without drafts, with a prompt of random words that differs from run to run, so that
    nothing is cached; a run before the first counted one warms up.
    """
    model = ModelName.parse(name)
    pull_if_absent(model, settings)
    options = LoadOptions(num_ctx=prompt_tokens + new_tokens + 1)
    with loaded(model, settings, options) as runner:
        with shown(sys.stderr.isatty(), lines=False) as show:
            figures = []
            for number in range(runs + 1):
                show("measuring", number * 100 // (runs + 1), 100)
                figures.append(_run_once(runner.connection, prompt_tokens, new_tokens, seed=number))
            del figures[0]
        measured = _summary(str(model), figures, _peak_bytes(runner))
    click.echo(json.dumps(asdict(measured)) if as_json else _table(measured))


def _run_once(connection: Connection, prompt_tokens: int, new_tokens: int, *, seed: int) -> Figures:
    request = CompletionRequest(
        prompt_ids=_prompt(connection, prompt_tokens, seed),
        options={
            **{"temperature": 0, "repeat_penalty": 1, "draft": "off"},
            "num_predict": new_tokens,
        },
        ignore_eos=True,
    )
    for event in connection.complete(request):
        if isinstance(event, Done):
            return event.figures
    raise RunnerError("the answer ended without figures")


def _prompt(connection: Connection, count: int, seed: int) -> list[int]:
    """`count` tokens of plain words in random order."""
    chance = random.Random(seed)
    text = " ".join(chance.choice(WORDS) for _ in range(count))
    return connection.tokenize(TokenizeRequest(text=text, special=False))[:count]


def _peak_bytes(runner: RunnerProcess) -> int:
    """Peak resident memory of the runner; 0 where the system does not tell."""
    status = Path(f"/proc/{runner.pid}/status")
    if not status.exists():
        return 0
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _summary(model: str, figures: list[Figures], peak_bytes: int) -> Measured:
    decode = [f.generated_tokens / f.generation_seconds for f in figures]
    prefill = [(f.prompt_tokens - f.cached_tokens) / f.prompt_seconds for f in figures]
    return Measured(
        model=model,
        prompt_tokens=figures[0].prompt_tokens,
        new_tokens=figures[0].generated_tokens,
        runs=len(figures),
        prefill_tokens_per_s=statistics.median(prefill),
        decode_tokens_per_s=statistics.median(decode),
        decode_spread=(min(decode), max(decode)),
        first_token_s=statistics.median(f.first_token_seconds for f in figures),
        load_s=figures[0].load_seconds,
        peak_memory_bytes=peak_bytes,
    )


def _table(measured: Measured) -> str:
    slowest, fastest = measured.decode_spread
    spread = f"{slowest:.1f} to {fastest:.1f} over {measured.runs} runs"
    rows = [
        [
            "prefill",
            f"{measured.prefill_tokens_per_s:.0f} tokens/s",
            f"{measured.prompt_tokens} tokens",
        ],
        [
            "decode",
            f"{measured.decode_tokens_per_s:.1f} tokens/s",
            f"{measured.new_tokens} tokens, {spread}",
        ],
        ["first token", format_seconds(measured.first_token_s), ""],
        ["load", format_seconds(measured.load_s), ""],
        ["peak memory", format_bytes(measured.peak_memory_bytes), "resident, weights included"],
    ]
    return table([measured.model, "MEDIAN", ""], rows)
