"""Creating: a Modelfile becomes a model of the store (spec 07 MF-8)."""

from dataclasses import dataclass, replace
from pathlib import Path

from forerun.base.errors import LoadError, RequestError, one_line
from forerun.base.options import check_options
from forerun.base.quantisation import Quantisation
from forerun.importer.check import check_templates
from forerun.importer.drafts import Draft, open_draft, with_draft
from forerun.importer.layers import Defaults, config_of, over, without_target_tensors
from forerun.importer.progress import Reporter
from forerun.importer.pull import pull
from forerun.importer.run import ImportRun
from forerun.importer.sources import Source, folder_source, gguf_source, stored_source
from forerun.protocol.imports import ComposeRequest, CreateRequest
from forerun.store.blobs import Digest
from forerun.store.manifest import Layer, ModelConfig
from forerun.store.messages import Message
from forerun.store.modelfile import Modelfile, check_modelfile, parse_modelfile
from forerun.store.names import ModelName
from forerun.store.sources import FolderSource, GgufSource, draft_folder, recognise
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from forerun.tokenizer.files import TOKENIZER_CONFIG


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
    capabilities = _capabilities(modelfile, parts.base)
    with store.importing() as writer:
        run = ImportRun(store, writer, reporter)
        config, layers = with_draft(run, parts.draft, *_target(run, parts, modelfile))
        manifest = writer.publish(name, _stated(config, modelfile, capabilities), layers)
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


def _check_template(template: str | None) -> None:
    """One that the request brings is the caller's own mistake, unlike a checkpoint's."""
    try:
        check_templates(template, {})
    except LoadError as error:
        raise RequestError(one_line(error)) from None


def _capabilities(modelfile: Modelfile, base: Source | StoredModel) -> tuple[str, ...]:
    """What the model will be able to do. Refuses templates that are none, and unknown parsers."""
    if isinstance(base, Source):
        template = Defaults(template=modelfile.template).of(base).template
        return check_templates(template, base.checkpoint.files, parser=modelfile.parser or "")
    template = base.template if modelfile.template is None else modelfile.template
    parser = base.config.parser if modelfile.parser is None else modelfile.parser
    layer = base.json_layer(TOKENIZER_CONFIG)
    files = {} if layer is None else {TOKENIZER_CONFIG: base.read(layer)}
    return check_templates(template, files, parser=parser)


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
    if defaults.parameters:
        defaults = replace(defaults, parameters={**base.parameters, **defaults.parameters})
    # it is not what its base was pulled as any more, so a pull of this name fetches that again
    config, layers = replace(base.config, origin=None), list(base.manifest.layers)
    if parts.quantised is not None:
        config = replace(config, file_type=parts.quantised.quantize)
        layers = run.target_tensors(parts.quantised) + without_target_tensors(base)
    return config, over(layers, defaults.layers(run.writer))


def _stated(
    config: ModelConfig, modelfile: Modelfile, capabilities: tuple[str, ...]
) -> ModelConfig:
    """What the Modelfile says itself; for the rest the base's word stands."""
    return replace(
        config,
        capabilities=capabilities,
        requires=config.requires if modelfile.requires is None else modelfile.requires,
        parser=config.parser if modelfile.parser is None else modelfile.parser,
        renderer=config.renderer if modelfile.renderer is None else modelfile.renderer,
    )
