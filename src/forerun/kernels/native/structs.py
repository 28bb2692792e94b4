"""The structs of `abi.h` as ctypes sees them. All pointers are addresses that the caller keeps."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class FrLinear(Structure):
    """A packed weight [rows, columns]: value = scale * code + zero term."""

    _fields_ = (
        ("packed", c_void_p),  # `packed_bytes` bytes, written by `pack`
        ("bias", c_void_p),  # float32 [rows] or None
        ("rows", c_int32),
        ("columns", c_int32),
        ("group", c_int32),  # columns that share a scale, a multiple of 32
        ("bits", c_int32),  # 4 or 8
        ("wide_terms", c_int32),  # 1: scales and zero terms are float32, 0: half precision
    )


class FrDelta(Structure):
    """A gated-delta layer's way to mix tokens. Arrays are float32."""

    _fields_ = (
        ("inputs", FrLinear * 2),  # together queries, keys, values, output gates
        ("gates", c_void_p),  # [2 * value_heads, hidden]: rows of beta, then of alpha
        ("conv", c_void_p),  # [taps, channels]
        ("conv_bias", c_void_p),  # [channels] or None
        ("log_decay", c_void_p),  # [value_heads]
        ("step_bias", c_void_p),  # [value_heads]
        ("norm", c_void_p),  # [value_dim], of each head's result
        ("taps", c_int32),
        ("key_heads", c_int32),
        ("value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
    )


class FrExperts(Structure):
    """MLPs of which each row takes the `top` that the router likes best."""

    _fields_ = (
        ("router", c_void_p),  # float32 [count, hidden]
        ("gate", POINTER(FrLinear)),  # [count]
        ("up", POINTER(FrLinear)),
        ("down", POINTER(FrLinear)),
        ("shared", POINTER(FrLinear)),  # gate, up and down of the one that all rows take, or None
        ("shared_gate", c_void_p),  # float32 [hidden]; None: the shared one counts in full
        ("count", c_int32),
        ("top", c_int32),
        ("renormalised", c_int32),  # 1: the weights of a row's experts sum to 1
    )


class FrLayer(Structure):
    """A decoder layer. Norms are float32 [hidden] or [head_dim]; None where there is none."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("attended_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("output_norm", c_void_p),
        ("qkv", FrLinear * 3),  # together queries, keys, values; parts not needed have no rows
        ("output", FrLinear),
        ("gate", FrLinear),
        ("up", FrLinear),
        ("down", FrLinear),
        ("epsilon", c_float),
        ("attention_scale", c_float),
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("activation", c_int32),  # 0: SiLU, 1: GELU by tanh
        ("window", c_int32),  # positions that a query sees, itself included; 0: all before it
        # of a draft's first layer, whose attention reads rows of tokens and stream side by side
        ("normed_residual", c_int32),  # 1: what attention adds to is the normed stream
        ("token_norm", c_void_p),  # None: attention reads the stream alone
        ("rotary_dim", c_int32),  # leading dimensions of a head that turn; 0: all
        ("output_gate", FrLinear),  # no rows: none; else its sigmoid multiplies attention's result
        ("delta", POINTER(FrDelta)),  # mixes instead of attention
        ("experts", POINTER(FrExperts)),  # feed forward instead of gate, up and down
    )


class FrPass(Structure):
    """The rows of one forward, the same for all layers that turn by the same angles."""

    _fields_ = (
        ("stream", c_void_p),  # float32 [width, hidden], replaced by each layer's output
        ("cosines", c_void_p),  # float32 [width, rotary_dim / 2]
        ("sines", c_void_p),
        ("width", c_int32),
        ("tokens", c_void_p),  # float32 [width, hidden], read by layers with a norm for them
    )


class FrDeltaRows(Structure):
    """What steps of a gated-delta layer read, float32."""

    _fields_ = (
        ("raw", c_void_p),  # [rows, channels] before conv and activation
        ("keys", c_void_p),  # [rows, key_heads, key_dim]
        ("values", c_void_p),  # [rows, value_heads, value_dim]
        ("decay", c_void_p),  # [rows, value_heads]
        ("beta", c_void_p),
    )


class FrDeltaStep(Structure):
    """A gated-delta layer's part of a forward; None is for what nobody wants.

    States are float32 [value_heads, value_dim, key_dim], tails [taps - 1, channels] of raw inputs.
    """

    _fields_ = (
        ("tail", c_void_p),  # before the new rows
        ("state", c_void_p),  # before the pending steps, which are folded in first
        ("pending", FrDeltaRows),
        ("pending_count", c_int32),
        ("folded", c_void_p),  # gets the state after them
        ("kept", FrDeltaRows),  # gets what the new rows were
        ("end_tail", c_void_p),  # get what is left after the new rows
        ("end_state", c_void_p),
        ("splits", POINTER(c_int32)),  # ascending, inside the new rows: there, too, states are due
        ("split_tails", POINTER(c_void_p)),
        ("split_states", POINTER(c_void_p)),
        ("split_count", c_int32),
    )


class FrDeltaFold(Structure):
    """A delta state after some steps more."""

    _fields_ = (
        ("state", c_void_p),  # float32 [value_heads, value_dim, key_dim]
        ("folded", c_void_p),  # the same
        ("rows", FrDeltaRows),  # of which `raw` is not read
        ("count", c_int32),  # steps, of one at least
        ("key_heads", c_int32),
        ("value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
    )


class FrStep(Structure):
    """What a layer does with the rows that pass: where they go, and the history that they see."""

    _fields_ = (
        ("rows", c_void_p),  # an FrPass
        ("keys", c_void_p),  # [kv_heads, capacity, head_dim]
        ("values", c_void_p),
        ("key_stride", c_int64),  # elements from one head to the next
        ("value_stride", c_int64),
        ("bfloat16", c_int32),  # 1: keys and values are bfloat16, 0: float32
        ("first_row", c_int32),  # where the first new row goes, of `capacity`
        ("live", c_int32),  # rows of the history that end with the new ones
        ("first_position", c_int32),  # of the first live row
        ("delta", POINTER(FrDeltaStep)),  # of a gated-delta layer, which reads nothing else here
    )


class FrHead(Structure):
    """The final norm and the output head."""

    _fields_ = (
        ("norm", c_void_p),  # float32 [columns]; None: the rows are normed already
        ("weight", FrLinear),
        ("epsilon", c_float),
    )
