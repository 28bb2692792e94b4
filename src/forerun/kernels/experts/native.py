"""The experts of a layer as the C++ kernel of whole layers takes them."""

from torch import Tensor, float32

from forerun.kernels.layer_operands import ExpertOperands, MlpOperands
from forerun.kernels.native.library import Library
from forerun.kernels.native.packed import PackedLinear
from forerun.kernels.native.structs import FrExperts, FrLinear
from forerun.kernels.native.weight_memory import ALIGNMENT, Room
from forerun.kernels.operands import BiasedLinear, BlockScaledWeight, RepackedWeight


def why_not(part: ExpertOperands) -> str | None:
    """The reason that the kernel cannot serve; None if it can. Formats of weights: `packed`."""
    activations = {mlp.activation for mlp in _mlps(part)}
    if len(activations) > 1:
        return f"experts have the activations {' and '.join(sorted(activations))}"
    inner = {mlp.gate.weight.out_features for mlp in part.experts}
    if len(inner) > 1:
        return f"experts are {' and '.join(map(str, sorted(inner)))} wide"
    return None


class NativeExperts:
    """Holds the repacked weights; those it was made of are not kept. `struct` has addresses."""

    def __init__(self, loaded: Library, part: ExpertOperands) -> None:
        assert why_not(part) is None, why_not(part)
        count = len(part.experts)
        linears = [linear for mlp in _mlps(part) for linear in (mlp.gate, mlp.up, mlp.down)]
        room = Room(sum(_most_bytes(loaded, linear) for linear in linears))
        packed = [PackedLinear(loaded, linear.weight, linear.bias, room.take) for linear in linears]
        structs = [each.struct for each in packed]
        routed, shared = structs[: 3 * count], structs[3 * count :]
        router, shared_gate = _plain(part.router), None
        if part.shared_gate is not None:
            shared_gate = _plain(part.shared_gate)
        self._packed, self._kept = packed, (router, shared_gate)
        gate, up, down = ((FrLinear * count)(*routed[place::3]) for place in range(3))
        self._arrays = (gate, up, down, (FrLinear * 3)(*shared))
        self.struct = FrExperts(
            router=router.data_ptr(),
            gate=gate,
            up=up,
            down=down,
            shared=self._arrays[3] if shared else None,
            shared_gate=None if shared_gate is None else shared_gate.data_ptr(),
            count=count,
            top=part.top,
            renormalised=int(part.renormalised),
        )

    @property
    def nbytes(self) -> int:
        held = sum(each.nbytes for each in self._kept if each is not None)
        return held + sum(each.nbytes for each in self._packed)


def _mlps(part: ExpertOperands) -> list[MlpOperands]:
    """The shared one last."""
    return [*part.experts] if part.shared is None else [*part.experts, part.shared]


def _most_bytes(loaded: Library, linear: BiasedLinear) -> int:
    """That it takes in the kernels' layout."""
    weight = linear.weight
    if isinstance(weight, RepackedWeight):
        return 0
    shape = (weight.out_features, weight.in_features, weight.group)
    bits = 8 if isinstance(weight, BlockScaledWeight) else weight.bits  # of its affine form
    return loaded.packed_bytes(*shape, bits, wide_terms=True) + ALIGNMENT


def _plain(values: Tensor) -> Tensor:
    assert values.dtype == float32, values.dtype
    return values.contiguous()
