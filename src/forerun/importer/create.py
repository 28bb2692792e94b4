"""Creating: a Modelfile becomes a model of the store (spec 07 MF-8)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from forerun.base.errors import LoadError, RequestError, one_line
from forerun.base.options import OptionValue, check_options
from forerun.base.quantisation import Quantisation
from forerun.chat.dialects.families import Speech
from forerun.importer.drafts import Draft, open_draft, with_draft
from forerun.importer.layers import (
    Defaults,
    config_of,
    file_type,
    kept_kinds,
    over,
    planned_kinds,
    spoken,
    without_target_tensors,
)
from forerun.importer.progress import Reporter
from forerun.importer.pull import pull
from forerun.importer.run import ImportRun
from forerun.importer.sources import Source, folder_source, gguf_source, stored_source
from forerun.importer.speech import check_templates
from forerun.protocol.imports import ComposeRequest, CreateRequest
from forerun.store.blobs import Digest
from forerun.store.inventory import CONFIG
from forerun.store.manifest import PARAMS, Layer, ModelConfig
from forerun.store.messages import Message
from forerun.store.modelfile import Modelfile, check_modelfile, parse_modelfile
from forerun.store.names import ModelName
from forerun.store.sources import FolderSource, GgufSource, draft_folder, recognise
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from forerun.store.tensors import kinds_summary
from forerun.tokenizer.files import TOKENIZER_CONFIG

SLOW_ON_CPU = ("nvfp4", "mxfp4", "mxfp8")  # no kernel reads all that an import to one of them holds


@dataclass(frozen=True, slots=True)
class Parts:
    """What a Modelfile names, opened. Every mistake in it is found before anything is written."""

    base: Source | StoredModel
    draft: Draft | None
    quantised: Source | None = None  # the weights of a stored base, to be of another type

    @property
    def sources(self) -> list[Source]:
        """All that is read."""
        draft = None if self.draft is None else self.draft.source
        parts = (self.base, self.quantised, draft)
        return [part for part in parts if isinstance(part, Source)]

    def parameters(self, stated: dict[str, OptionValue]) -> dict[str, OptionValue]:
        """The base's and, over them, what the Modelfile states.

        The layers that a draft reads are named for that draft: they go with it (EGL-3).
        """
        inherited = {} if isinstance(self.base, Source) else self.base.parameters
        if self.draft is not None:
            inherited.pop("draft_layers", None)
        return {**inherited, **stated}


def create(request: CreateRequest | ComposeRequest, store: Store, reporter: Reporter) -> Digest:
    """Register the model that a Modelfile describes; the manifest's digest."""
    name = ModelName.parse(request.name)
    if name.on_hub:
        raise RequestError(
            f"{request.name!r} stands for a repository; give the model a name without a host"
        )
    modelfile = _modelfile(request)
    for warning in modelfile.warnings:
        reporter.status(warning)
    _check_template(modelfile.template)
    asked = Quantisation.parse(
        request.quantize, request.quantize_draft, has_draft=modelfile.draft is not None
    )
    parts = _open(modelfile, asked, Path(request.folder), store, reporter)
    _check_pair(name, modelfile, parts)
    for notice in chain.from_iterable(map(_notices, parts.sources)):
        reporter.status(notice)
    speech = _speech(modelfile, parts.base)
    with store.importing() as writer:
        run = ImportRun(store, writer, reporter)
        config, layers = with_draft(run, parts.draft, *_target(run, parts, modelfile))
        if modelfile.requires is not None:
            config = replace(config, requires=modelfile.requires)
        manifest = writer.publish(name, spoken(config, speech), layers)
    for source in parts.sources:
        run.forget(source)
    return Digest.of(manifest.encode())


def _modelfile(request: CreateRequest | ComposeRequest) -> Modelfile:
    if isinstance(request, CreateRequest):
        return parse_modelfile(request.modelfile, default_source=".")
    modelfile = Modelfile(
        source=request.source,
        draft=request.draft,
        parameters=check_options(request.parameters),
        template=request.template,
        system=request.system,
        licenses=tuple(request.licenses),
        messages=tuple(Message(each.role, each.content) for each in request.messages),
        renderer=request.renderer,
        parser=request.parser,
        requires=request.requires,
    )
    check_modelfile(modelfile)
    return modelfile


def _open(
    modelfile: Modelfile, asked: Quantisation, folder: Path, store: Store, reporter: Reporter
) -> Parts:
    named = recognise(modelfile.source, folder, store)
    draft = None
    if modelfile.draft is not None:
        draft = open_draft(draft_folder(modelfile.draft, folder), asked.draft)
    if isinstance(named, FolderSource):
        return Parts(folder_source(named.folder, quantize=asked.target), draft)
    if isinstance(named, GgufSource):
        return Parts(gguf_source(named.file, quantize=asked.target), draft)
    if not named.in_store:
        pull(named.name, store, reporter)
    model = store.get(named.name)
    return Parts(model, draft, stored_source(model, asked.target) if asked.target else None)


def _check_pair(name: ModelName, modelfile: Modelfile, parts: Parts) -> None:
    """Whether a draft fits its model, where the Modelfile brings one or says how it is used."""
    stated = modelfile.parameters
    if parts.draft is None and "draft_layers" not in stated:
        return
    from forerun.importer import check  # brings torch, which takes seconds

    check.check_pair(name, parts.base, parts.draft, parts.parameters(stated))


def _notices(source: Source) -> Iterator[str]:
    """What is not as plain as the wish for a type sounds."""
    kept, wanted = kept_kinds(source), source.quantize
    if kept:
        told = f"{len(kept)} ({kinds_summary(kept)})"
        yield f"tensors that are quantised already and keep their values: {told}"
    kinds = planned_kinds(source) if wanted else []
    if wanted and wanted not in kinds:
        stored = kinds_summary(kinds)
        yield f"no weight becomes {wanted}: no row is of whole groups; stored are {stored}"
    elif wanted in SLOW_ON_CPU:
        yield f"a CPU is slow with {wanted}; it is fast with int4 and int8"


def _check_template(template: str | None) -> None:
    """One that the request brings is the caller's own mistake, unlike a checkpoint's."""
    try:
        check_templates(template, {})
    except LoadError as error:
        raise RequestError(one_line(error)) from None


def _speech(modelfile: Modelfile, base: Source | StoredModel) -> Speech:
    """How the model will be spoken with. Refuses templates that are none, and unknown parsers."""
    if isinstance(base, Source):
        template = Defaults(template=modelfile.template).of(base).template
        return check_templates(
            template,
            base.checkpoint.files,
            parser=modelfile.parser or "",
            renderer=modelfile.renderer or "",
        )
    layers = {name: base.json_layer(name) for name in (CONFIG, TOKENIZER_CONFIG)}
    files = {name: base.read(layer) for name, layer in layers.items() if layer is not None}
    stated, family = base.config, check_templates(base.template, files)
    # What the base says because of its template, a model with another one need not say.
    parser = "" if stated.parser == family.parser else stated.parser
    renderer = "" if stated.renderer == family.renderer else stated.renderer
    return check_templates(
        base.template if modelfile.template is None else modelfile.template,
        files,
        parser=parser if modelfile.parser is None else modelfile.parser,
        renderer=renderer if modelfile.renderer is None else modelfile.renderer,
    )


def _target(run: ImportRun, parts: Parts, modelfile: Modelfile) -> tuple[ModelConfig, list[Layer]]:
    """The base's layers and the Modelfile's; an existing model's are reused unchanged, but for
    weights that are to be of another type."""
    base = parts.base
    defaults = Defaults(
        parameters=modelfile.parameters,
        template=modelfile.template,
        system=modelfile.system,
        licenses=modelfile.licenses,
        messages=modelfile.messages,
    )
    if isinstance(base, Source):
        layers = run.model_layers(base)
        return config_of(base), layers + defaults.of(base).layers(run.writer)
    run.writer.keep(base.manifest.blobs)
    # it is not what its base was pulled as any more, so a pull of this name fetches that again
    config, layers = replace(base.config, origin=None), list(base.manifest.layers)
    if parts.quantised is not None:
        config = replace(config, file_type=file_type(parts.quantised))
        layers = run.target_tensors(parts.quantised) + without_target_tensors(base)
    parameters = parts.parameters(modelfile.parameters)
    if parameters == base.parameters:
        return config, over(layers, replace(defaults, parameters={}).layers(run.writer))
    layers = [layer for layer in layers if layer.media_type != PARAMS]
    return config, over(layers, replace(defaults, parameters=parameters).layers(run.writer))
