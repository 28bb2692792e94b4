"""`forerun train-draft MODEL`: a draft head for a model that has none."""

import math
import sys
from pathlib import Path

import click

from forerun.base.errors import RunnerError
from forerun.cli.list import table
from forerun.cli.progress import pull_if_absent, shown
from forerun.protocol.training import TrainedHead, TrainRequest
from forerun.scheduler.training import run_training
from forerun.settings import Settings
from forerun.store.names import ModelName

_MOST_MINUTES = 60 * 24 * 365  # a year


def _no_nan(context: click.Context, option: click.Parameter, minutes: float) -> float:
    """Refuses what click takes to lie in every range."""
    if math.isnan(minutes):
        raise click.BadParameter("nan is no number of minutes.", context, option)
    return minutes


@click.command("train-draft")
@click.argument("name", metavar="MODEL")
@click.option(
    "--text",
    "texts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A file with prompts of yours, blank lines between them, answered before the packaged "
    "ones; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the head.  [default: MODEL-draft]",
)
@click.option(
    "--budget-minutes",
    "minutes",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0, _MOST_MINUTES, min_open=True),
    callback=_no_nan,
    help="Time for all of it, but never less than the first sequences of text take: some minutes "
    "on a CPU.",
)
@click.option(
    "--start",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of a head for MODEL to go on from, its vocabulary included.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to train.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    *,
    texts: tuple[Path, ...],
    out: Path | None,
    minutes: float,
    start: Path | None,
    device: str | None,
    seed: int,
) -> None:
    """Train a head that drafts for MODEL, on text that MODEL writes itself.

    Interrupted, the same command goes on where it was. What comes out is a folder for the line
    DRAFT of a Modelfile.
    """
    model = ModelName.parse(name)
    pull_if_absent(model, settings)
    folder = out or Path(f"{model.model}-{model.tag}-draft")
    request = TrainRequest(
        name=str(model),
        out=str(folder.absolute()),
        minutes=minutes,
        texts=[str(path.absolute()) for path in texts],
        device=device,
        seed=seed,
        start=None if start is None else str(start.absolute()),
    )
    trained = _watched(request, settings)
    rows = [
        [str(place + 1), f"{rate:.3f}", f"{tokens:.2f}"]
        for place, (rate, tokens) in enumerate(
            zip(trained.acceptance, trained.tokens_a_round, strict=True)
        )
    ]
    click.echo(table(["DRAFT", "ACCEPTED", "TOKENS A ROUND"], rows))
    click.echo(f"a Modelfile serves it:\n  FROM {model}\n  DRAFT {folder}", err=True)


def _watched(request: TrainRequest, settings: Settings) -> TrainedHead:
    with shown(sys.stderr.isatty()) as show:
        for event in run_training(request, settings):
            if isinstance(event, TrainedHead):
                return event
            show(event.status, 100 * event.completed // max(event.total, 1), 100)
    raise RunnerError("the training ended without a head; run it again to go on")
