"""Loading EAGLE-3 heads: what configs say, and every mistake in one line (spec 03 EGL-2..9)."""

import dataclasses
import logging

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from fixtures.checkpoints import loaded, placement
from fixtures.eagle3 import TinyHead
from fixtures.tiny import tiny_folder
from forerun.base.errors import LoadError
from forerun.models.drafts.eagle3 import load_eagle3
from forerun.models.drafts.eagle3_config import DEFAULTS, read_config, resolve_taps
from forerun.models.drafts.vocabulary import column_ids

TAPS = "eagle_aux_hidden_state_layer_ids"
LAYERS = "transformer_layer_config"
ORIGINAL, SPECULATORS = TinyHead("original"), TinyHead()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tiny_folder(tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=8)
    return loaded(folder)


def refused(match):
    return pytest.raises(LoadError, match=match)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"])
def test_the_original_layout_has_its_fields_at_the_top(name):
    """EGL-2, EGL-3: ids of `eagle_config` are those of layers that were left."""
    config = read_config(ORIGINAL.config() | {"architectures": [name]})
    assert (config.shape.hidden_size, config.draft_vocabulary) == (64, 40)
    assert config.taps == (0, 1, 2)
    assert ORIGINAL.config()["eagle_config"][TAPS] == [-1, 0, 1]


@pytest.mark.parametrize("name", ["Eagle3Speculator", "Eagle3DraftModel"])
def test_the_speculators_layout_has_layers_in_an_object(name):
    """EGL-2: what stands around that object is not of the layers."""
    fields = SPECULATORS.config() | {"architectures": [name], "hidden_size": 7}
    config = read_config(fields)
    assert (config.shape.hidden_size, config.taps) == (64, (0, 1, 2))
    assert not config.head_norms
    assert read_config(TinyHead(kind="qwen3").config()).head_norms


def test_what_a_config_leaves_out():
    """EGL-2: flags are off, the target is as wide as the head, its vocabulary is all of it."""
    fields = SPECULATORS.config()
    for name in ("target_hidden_size", "draft_vocab_size", TAPS):
        del fields[name]
    config = read_config(fields)
    assert (config.target_hidden_size, config.draft_vocabulary, config.taps) == (64, 264, ())
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert not any(getattr(config, flag) for flag in flags)


@pytest.mark.parametrize(("kind", "made"), [("llama", LlamaConfig), ("qwen3", Qwen3Config)])
def test_the_defaults_are_those_of_the_classes_that_wrote_the_config(kind, made):
    """The speculators package writes what differs from the class alone."""
    theirs = made().to_dict()
    for name, value in DEFAULTS[kind].items():
        if name != "rope_theta":
            assert theirs[name] == value, name
    assert theirs["rope_parameters"]["rope_theta"] == DEFAULTS[kind]["rope_theta"]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM; an EAGLE-3 head"),
        ({"architectures": ...}, r"\(none\); an EAGLE-3 head"),
        ({"speculators_model_type": "peagle"}, "'peagle'; it must be one of eagle3"),
        ({LAYERS: ...}, f"no {LAYERS}"),
        ({LAYERS: {"hidden_size": 64}}, r"no transformer_layer_config.model_type"),
        ({LAYERS: {"model_type": "gemma3"}}, r"'gemma3'; it must be one of llama, qwen3"),
        ({"norm_before_fc": True, "fc_norm": True}, "both norm_before_fc and fc_norm"),
        ({"norm_output": "yes"}, "norm_output to 'yes'; it must be true or false"),
        ({TAPS: [1, "2"]}, "it must be a list of whole numbers"),
        ({"draft_vocab_size": 0}, "draft_vocab_size to 0"),
    ],
)
def test_a_strange_config_is_refused(fields, match):
    """EGL-2."""
    with refused(match):
        read_config(dataclasses.replace(SPECULATORS, extra=fields).config())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"hidden_act": "gelu"}, "'gelu'; it must be one of silu"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
    ],
)
def test_fields_that_would_change_the_numbers_are_refused(fields, match):
    with refused(match):
        read_config(dataclasses.replace(ORIGINAL, extra=fields).config())


def test_taps_are_taken_in_the_order_of_layers():
    """EGL-3: fc takes them so; without any, three layers spread over the model."""
    assert resolve_taps((27, 2, 15), 30) == (2, 15, 27)
    assert resolve_taps((), 30) == (2, 15, 27)
    assert resolve_taps((0, 30), 30) == (0, 30)


@pytest.mark.parametrize(
    ("stated", "layers", "match"),
    [
        ((3, 31), 30, "after layer 31, and the model has 30 layers"),
        ((-1, 3), 30, "after layer -1, and the model has 30 layers"),
        ((3, 3), 30, "twice: after layers 3, 3"),
        ((), 6, "a model of 6 layers has no default ones"),
    ],
)
def test_taps_that_the_target_has_not_are_refused(stated, layers, match):
    """EGL-9."""
    with refused(match):
        resolve_taps(stated, layers)


def test_taps_are_told_and_may_be_chosen(tmp_path, target, caplog):
    """EGL-3: the resolved list is in the log; a parameter of the model overrides the config."""
    head = dataclasses.replace(SPECULATORS, extra={TAPS: ...})
    files = head.write(tmp_path)
    with caplog.at_level(logging.INFO):
        assert load_eagle3(head.config(), files, target, placement()).taps == (2, 4, 5)
        assert "the streams after 2, 4 and 5 of 8 layers" in caplog.text
        draft = load_eagle3(head.config(), files, target, placement(), taps=(8, 0, 3))
    assert draft.taps == (0, 3, 8)
    assert "after 0, 3 and 8 of 8" in caplog.text
    with refused("fc.weight takes 192 numbers, and 2 of the target's streams have 128"):
        load_eagle3(head.config(), files, target, placement(), taps=(0, 3))


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (TinyHead(target_hidden=96), "streams 96 wide; this one's is 64"),
        (TinyHead(vocabulary=300), "a vocabulary 300 tokens large; this one's is 264"),
        (TinyHead(hidden=96, dim=24), "no embed_tokens.weight; it is 96 wide, .* is 64 wide"),
        (
            TinyHead(hidden=96, dim=24, own_embedding=True, own_head=False),
            "no lm_head.weight; it is 96 wide",
        ),
        (TinyHead(mapped=False), "40 logits and no tensor d2t, and the model has 264"),
        (TinyHead(taps=(0, 3, 9)), "after layer 9, and the model has 8 layers"),
    ],
)
def test_a_head_for_another_model_is_refused(tmp_path, target, head, match):
    """EGL-6, EGL-7, EGL-9, 05 LOD-9: both sides are named, in one line."""
    with refused(match) as caught:
        head.load(tmp_path, target, placement())
    assert "\n" not in str(caught.value)


HALF = torch.arange(264) < 132


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"fc__bias": torch.zeros(64)}, "biases, 'fc.bias"),
        ({"layers__0__self_attn__q_proj__bias": torch.zeros(64)}, "biases, 'layers.0.self_attn"),
        ({"mystery": torch.zeros(2)}, "the draft head has 'mystery', which"),
        ({"norm__weight": None}, "norm is missing"),
        ({"layers__0__hidden_norm__weight": None}, "hidden_norm of layer 0 is missing"),
        ({"layers__0__input_layernorm__weight": None}, "none of the tensors midlayer.input"),
        ({"fc__weight": torch.zeros(64, 128)}, "fc.weight takes 128 numbers, and 3"),
        ({"fc__weight": torch.tensor(1.0)}, "fc.weight takes 1 numbers, and 3"),
        ({"lm_head__weight": torch.zeros(41, 64)}, r"lm_head.weight has shape \[41, 64\]"),
        ({"d2t": torch.zeros(41, dtype=torch.int64)}, r"d2t holds \[41\] .* 40 logits"),
        ({"t2d": HALF}, "t2d knows 132 tokens, and the head has 40 logits"),
    ],
)
def test_tensors_that_do_not_make_up_a_head_are_refused(tmp_path, target, changed, match):
    """EGL-6, EGL-7, EGL-9."""
    with refused(match) as caught:
        SPECULATORS.load(tmp_path, target, placement(), **changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1e6])
@pytest.mark.parametrize("name", ["norm.weight", "layers.0.mlp.down_proj.weight", "fc.weight"])
def test_numbers_that_cannot_be_computed_with_are_refused_by_their_tensor(
    tmp_path, target, name, value
):
    """EGL-6: a head that draws from them drafts tokens that are none."""
    tensor = SPECULATORS.tensors()[name].clone()
    tensor[..., -1] = value
    with refused(f"tensor {name} of the draft head holds numbers from ") as caught:
        SPECULATORS.load(tmp_path, target, placement(), **{name.replace(".", "__"): tensor})
    assert "\n" not in str(caught.value)


def test_what_trainers_keep_of_the_target_is_ignored(tmp_path, target):
    """EGL-6."""
    kept = {"verifier_lm_head__weight": torch.zeros(3), "verifier_norm__weight": torch.zeros(3)}
    assert SPECULATORS.load(tmp_path, target, placement(), **kept).taps == (0, 1, 2)


def test_a_refused_head_leaves_the_target_as_it_was(tmp_path, target):
    target.tap((1, 2))
    with refused("mystery"):
        SPECULATORS.load(tmp_path, target, placement(), mystery=torch.zeros(2))
    assert target._taps == (1, 2)


@pytest.mark.parametrize(
    ("d2t", "t2d", "match"),
    [
        ([0, 0, 9], None, "the tokens 0 to 11, and the model has 8 tokens"),
        ([-1, 0, 0], None, "the tokens -1 to 2"),
        ([1, 0, 0], None, "2 different tokens for 3 logits"),
        ([0.0, 1.0, 2.0], None, "float32"),
        ([0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0], "t2d knows token 3 where d2t has 2"),
        ([0, 0, 0], [1, 1, 1], r"t2d has \[3\] entries, and the model has 8 tokens"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(d2t, t2d, match):
    """EGL-7."""
    known = None if t2d is None else torch.tensor(t2d, dtype=torch.bool)
    with refused(match):
        column_ids(3, 8, torch.tensor(d2t), known)


def test_a_column_stands_for_its_number_and_what_is_added():
    """EGL-7: in any order; without the tensor both vocabularies are one."""
    known = torch.tensor([1, 0, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    assert column_ids(3, 8, torch.tensor([5, -1, 0]), known).tolist() == [5, 0, 2]
    assert column_ids(8, 8, None, torch.ones(8, dtype=torch.bool)).tolist() == list(range(8))


def test_a_whole_vocabulary_needs_no_map(tmp_path, target):
    """EGL-8."""
    whole = TinyHead(columns=264, mapped=False)
    assert whole.load(tmp_path, target, placement()).column_ids is None
    assert SPECULATORS.load(tmp_path, target, placement()).column_ids.shape == (40,)


def test_its_figures_are_those_of_its_tensors(tmp_path, target):
    """Bytes of its own: without the target's table, which it shares."""
    own, head = TinyHead(own_embedding=True), SPECULATORS
    facts = head.load(tmp_path, target, placement()).facts
    assert (facts.columns, facts.hidden_size, facts.step_size, facts.taps_size) == (40, 64, 64, 192)
    floats = {name: part for name, part in head.tensors().items() if part.is_floating_point()}
    assert facts.weight_bytes == sum(part.nbytes for part in floats.values())
    table = own.load(tmp_path, target, placement()).facts.weight_bytes - facts.weight_bytes
    assert table == 4 * 264 * 64
