"""A short way to put a model into a store."""

from collections.abc import Mapping

from forerun.store.manifest import JSON, TENSOR, Layer, Manifest, ModelConfig
from forerun.store.names import ModelName
from forerun.store.store import Store


def put_model(
    store: Store,
    name: str,
    *tensors: bytes,
    config: ModelConfig | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Manifest:
    """`extra` maps a media type to the bytes of a layer of it."""
    with store.importing() as writer:
        layers = [writer.add_layer(JSON, b'{"model_type":"llama"}', "config.json")]
        layers += [
            Layer(TENSOR, writer.add_bytes(data), f"tensor.{index}")
            for index, data in enumerate(tensors)
        ]
        layers += [writer.add_layer(kind, data) for kind, data in (extra or {}).items()]
        return writer.publish(ModelName.parse(name), config or ModelConfig(), layers)
