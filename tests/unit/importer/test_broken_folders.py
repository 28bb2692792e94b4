"""Folders that are broken, one way each: the line that says so, or the warning (07 T11; F01, F13).

Every refusal is one line that names the tensor, field or file, and leaves nothing in the store.
"""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.checkpoints import edit_config, edit_tensors, placement, read_config
from fixtures.qwen import hybrid_folder, wrapped_folder
from fixtures.tiny import tiny_folder
from forerun.base.errors import ForerunError
from forerun.base.logs import ROOT
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.models.load import load_model
from forerun.protocol.imports import CreateRequest
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.parts import stored_parts
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

Tensors = dict[str, Tensor]
Break = Callable[[Path], None]
Import = Callable[..., StoredModel]

INDEX = "model.safetensors.index.json"
LAYER = "model.layers.0."
NORM = f"{LAYER}post_attention_layernorm.weight"
Q, K = (f"{LAYER}self_attn.{name}_proj.weight" for name in "qk")
DELTA = f"{LAYER}linear_attn."
TOWER = "model.visual.blocks.0.attn.proj.bias"
CONVOLUTION = f"{DELTA}conv1d.weight"
EXPERT = f"{LAYER}mlp.experts.3.up_proj.weight"
LAST_EXPERT = [f"{LAYER}mlp.experts.7.{part}_proj.weight" for part in ("gate", "up", "down")]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each kind."""
    root = tmp_path_factory.mktemp("whole")
    return {
        "llama": tiny_folder(root / "llama", "llama", dtype=torch.bfloat16),
        "tied": tiny_folder(root / "tied", "llama", tie_word_embeddings=True),
        "sharded": tiny_folder(root / "sharded", "llama", shard_size="60KB"),
        "hybrid": hybrid_folder(root / "hybrid"),
        "experts": hybrid_folder(root / "experts", "qwen3_5_moe"),
        "next": hybrid_folder(root / "next", "qwen3_next"),
        "wrapped": wrapped_folder(root / "wrapped"),
        "mlx": mlx_folder(tiny_folder(root / "mlx", "llama"), group=32),
        "wide": mlx_folder(tiny_folder(root / "wide", "llama"), group=64),
    }


@pytest.fixture
def import_broken(
    whole: dict[str, Path], tmp_path: Path, store: Store, reporter: Reporter
) -> Import:
    """import_broken(kind, change, quantize="") of a copy that `change` was done to."""

    def run(kind: str, change: Break, quantize: str = "") -> StoredModel:
        folder = Path(shutil.copytree(whole[kind], tmp_path / "folder"))
        change(folder)
        request = CreateRequest(
            name="made", modelfile="FROM ./folder", folder=str(tmp_path), quantize=quantize
        )
        create(request, store, reporter)
        return store.get(ModelName.parse("made"))

    return run


def mlx_folder(folder: Path, *, group: int) -> Path:
    """The same model as MLX quantises it: int4 in groups that the config states."""

    def change(tensors: Tensors) -> Tensors:
        made: Tensors = {}
        for name, tensor in tensors.items():
            if "proj" not in name or tensor.shape[-1] % group:
                made[name] = tensor
                continue
            parts = stored_parts(quantise(tensor, QuantFormat("int4", group)))
            base = name.removesuffix(".weight")
            made[name], made[f"{base}.scales"] = parts[""], parts[".scale"]
            made[f"{base}.biases"] = parts[".bias"]
        return made

    edit_tensors(folder, change)
    edit_config(folder, quantization={"group_size": group, "bits": 4})
    return folder


# What is done to a folder.


def without(*names: str) -> Break:
    return lambda folder: edit_tensors(
        folder, lambda tensors: {n: t for n, t in tensors.items() if n not in names}
    )


def with_tensors(**named: Tensor) -> Break:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors | named)


def replaced(name: str, change: Callable[[Tensor], Tensor]) -> Break:
    return lambda folder: edit_tensors(
        folder, lambda tensors: tensors | {name: change(tensors[name])}
    )


def config(**changes: object) -> Break:
    return lambda folder: edit_config(folder, **changes)


def written(name: str, text: str) -> Break:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def lost_shard(folder: Path) -> None:
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def truncated_shard(folder: Path) -> None:
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])


def indexed_at(shard: str) -> Break:
    """The index says that one tensor is in `shard`."""

    def change(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"][NORM] = shard
        (folder / INDEX).write_text(json.dumps(index))

    return change


def stored_twice(folder: Path) -> None:
    """Two files, no index, and one tensor in both."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    save_file({NORM: tensors[NORM]}, folder / "model-00002-of-00002.safetensors")


def vision(**changes: object) -> Break:
    def change(folder: Path) -> None:
        stated = read_config(folder)["vision_config"]
        assert isinstance(stated, dict)
        edit_config(folder, vision_config={**stated, **changes})

    return change


def text_config(**changes: object) -> Break:
    def change(folder: Path) -> None:
        stated = read_config(folder)["text_config"]
        assert isinstance(stated, dict)
        edit_config(folder, text_config={**stated, **changes})

    return change


def without_tower(folder: Path) -> None:
    edit_tensors(
        folder,
        lambda tensors: {n: t for n, t in tensors.items() if not n.startswith("model.visual")},
    )


def without_head(folder: Path) -> None:
    names = load_file(folder / "model.safetensors")
    without(*(name for name in names if name.startswith("mtp.")))(folder)


def eight_bit_floats(dtype: torch.dtype, block: list[int] | None) -> Break:
    def change(folder: Path) -> None:
        def stored(tensors: Tensors) -> Tensors:
            return tensors | {Q: tensors[Q].to(dtype), f"{Q}_scale_inv": torch.ones(1, 1)}

        edit_tensors(folder, stored)
        if block is not None:
            edit_config(folder, quantization_config={"weight_block_size": block})

    return change


def shorter(tensor: Tensor) -> Tensor:
    return tensor[:-1].clone()


def narrower(tensor: Tensor) -> Tensor:
    return tensor[..., :-1].clone()


def turned(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).contiguous()


def nan_in(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor[3] = float("nan")
    return tensor


BROKEN: dict[str, tuple[str, Break, str]] = {
    "a shard is missing": ("sharded", lost_shard, r"incomplete: its index names 'model-00002"),
    "a shard is truncated": ("sharded", truncated_shard, r"model-00002.*safetensors is truncated"),
    "the index names no shard": ("sharded", indexed_at("model-9.safetensors"), r"model-9\.safe"),
    "the index leads outside": ("sharded", indexed_at("../x.safetensors"), r"plain file name"),
    "the index is no JSON": ("sharded", written(INDEX, "{"), r"index\.json is not valid JSON"),
    "a tensor is in two files": ("llama", stored_twice, rf"tensor '{NORM}' is in model-00001"),
    "config.json is no JSON": ("llama", written("config.json", "{,"), r"config\.json is not valid"),
    "config.json is a list": ("llama", written("config.json", "[]"), r"config\.json.*object"),
    "tokenizer_config.json is no JSON": (
        *("llama", written("tokenizer_config.json", "{"), r"tokenizer_config\.json is not valid"),
    ),
    "an unknown architecture": ("llama", config(architectures=["Foo"]), r"architecture Foo"),
    "no architecture": ("llama", config(architectures=...), r"names no architecture"),
    "a wrong shape": (
        "llama",
        replaced(NORM, lambda t: t[:-1].clone()),
        rf"{NORM} has shape \[63\]",
    ),
    "no number": (
        "llama",
        replaced(NORM, nan_in),
        rf"{NORM} holds values that are no finite numbers",
    ),
    "E5M2": ("llama", eight_bit_floats(torch.float8_e5m2, None), rf"{Q} is of type F8_E5M2"),
    "E4M3 in blocks of another size": (
        *("llama", eight_bit_floats(torch.float8_e4m3fn, [64, 64]), rf"{Q} is E4M3.*\[64, 64\]"),
    ),
    "E4M3 in blocks of no stated size": (
        *("llama", eight_bit_floats(torch.float8_e4m3fn, None), rf"{Q} is E4M3.*weight_block_size"),
    ),
    "scales of one weight are missing": (
        *("mlx", without(K.replace("weight", "scales")), rf"tensor {K} "),
    ),
    "zero points are missing": (
        *("mlx", without(K.replace("weight", "biases")), rf"{K}.*no zero points"),
    ),
    "a quantised shape that two types have": (
        *("wide", config(quantization=...), rf"{LAYER}.*_proj\.weight.*int4.*int8"),
    ),
    "groups that do not divide": (
        *("mlx", config(quantization={"group_size": 48, "bits": 4}), rf"{LAYER}.*48"),
    ),
    "groups of another size than stated": (
        *("mlx", config(quantization={"group_size": 64, "bits": 4}), rf"{LAYER}.*_proj"),
    ),
    "an expert is missing": ("experts", without(EXPERT), rf"tensor {EXPERT} is missing"),
    "an expert is shorter": (
        "experts",
        replaced(EXPERT, lambda t: t[:-1].clone()),
        rf"tensor {EXPERT} is",
    ),
    "projections in two forms": (
        "hybrid",
        with_tensors(**{f"{DELTA}in_proj_qkvz.weight": torch.ones(160, 64)}),
        rf"{DELTA} has .*in two forms",
    ),
    "half of the projections": (
        *("hybrid", without(f"{DELTA}in_proj_z.weight"), rf"no tensor {DELTA}in_proj_z\.weight"),
    ),
    "half of the grouped projections": (
        *("next", without(f"{DELTA}in_proj_ba.weight"), rf"no tensor {DELTA}in_proj_ba\.weight"),
    ),
    "a convolution of another width": (
        *(
            "hybrid",
            replaced(CONVOLUTION, narrower),
            CONVOLUTION,
        ),
    ),
    "too few layer types": (
        *("hybrid", config(layer_types=["linear_attention"] * 3), r"layer_types names 3 layers"),
    ),
    "half of a head": ("hybrid", without("mtp.norm.weight"), r"mtp\.norm\.weight"),
    "a tower without tensors": ("wrapped", without_tower, r"vision_config and .* no tensor under"),
    "a tower without a config": ("wrapped", config(vision_config=...), rf"has {TOWER}"),
    "a tower that reaches into layers": (
        *("wrapped", vision(deepstack_visual_indexes=[0]), r"deepstack_visual_indexes"),
    ),
    "a wrapped model's layer types": (
        *("wrapped", text_config(layer_types=["full_attention"]), r"layer_types names 1 layers"),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(
    import_broken: Import, store: Store, case: str
) -> None:
    """07 T11, T6, T7, CFG-6, F13: it names what is wrong, and no model is made."""
    kind, change, message = BROKEN[case]
    with pytest.raises(ForerunError, match=message) as raised:
        import_broken(kind, change)
    assert "\n" not in str(raised.value)
    assert store.entries() == []
    store.collect()
    assert not list(store.folders.blobs.glob("*"))


@pytest.mark.parametrize("kind", ["mlx", "fp8"])
def test_a_type_that_is_asked_of_quantised_weights(
    import_broken: Import, store: Store, kind: str
) -> None:
    """CLS-3, CLS-4: it says what works instead."""
    fp8 = eight_bit_floats(torch.float8_e4m3fn, [128, 128])
    whole_kind, change = ("mlx", config()) if kind == "mlx" else ("llama", fp8)
    with pytest.raises(ForerunError, match=r"quantize is int8.*already; leave quantize out"):
        import_broken(whole_kind, change, "int8")
    assert store.entries() == []


LOADS: dict[str, tuple[str, Break, str]] = {
    "a surplus tensor": (
        *("llama", with_tensors(**{"model.extra": torch.ones(3)}), "model.extra"),
    ),
    "a head beside the table that it is tied to": (
        *("tied", with_tensors(**{"lm_head.weight": torch.ones(264, 64)}), "lm_head.weight"),
    ),
    "an inline head without what joins it": (
        *("hybrid", without("mtp.fc.weight"), "mtp.layers.0."),
    ),
    "an inline head that is announced and absent": ("hybrid", without_head, ""),
    "a convolution turned round": (
        *(
            "hybrid",
            replaced(CONVOLUTION, turned),
            "",
        ),
    ),
}


@pytest.mark.parametrize("case", LOADS)
def test_what_is_odd_and_no_fault_loads(
    import_broken: Import, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """07 T11, F01, F13, F15, QWN-13, 06 CON-14: what is not used is named once, in a warning."""
    kind, change, named = LOADS[case]
    with caplog.at_level(logging.WARNING, ROOT):
        model = import_broken(kind, change)
        files = [model.file(layer) for layer in model.tensors]
        load_model(model.json("config.json"), files, placement())
    warnings = [record.getMessage() for record in caplog.records]
    assert bool(warnings) == bool(named), warnings
    assert all(named in warning for warning in warnings), warnings
