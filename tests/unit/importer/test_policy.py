"""Which type each tensor gets: the default policy, drafts, and a table per architecture (07 POL).

A row of a table is a name and the types for int4, int8, nvfp4, mxfp4 and mxfp8 in turn.
"""

import pytest

from forerun.base.quantisation import KINDS as NAMES
from forerun.importer.policy.choose import chooser, kind_of
from forerun.importer.policy.default import Asked, more_bits
from forerun.importer.policy.kinds import GROUPS

KINDS = ("int4", "int8", "nvfp4", "mxfp4", "mxfp8")
REQUESTED = KINDS
EIGHT_BIT = ("int8", "int8", "mxfp8", "mxfp8", "mxfp8")
KEPT = ("",) * 5
WIDE = (128, 256)
LAYER = "model.layers.3."  # of 16: one that gets no more bits by the schedule
MORE = "model.layers.4."  # the third after the first eighth: one that does


def kinds(
    name: str,
    shape: tuple[int, ...] = WIDE,
    *,
    architecture: str = "LlamaForCausalLM",
    experts: int = 0,
    draft: bool = False,
    tied: bool = False,
) -> tuple[str, ...]:
    facts = {"layers": 16, "experts": experts}
    return tuple(
        kind_of(name, shape, Asked(kind, architecture, **facts, draft=draft, tied=tied))
        for kind in KINDS
    )


def test_every_type_that_can_be_named_has_a_group() -> None:
    """MF-7, LIN-3."""
    assert tuple(GROUPS) == NAMES


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        f"{LAYER}input_layernorm.weight",
        f"{LAYER}ln_1.weight",
        f"{LAYER}self_attn.q_proj.bias",
        f"{LAYER}self_attn.sinks",
        f"{LAYER}mlp.gate.weight",
        f"{LAYER}mixer.gate.weight",
        f"{LAYER}mlp.shared_expert_gate.weight",
        f"{LAYER}router.proj.weight",
        "model.audio_tower.layers.0.fc1.weight",
        "model.embed_audio.proj.weight",
        "model.vision_tower.blocks.0.attn.qkv.weight",
        "model.visual.blocks.0.mlp.linear_fc1.weight",
        f"{LAYER}linear_attn.A_log",
        f"{LAYER}linear_attn.dt_bias",
        f"{LAYER}linear_attn.conv1d.weight",
    ],
)
def test_what_stays_at_source_precision(name: str) -> None:
    """POL-1, POL-2, POA-7, F05: embeddings, norms, biases, gates, conv weights, media towers."""
    assert kinds(name) == KEPT


def test_shape_decides_too() -> None:
    """POL-1: matrices and experts' stacks of 1024 elements or more."""
    name = f"{LAYER}self_attn.q_proj.weight"
    assert kinds(name, (8, 64)) == KEPT
    assert kinds(name, (16, 64)) == REQUESTED
    assert kinds(name, (4096,)) == KEPT
    assert kinds(name, (4, 64, 64)) == KEPT
    for stack in (
        "mlp.experts.up_proj.weight",
        "mlp.experts.gate_up_proj",
        "mlp.switch_mlp.gate_proj.weight",
    ):
        assert kinds(LAYER + stack, (4, 64, 64)) == REQUESTED
    assert kinds(f"{LAYER}mlp.experts.gate_up_proj_bias", (4, 64)) == KEPT


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (64, ("int4", "int8", "nvfp4", "mxfp4", "mxfp8")),
        (96, ("", "", "nvfp4", "mxfp4", "mxfp8")),
        (80, ("", "", "nvfp4", "", "")),
        (72, KEPT),
    ],
)
def test_rows_are_whole_groups(columns: int, expected: tuple[str, ...]) -> None:
    """POL-4, F05: what does not divide by the group is kept, not refused."""
    assert kinds(f"{LAYER}self_attn.q_proj.weight", (64, columns)) == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (64, EIGHT_BIT),
        (96, ("", "", "mxfp8", "mxfp8", "mxfp8")),
        (80, KEPT),  # nvfp4's groups would fit; its 8-bit type's do not
    ],
)
@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight"])
def test_the_head_gets_eight_bits(name: str, columns: int, expected: tuple[str, ...]) -> None:
    """POL-3, 07 T3: under all five types, aligned or not."""
    assert kinds(name, (512, columns)) == expected


@pytest.mark.parametrize("part", ["self_attn.v_proj", "self_attn.k_proj", "mlp.down_proj"])
def test_sensitive_projections_get_eight_bits(part: str) -> None:
    """POL-5; where only the type asked for fits, that one."""
    assert kinds(f"{LAYER}{part}.weight") == EIGHT_BIT
    assert kinds(f"{LAYER}{part}.weight", (64, 80)) == ("", "", "nvfp4", "", "")


def test_experts_share_one_fp4_type() -> None:
    """POL-5: int4 experts have an 8-bit down projection, fp4 ones do not; shared experts do."""
    stacked = kinds(f"{LAYER}mlp.experts.down_proj.weight", (4, 64, 64))
    assert stacked == ("int8", "int8", "nvfp4", "mxfp4", "mxfp8")
    assert kinds(f"{LAYER}mlp.shared_expert.down_proj.weight") == EIGHT_BIT


def test_the_schedule_of_more_bits() -> None:
    """POL-6, written out: 16 layers have eighths of two; 6 layers have no first eighth."""
    assert [i for i in range(16) if more_bits(i, 16)] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert [i for i in range(6) if more_bits(i, 6)] == [2, 5]


def test_a_drafts_table_and_head_take_the_type_directly() -> None:
    """POL-7, 07 T2: source precision if unaligned; the rest follows the architecture's policy."""
    for name in ("draft.model.embed_tokens.weight", "draft.lm_head.weight"):
        assert kinds(name, draft=True) == REQUESTED
        assert kinds(name, (64, 80), draft=True) == ("", "", "nvfp4", "", "")
    assert kinds("draft.model.layers.0.self_attn.v_proj.weight", draft=True) == EIGHT_BIT
    assert kinds("draft.fc.weight", draft=True) == REQUESTED
    assert kinds("draft.norm.weight", draft=True) == KEPT
    gate = "draft.model.layers.0.linear_attn.in_proj_ba.weight"
    assert kinds(gate, architecture="Qwen3NextForCausalLM", draft=True) == KEPT


def test_a_table_that_is_the_head_as_well_is_stored_as_one() -> None:
    """POL-3 before POL-1, where a kernel reads it: decision 0022."""
    name = "model.language_model.embed_tokens.weight"
    for architecture in ("LlamaForCausalLM", "Qwen3_5ForConditionalGeneration"):
        found = kinds(name, tied=True, architecture=architecture)
        assert found == ("int8", "int8", "", "", "")
    assert kinds(name, (64, 80), tied=True) == KEPT
    assert kinds("model.embed_tokens_per_layer.weight", tied=True) == KEPT
    assert kinds("lm_head.weight", tied=True) == EIGHT_BIT
    assert kinds("draft.model.embed_tokens.weight", draft=True, tied=True) == REQUESTED


SCHEDULED = EIGHT_BIT  # in the layers that get more bits
TABLES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "Qwen3_5MoeForConditionalGeneration": [
        (f"{LAYER}linear_attn.in_proj_a.weight", KEPT),
        (f"{LAYER}linear_attn.in_proj_b.weight", KEPT),
        (f"{LAYER}linear_attn.in_proj_ba.weight", KEPT),
        (f"{LAYER}linear_attn.in_proj_qkv.weight", REQUESTED),
        (f"{LAYER}linear_attn.out_proj.weight", REQUESTED),
        ("mtp.fc.weight", REQUESTED),
        (f"{LAYER}self_attn.v_proj.weight", EIGHT_BIT),
        ("lm_head.weight", EIGHT_BIT),
    ],
    "Gemma4ForConditionalGeneration": [
        ("model.language_model.embed_tokens.weight", EIGHT_BIT),
        ("model.language_model.embed_tokens_per_layer.weight", KEPT),
        ("model.vision_tower.encoder.layers.4.mlp.down_proj.weight", KEPT),
        (f"{LAYER}self_attn.v_proj.weight", REQUESTED),
        (f"{MORE}self_attn.v_proj.weight", SCHEDULED),
        (f"{MORE}mlp.down_proj.weight", SCHEDULED),
        (f"{MORE}self_attn.k_proj.weight", REQUESTED),
        (f"{MORE}self_attn.q_proj.weight", REQUESTED),
    ],
    "Cohere2MoeForCausalLM": [
        ("model.embed_tokens.weight", EIGHT_BIT),
        (f"{MORE}mlp.gate.weight", KEPT),
        (f"{LAYER}self_attn.k_proj.weight", REQUESTED),
        (f"{MORE}self_attn.k_proj.weight", SCHEDULED),
        (f"{MORE}mlp.shared_experts.down_proj.weight", SCHEDULED),
    ],
    "GlimmerForConditionalGeneration": [
        ("model.vision_tower.layers.4.self_attn.q_proj.weight", KEPT),
        ("model.language_model.embed_tokens.weight", EIGHT_BIT),
        *((f"{LAYER}self_attn.{part}_proj.weight", EIGHT_BIT) for part in "qkvo"),
        (f"{LAYER}self_attn.output_gate_proj.weight", REQUESTED),
        (f"{MORE}self_attn.output_gate_proj.weight", SCHEDULED),
        (f"{MORE}mlp.gate_proj.weight", SCHEDULED),
        (f"{MORE}mlp.down_proj.weight", SCHEDULED),
        (f"{MORE}mlp.up_proj.weight", REQUESTED),
    ],
    "LagunaForCausalLM": [
        ("model.embed_tokens.weight", ("", "", "mxfp8", "mxfp8", "mxfp8")),
        ("lm_head.weight", EIGHT_BIT),
        (f"{LAYER}mlp.gate.weight", KEPT),
        (f"{LAYER}self_attn.g_proj.weight", ("int4", "int8", "nvfp4", "mxfp4", "")),
        (f"{LAYER}self_attn.v_proj.weight", ("int8", "int8", "nvfp4", "mxfp4", "")),
        (f"{MORE}mlp.down_proj.weight", ("int8", "int8", "nvfp4", "mxfp4", "mxfp8")),
        (
            "model.layers.1.mlp.shared_expert.down_proj.weight",
            ("int8", "int8", "mxfp8", "mxfp8", ""),
        ),
        (f"{LAYER}mlp.shared_expert.down_proj.weight", ("int8", "int8", "nvfp4", "mxfp4", "")),
        # of 16 layers those before 16 / 2 - 4
        (f"{MORE}mlp.shared_expert.down_proj.weight", ("int8", "int8", "nvfp4", "mxfp4", "")),
        (f"{LAYER}other.weight", ("int4", "int8", "", "", "")),
    ],
    "NemotronHForCausalLM": [
        ("vision_model.patch.weight", KEPT),
        ("mlp1.0.weight", KEPT),
        ("sound_encoder.layers.4.down_proj.weight", KEPT),
        ("backbone.embeddings.weight", EIGHT_BIT),
        ("lm_head.weight", EIGHT_BIT),
        (f"{MORE}mixer.gate.weight", KEPT),
        (f"{MORE}mixer.conv1d.weight", KEPT),
        (f"{LAYER}mixer.q_proj.weight", ("int4", "int8", "mxfp8", "mxfp8", "mxfp8")),
        (f"{LAYER}mixer.out_proj.weight", REQUESTED),
        (f"{MORE}mixer.out_proj.weight", ("int4", "int8", "mxfp8", "mxfp8", "mxfp8")),
        (f"{LAYER}mixer.down_proj.weight", ("int8", "int8", "nvfp4", "mxfp4", "mxfp8")),
        (f"{MORE}mixer.down_proj.weight", EIGHT_BIT),
    ],
}


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [(architecture, *row) for architecture, rows in TABLES.items() for row in rows],
)
def test_the_table_of_an_architecture(
    architecture: str, name: str, expected: tuple[str, ...]
) -> None:
    """POA-1, POA-2, POA-3, POA-4, POA-5, POA-6, 07 T1."""
    assert kinds(name, architecture=architecture) == expected


@pytest.mark.parametrize(
    ("experts", "key", "value"), [(8, EIGHT_BIT, EIGHT_BIT), (128, REQUESTED, REQUESTED)]
)
def test_eight_experts_of_gemma4(
    experts: int, key: tuple[str, ...], value: tuple[str, ...]
) -> None:
    """POA-2: k and v always, whatever the layer."""
    gemma = "Gemma4ForConditionalGeneration"
    for part, expected in (("k", key), ("v", value)):
        name = f"{LAYER}self_attn.{part}_proj.weight"
        assert kinds(name, architecture=gemma, experts=experts) == expected


def test_an_unaligned_table_falls_back() -> None:
    """POA-2, POA-3: gemma4's to the type asked for, then to the source; cohere's to the source."""
    for architecture, expected in (
        ("Gemma4ForConditionalGeneration", ("", "", "nvfp4", "", "")),
        ("Cohere2MoeForCausalLM", KEPT),
    ):
        found = kinds("model.embed_tokens.weight", (64, 80), architecture=architecture)
        assert found == expected


def test_the_config_says_what_the_policy_goes_by() -> None:
    """POA: architecture, layers and experts, of the nested text config where there is one."""
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 16, "num_experts": 8},
        "num_hidden_layers": 40,  # of a tower
    }
    choose = chooser(config, "nvfp4")
    assert choose(f"{LAYER}self_attn.k_proj.weight", WIDE) == "mxfp8"
    assert choose(f"{MORE}mlp.down_proj.weight", WIDE) == "mxfp8"
    assert choose(f"{LAYER}mlp.down_proj.weight", WIDE) == "nvfp4"
    assert chooser(config, "")(f"{MORE}mlp.down_proj.weight", WIDE) == ""
    assert chooser({}, "int4")(f"{LAYER}mlp.up_proj.weight", WIDE) == "int4"
