"""The experts of a layer as the C++ kernel of whole layers takes them."""

from forerun.kernels.layer_operands import ExpertOperands, MlpOperands
from forerun.kernels.native.library import Library
from forerun.kernels.native.packed import Kept
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
        count, mlps = len(part.experts), _mlps(part)
        linears = [linear for mlp in mlps for linear in (mlp.gate, mlp.up, mlp.down)]
        room = Room(sum(_most_bytes(loaded, linear) for linear in linears))
        self._kept = kept = Kept(loaded, room.take)
        structs = [kept.linear(linear) for linear in linears]
        gate, up, down = ((FrLinear * count)(*structs[at : 3 * count : 3]) for at in range(3))
        shared = None if part.shared is None else (FrLinear * 3)(*structs[3 * count :])
        self._arrays = (gate, up, down, shared)
        self.struct = FrExperts(
            router=kept.address(part.router),
            gate=gate,
            up=up,
            down=down,
            shared=shared,
            shared_gate=kept.address(part.shared_gate),
            count=count,
            top=part.top,
            renormalised=int(part.renormalised),
        )

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes


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
