"""Puts a model together: the one place of the data plane that names concrete parts (05 LOD)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from forerun.base.context import automatic_context
from forerun.base.errors import ForerunError, LoadError, MachineError
from forerun.base.logs import event, logger
from forerun.base.machine_memory import system_memory
from forerun.base.units import GIB, MIB, format_bytes
from forerun.contract.drafter import Drafter
from forerun.contract.model import CacheOptions, Caches, DraftModel, ModelFacts, TargetModel
from forerun.engine.loaded import LoadedModel
from forerun.engine.pooling import Pooling
from forerun.kernels.select import KernelChoice
from forerun.models.drafts.eagle3 import load_eagle3
from forerun.models.drafts.eagle3_config import ARCHITECTURES, asked_taps
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.prefix.prefix_cache import MOST_BYTES, PrefixCache
from forerun.runner.pooling import read_pooling
from forerun.runner.request import LoadRequest
from forerun.runner.text import tokenizer_files
from forerun.sampling.sampler import Sampler
from forerun.speculation.bound import MODEL, BoundDrafters
from forerun.speculation.drafters.chain import ChainDrafter
from forerun.speculation.drafters.draft_model import DraftModelDrafter
from forerun.speculation.drafters.lookup import LookupDrafter
from forerun.store.manifest import DRAFT_FOLDER
from forerun.store.stored import StoredModel
from forerun.tokenizer.tokenizer import Tokenizer
from forerun.tokenizer.vocabulary import Vocabulary, checked, vocabulary_of

Progress = Callable[[str, float], None]  # what is going on, and the fraction of the load done
Binding = Callable[[Caches, Sampler], BoundDrafters]  # to a target's caches

CORES = torch.get_num_threads()  # torch's own choice, read before any load has changed it
CACHE_SHARE = 4  # snapshots take one part in so many of their device's memory (02 STR-7)
UNKNOWN_MEMORY = 4 * GIB  # of a system that does not say
SMALL_MODEL = 256 * MIB  # two cores evaluate 512 tokens of it in about two seconds (PRE-1)

log = logger(__name__)


def load_engine(
    stored: StoredModel,
    request: LoadRequest,
    progress: Progress,
) -> LoadedModel:
    """Load the weights and make caches, sampler and session. Runs in the device thread.

    Raises LoadError naming the device, config field, tensor or file at fault.
    """
    pooling = read_pooling(stored)
    on_cpu = _stated(stored, "num_gpu") == 0
    device = choose_device(request.device or ("cpu" if on_cpu else None))
    prepare_device(device)
    threads = request.threads or _stated(stored, "num_thread") or CORES
    torch.set_num_threads(threads)
    with torch.inference_mode(False):  # weights and caches are ordinary tensors (LOD-1)
        kernels = KernelChoice(cpu_kernels=request.cpu_kernels, threads=threads)
        model = _load_weights(stored, device, kernels, progress)
        if model.facts.own_threads:
            torch.set_num_threads(1)  # else its idle threads spin where the kernels' want to run
        context, budget = choose_context(request, stored, model), choose_budget(request, device)
        binding = choose_drafters(stored, model, context, kernels)
        return assemble(model, context, pooling, cache_bytes=budget, binding=binding)


def assemble(
    model: TargetModel,
    context: int,
    pooling: Pooling | None = None,
    *,
    cache_bytes: int = MOST_BYTES,
    binding: Binding = lambda _caches, _sampler: BoundDrafters(),
) -> LoadedModel:
    """A model with its caches and the parts that requests on it share. In normal mode.

    cache_bytes  budget of stored snapshots
    binding      makes the drafters; by default there are none
    """
    facts = model.facts
    caches = model.new_caches(CacheOptions(context))
    sampler = Sampler(vocab_size=facts.vocab_size, context_length=context, device=facts.device)
    drafters = binding(caches, sampler)
    return LoadedModel(
        model=model,
        caches=caches,
        prefix=PrefixCache(
            [*caches, *drafters.caches], look_ahead=drafters.look_ahead, budget_bytes=cache_bytes
        ),
        sampler=sampler,
        drafters=drafters,
        context=context,
        chunk=choose_chunk(facts),
        look_ahead=0 if facts.device.type == "cpu" else 1,
        pooling=pooling or Pooling(),
    )


def choose_drafters(
    stored: StoredModel, model: TargetModel, context: int, kernels: KernelChoice
) -> Binding:
    """The model's own draft, if it has one, and lookup (03 DRF-8).

    Its parameter `draft` is what a request means by saying nothing, and binds no less (GEN-3).
    """
    try:
        primary = _primary(stored, model, context, kernels)
    except ForerunError as error:  # which speaks of a checkpoint as if there were no other
        raise type(error)(f"the draft of {stored.name}: {error}") from error
    wanted = stored.parameters.get("draft")
    if primary is None and wanted == MODEL:
        raise LoadError(
            f"{stored.name} says PARAMETER draft {wanted} and has no draft; create it with one, "
            "or without that line"
        )
    lookup = LookupDrafter(device=model.facts.device)

    def bind(caches: Caches, sampler: Sampler) -> BoundDrafters:
        if primary is None:
            return BoundDrafters.of(lookup=lookup)
        drafter = primary.drafter(caches, sampler)
        return BoundDrafters.of(drafter, lookup, weight_bytes=primary.weight_bytes)

    return bind


@dataclass(frozen=True, slots=True)
class _Primary:
    """A model's own draft, loaded."""

    weight_bytes: int
    drafter: Callable[[Caches, Sampler], Drafter]  # bound to the target's caches


def _primary(
    stored: StoredModel, model: TargetModel, context: int, kernels: KernelChoice
) -> _Primary | None:
    """The draft of the manifest, else the checkpoint's own head, else None."""
    head = _head(stored, model, kernels)
    if head is not None:
        return _Primary(
            head.facts.weight_bytes,
            lambda caches, sampler: ChainDrafter(
                head, caches, head.new_caches(CacheOptions(context)), sampler
            ),
        )
    small = _draft_model(stored, model, kernels)
    if small is None:
        return None
    tokens = checked(
        _vocabulary(stored, "", model.facts.vocab_size),
        _vocabulary(stored, DRAFT_FOLDER, small.facts.vocab_size),
    )
    chunk = choose_chunk(small.facts)
    return _Primary(
        small.facts.weight_bytes,
        lambda _, sampler: DraftModelDrafter(
            small, small.new_caches(CacheOptions(context)), sampler, chunk=chunk, tokens=tokens
        ),
    )


def _head(stored: StoredModel, model: TargetModel, kernels: KernelChoice) -> DraftModel | None:
    """A head that reads the target's states."""
    draft = stored.draft
    layers = asked_taps(stored.parameters, None if draft is None else draft.architecture)
    if draft is None:
        return model.self_draft()
    if draft.architecture not in ARCHITECTURES:
        return None
    facts = model.facts
    placement = Placement(facts.dtype, facts.device, kernels)
    config, files = stored.json(draft.config), _draft_files(stored)
    prefix = draft.tensor_prefix
    return load_eagle3(config, files, model, placement, taps=layers, prefix=prefix)


def _draft_model(
    stored: StoredModel, model: TargetModel, kernels: KernelChoice
) -> TargetModel | None:
    """A draft that is an ordinary model (03 DRM-1)."""
    draft, device = stored.draft, model.facts.device
    if draft is None:
        return None
    config = stored.json(draft.config)
    placement = Placement(_dtype(config, device), device, kernels)
    files, prefix = _draft_files(stored), draft.tensor_prefix
    return load_model(config, files, placement, prefix=prefix, own_draft=False)


def _vocabulary(stored: StoredModel, folder: str, rows: int) -> Vocabulary:
    return vocabulary_of(Tokenizer.load(tokenizer_files(stored, folder)), rows)


def choose_device(wanted: str | None) -> torch.device:
    """The device asked for, else a CUDA device, else the CPU (08 RUN-12)."""
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    devices += ["cuda"] if torch.cuda.is_available() else []
    devices += ["mps"] if torch.backends.mps.is_available() else []
    if wanted not in devices:
        raise MachineError(f"device {wanted!r} is not here; there is {', '.join(devices)}")
    return torch.device(wanted)


def prepare_device(device: torch.device) -> None:
    """Settings of torch that hold for the whole process.

    cuDNN's attention plans anew for every length of the history, some 30 ms each, and a decode
    step has a new length every time; the other kernels take lengths as arguments.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def choose_context(request: LoadRequest, stored: StoredModel, model: TargetModel) -> int:
    """Tokens of context: what was asked, else the model's parameter, else by device (PRP-8)."""
    chosen = (
        request.num_ctx
        or _stated(stored, "num_ctx")
        or request.default_context
        or automatic_context(_gpu_bytes(model.facts.device))
    )
    if chosen > model.facts.max_context:
        log.info("context %d cut to the model's %d", chosen, model.facts.max_context)
    return min(chosen, model.facts.max_context)


def choose_budget(request: LoadRequest, device: torch.device) -> int:
    """Bytes of stored snapshots: what was asked, else by the caches' device (02 STR-7)."""
    memory = _gpu_bytes(device) or system_memory().total
    if request.cache_bytes is None:
        return automatic_budget(memory)
    _warn_of_strange(request.cache_bytes, memory)
    return request.cache_bytes


def _warn_of_strange(budget: int, device_bytes: int | None) -> None:
    """A size without its unit is the usual mistake."""
    if 0 < budget < MIB:
        log.warning(
            "only %d bytes for stored conversations; write 2GiB or 500MB if so meant", budget
        )
    if device_bytes is not None and budget > device_bytes:
        told = format_bytes(budget), format_bytes(device_bytes)
        log.warning("%s for stored conversations is more than the device's %s", *told)


def automatic_budget(device_bytes: int | None) -> int:
    """Bytes of snapshots where nobody says. `device_bytes` is all memory of the device."""
    return min(MOST_BYTES, (device_bytes or UNKNOWN_MEMORY) // CACHE_SHARE)


def choose_chunk(facts: ModelFacts) -> int:
    """Prompt tokens of one forward: a cancelled request leaves within a chunk (PRE-1)."""
    if facts.device.type == "cuda":
        return 2048
    return 512 if facts.weight_bytes <= SMALL_MODEL else 256


def _stated(stored: StoredModel, name: str) -> int | None:
    """A whole number among the model's own parameters."""
    value = stored.parameters.get(name)
    return value if isinstance(value, int) else None


def _gpu_bytes(device: torch.device) -> int | None:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def _load_weights(
    stored: StoredModel, device: torch.device, kernels: KernelChoice, progress: Progress
) -> TargetModel:
    config = stored.json("config.json")
    placement = Placement(_dtype(config, device), device, kernels)

    def read(completed: int, total: int) -> None:
        progress("loading weights", completed / max(total, 1))

    started = time.monotonic()
    own_draft = stored.draft is None  # else that of the manifest is bound, and it alone
    model = load_model(config, _files(stored), placement, read, own_draft=own_draft)
    event(log, "weights loaded", seconds=time.monotonic() - started)
    return model


def _dtype(config: Mapping[str, object], device: torch.device) -> torch.dtype:
    """The checkpoint's own dtype; a CPU computes half precision as bfloat16."""
    for name in ("dtype", "torch_dtype"):
        stated = config.get(name)
        if stated == "float32":
            return torch.float32
        if stated == "float16" and device.type != "cpu":
            return torch.float16
    return torch.bfloat16


def _files(stored: StoredModel) -> list[Path]:
    """The target's own."""
    draft = stored.draft
    return [
        stored.file(layer)
        for layer in stored.tensors
        if draft is None or not layer.name.startswith(draft.tensor_prefix)
    ]


def _draft_files(stored: StoredModel) -> list[Path]:
    draft = stored.draft
    assert draft is not None, "only a model with a draft has files of one"
    return [
        stored.file(layer) for layer in stored.tensors if layer.name.startswith(draft.tensor_prefix)
    ]
