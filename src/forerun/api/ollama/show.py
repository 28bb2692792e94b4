"""`/api/show`: what a model consists of (08 API-2)."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct, read_body
from forerun.api.ollama.details import Details, details_of
from forerun.api.ollama.named import NamedRequest
from forerun.api.services import Services
from forerun.base.options import OptionValue
from forerun.protocol.codec import encode
from forerun.store.describe import chat_template, describe, tokenizer_kind
from forerun.store.modelfile import format_modelfile
from forerun.store.names import ModelName
from forerun.store.parameters import parameter_texts
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from forerun.store.tensors import LogicalTensor, prevailing_kind

NAME_WIDTH = 30  # of the column of parameters' names
TOKENIZERS = {"BPE": "gpt2", "Unigram": "llama", "WordPiece": "bert"}  # as GGUF calls them

Info = dict[str, str | int | list[int]]


class ShowRequest(NamedRequest):
    verbose: bool | None = None


class ShownTensor(WireStruct):
    name: str
    type: str
    shape: list[int]


class ShownDraft(WireStruct):
    """The draft that the model was given; a field of ours."""

    architecture: str
    quantization_level: str
    tensors: list[ShownTensor] | None = None


class ShowAnswer(WireStruct):
    """Texts are there where the model has them; `tensors` where they were asked for."""

    modelfile: str
    details: Details
    model_info: Info
    capabilities: list[str]
    modified_at: datetime
    license: str = ""
    parameters: str = ""
    template: str = ""
    system: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    tensors: list[ShownTensor] | None = None
    draft: ShownDraft | None = None


def show_routes(services: Services) -> list[Route]:
    """`/api/show`."""

    async def show(request: Request) -> Response:
        asked = await read_body(request, ShowRequest)
        name, verbose = asked.model_name(), bool(asked.verbose)
        body = await run_in_threadpool(
            lambda: encode(show_model(services.store, name, verbose=verbose))
        )
        return Response(body, media_type="application/json")

    return [Route("/api/show", show, methods=["POST"])]


def show_model(store: Store, name: ModelName, *, verbose: bool) -> ShowAnswer:
    """NotFoundError for a name that is not here, StoreError for a damaged model, LoadError for one
    that lacks its config.json.
    """
    stored = store.get(name)
    config = stored.config
    return ShowAnswer(
        license="\n".join(stored.licenses),
        modelfile=format_modelfile(stored),
        parameters="\n".join(parameter_lines(stored.parameters)),
        template=chat_template(stored) or "",
        system=stored.system or "",
        renderer=config.renderer,
        parser=config.parser,
        details=details_of(stored),
        model_info=model_info(stored),
        tensors=_shown(stored.target_tensors()) if verbose else None,
        draft=_draft(stored, verbose=verbose),
        capabilities=list(config.capabilities),
        modified_at=datetime.fromtimestamp(store.modified_at(name), UTC),
        requires=config.requires,
    )


def parameter_lines(parameters: dict[str, OptionValue]) -> Iterator[str]:
    """A line for each value, names in a column, strings in quotes."""
    for name, value in parameters.items():
        for text in parameter_texts(value):
            is_text = isinstance(value, str | list)
            shown = json.dumps(text, ensure_ascii=False) if is_text else text
            yield f"{name:{NAME_WIDTH}} {shown}"


def model_info(stored: StoredModel) -> Info:
    """Sizes under the names that GGUF gives them; what the model does not say is left out."""
    found = describe(stored)
    family, tokenizer = found.architecture or "unknown", tokenizer_kind(stored)
    stated: dict[str, str | int | list[int] | None] = {
        "general.architecture": family,
        "general.parameter_count": found.parameters,
        f"{family}.context_length": found.context_length,
        f"{family}.embedding_length": found.embedding_length,
        f"{family}.block_count": found.block_count,
        f"{family}.feed_forward_length": found.feed_forward_length,
        f"{family}.attention.head_count": found.head_count,
        f"{family}.attention.head_count_kv": found.head_count_kv,
        f"{family}.attention.key_length": found.head_length,
        f"{family}.attention.value_length": found.head_length,
        f"{family}.vocab_size": found.vocab_size,
        "tokenizer.ggml.model": TOKENIZERS.get(tokenizer or ""),
        "tokenizer.ggml.bos_token_id": found.bos_token_id,
        "tokenizer.ggml.eos_token_id": next(iter(found.eos_token_ids), None),
        "tokenizer.ggml.eos_token_ids": list(found.eos_token_ids) or None,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _draft(stored: StoredModel, *, verbose: bool) -> ShownDraft | None:
    draft = stored.draft
    if draft is None:
        return None
    tensors = list(stored.draft_tensors())
    return ShownDraft(
        architecture=draft.architecture,
        quantization_level=prevailing_kind(tensors),
        tensors=_shown(tensors) if verbose else None,
    )


def _shown(tensors: Iterable[LogicalTensor]) -> list[ShownTensor]:
    return [
        ShownTensor(name=tensor.name, type=tensor.kind, shape=list(tensor.shape))
        for tensor in tensors
    ]
