"""`forerun create NAME [-f Modelfile]`: a model from a folder, a GGUF file or another model."""

from pathlib import Path

import click

from forerun.base.quantisation import KINDS, Quantisation
from forerun.cli.progress import import_model
from forerun.cli.reach import unload_replaced
from forerun.protocol.imports import CreateRequest
from forerun.settings import Settings
from forerun.store.modelfile import parse_modelfile, read_modelfile_text
from forerun.store.names import ModelName


@click.command("create")
@click.argument("name")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path),
    default=Path("Modelfile"),
    show_default=True,
    help="The Modelfile; paths in it start at its folder.",
)
@click.option(
    "-q",
    "--quantize",
    default="",
    metavar="TYPE",
    help=f"Quantise float weights to TYPE: {', '.join(KINDS)} (q4 and fp4 are int4, q8 and fp8 "
    "int8). Without it weights stay as they come.",
)
@click.option(
    "--quantize-draft",
    "--draft-quantize",
    "quantize_draft",
    default="",
    metavar="TYPE",
    help="The same for the weights of DRAFT.",
)
@click.pass_obj
def command(
    settings: Settings, name: str, *, path: Path, quantize: str, quantize_draft: str
) -> None:
    """Make a model from a Modelfile.

    \b
    FROM ./folder-or-file.gguf       what it is made from; a model's name works too
    PARAMETER temperature 0.2        any option; `stop` may be repeated
    SYSTEM \"\"\"You are brief.\"\"\"
    TEMPLATE \"\"\"...\"\"\"               a Jinja chat template
    DRAFT ./folder                   a draft head, or a small model with the same tokenizer
    MESSAGE user Hello               turns put before every chat
    LICENSE \"\"\"...\"\"\"
    """
    text = read_modelfile_text(path)  # once: it may be a pipe
    # What is wrong with it is said before a process is started.
    modelfile = parse_modelfile(text, default_source=".")
    asked = Quantisation.parse(quantize, quantize_draft, has_draft=modelfile.draft is not None)
    request = CreateRequest(
        name=name,
        modelfile=text,
        folder=str(path.parent.absolute()),
        quantize=asked.target,
        quantize_draft=asked.draft,
    )
    created = import_model(request, settings)
    unload_replaced(ModelName.parse(created), settings)
    click.echo(f"created {created}", err=True)
