"""The details of a model on the wire (08 API-1, API-2)."""

from pathlib import Path

import pytest

from fixtures.tiny import tiny_store
from forerun.api.ollama.details import details_of, format_count
from forerun.protocol.codec import encode
from forerun.store.manifest import encode_json
from forerun.store.names import ModelName


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (940, "940"),
        (1_000, "1.0K"),
        (134_515_008, "134.5M"),
        (999_960_000, "1.0B"),
        (8_030_261_248, "8.0B"),
        (671_026_419_200, "671.0B"),
    ],
)
def test_counts_are_short(count: int, text: str) -> None:
    """08 API-1: as Ollama's clients show parameter_size."""
    assert format_count(count) == text


def test_every_field_is_there(tmp_path: Path) -> None:
    """08 API-2: also those that say nothing."""
    details = details_of(tiny_store(tmp_path).get(ModelName.parse("tiny")))
    assert encode(details) == encode_json(
        {
            "parent_model": "",
            "format": "safetensors",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "107.8K",
            "quantization_level": "f32",
            "context_length": 512,
            "embedding_length": 64,
        }
    )
