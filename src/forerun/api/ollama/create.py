"""`/api/create`: a model from uploaded files or from another model (08 API-3)."""

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct, read_body
from forerun.api.ollama.blobs import in_threads
from forerun.api.ollama.changes import imported
from forerun.api.ollama.files import Files, arranged, read_draft_files, read_files
from forerun.api.ollama.named import NamedRequest
from forerun.api.ollama.progress import ProgressResponse
from forerun.api.services import Services
from forerun.base.errors import ForerunError, RequestError, error_for, one_line
from forerun.base.options import OptionValue, check_options
from forerun.base.quantisation import ALIASES, Quantisation, parse_kind
from forerun.protocol.imports import ComposeRequest, ImportStatus, SavedMessage
from forerun.protocol.requests import JsonValue
from forerun.store.catalogue import source_of
from forerun.store.messages import Message
from forerun.store.modelfile import Modelfile, check_modelfile
from forerun.store.names import ModelName
from forerun.store.parameters import RETIRED
from forerun.store.store import Store

# What Ollama's clients ask for by the names of llama.cpp's types: ours of as many bits.
OLLAMA_KINDS = {
    **ALIASES,
    **dict.fromkeys(("q4_0", "q4_1", "q4_k_s", "q4_k_m"), "int4"),
    "q8_0": "int8",
}
OLLAMA_HINT = "; q4_0, q4_1, q4_K_S and q4_K_M stand for int4, q8_0 for int8"


class WireMessage(WireStruct):
    role: str
    content: str | None = None


class CreateRequest(NamedRequest):
    """What a Modelfile would say, field by field; an empty text says nothing."""

    from_: str | None = msgspec.field(name="from", default=None)
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    draft_files: dict[str, str] | None = None
    quantize: str | None = None
    draft_quantize: str | None = None
    quantize_draft: str | None = None  # the same, as our command line calls it
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, JsonValue] | None = None
    messages: list[WireMessage] | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A create that was checked as far as it can be before anything is read."""

    name: ModelName
    modelfile: Modelfile
    quantisation: Quantisation
    files: Files
    draft_files: Files | None
    notices: tuple[str, ...]


def create_routes(services: Services) -> list[Route]:
    """`/api/create`."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, CreateRequest)
        plan = await run_in_threadpool(plan_of, asked, services.store)

        def work() -> AsyncGenerator[ImportStatus, None]:
            return _run(services, plan)

        return ProgressResponse(work, stream=asked.stream is not False)

    return [Route("/api/create", create, methods=["POST"])]


def plan_of(asked: CreateRequest, store: Store) -> Plan:
    """Raises RequestError, NotFoundError (`from`) or UnsupportedError, naming the field."""
    name = asked.model_name()
    if bool(asked.from_) == bool(asked.files):
        raise RequestError("give `from`, a model's name, or `files`; one of them and not both")
    files, source = Files({}, "."), asked.from_ or ""
    if asked.files:
        files = read_files(asked.files)
        source = files.source
    else:
        source = str(_base(source, store))
    draft_files = read_draft_files(asked.draft_files) if asked.draft_files else None
    modelfile = Modelfile(
        source=source,
        parameters=_parameters(asked),
        template=asked.template or None,
        system=asked.system or None,
        licenses=_licenses(asked.license),
        messages=tuple(Message(m.role.lower(), m.content or "") for m in asked.messages or ()),
        renderer=asked.renderer or None,
        parser=asked.parser or None,
        requires=asked.requires or None,
    )
    check_modelfile(modelfile)
    return Plan(name, modelfile, _quantisation(asked), files, draft_files, tuple(_notices(asked)))


def compose_request(plan: Plan, folder: Path, draft: Path | None) -> ComposeRequest:
    """What the importer is asked for, with the files in `folder` and the draft's in `draft`."""
    modelfile = plan.modelfile
    return ComposeRequest(
        name=str(plan.name),
        source=modelfile.source,
        folder=str(folder),
        draft=None if draft is None else str(draft),
        parameters=modelfile.parameters,
        template=modelfile.template,
        system=modelfile.system,
        licenses=list(modelfile.licenses),
        messages=[SavedMessage(role=m.role, content=m.content) for m in modelfile.messages],
        renderer=modelfile.renderer,
        parser=modelfile.parser,
        requires=modelfile.requires,
        quantize=plan.quantisation.target,
        quantize_draft=plan.quantisation.draft,
    )


async def _run(services: Services, plan: Plan) -> AsyncGenerator[ImportStatus, None]:
    for notice in plan.notices:
        yield ImportStatus(status=notice)
    draft_files = plan.draft_files
    async with (
        in_threads(arranged(plan.files, services.uploads)) as folder,
        in_threads(arranged(draft_files or Files({}, "."), services.uploads)) as draft,
    ):
        request = compose_request(plan, folder, draft if draft_files else None)
        async with aclosing(imported(services, plan.name, request)) as steps:
            try:
                async for step in steps:
                    yield step
            except ForerunError as error:  # files are called as the client called them
                text = one_line(error).replace(f"{folder}{os.sep}", "")
                text = text.replace(f"{draft}{os.sep}", "draft_files ")
                raise error_for(error.status, text) from None


def _base(text: str, store: Store) -> ModelName:
    """The model that `from` names: never a path, which would be one of the server's."""
    name = ModelName.parse(text)
    if not store.exists(name):
        source_of(name)
    return name


def _quantisation(asked: CreateRequest) -> Quantisation:
    """07 MF-6, MF-7, with Ollama's own names."""
    draft = asked.draft_quantize or asked.quantize_draft or ""
    target = parse_kind(asked.quantize or "", "quantize", OLLAMA_KINDS, OLLAMA_HINT)
    draft = parse_kind(draft, "draft_quantize", OLLAMA_KINDS, OLLAMA_HINT)
    if draft and not asked.draft_files:
        raise RequestError(
            f"draft_quantize is {draft}, and there are no draft_files to quantise; give them, or "
            f"leave it out"
        )
    return Quantisation(target, draft)


def _parameters(asked: CreateRequest) -> dict[str, OptionValue]:
    given = asked.parameters or {}
    return check_options({name: value for name, value in given.items() if name not in RETIRED})


def _licenses(given: str | list[str] | None) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    return tuple(text for text in texts if text)


def _notices(asked: CreateRequest) -> list[str]:
    retired = sorted(set(asked.parameters or ()) & RETIRED)
    notices = [f"parameter {name} has no effect" for name in retired]
    if asked.adapters:
        notices.append("adapters have no effect")
    return notices
