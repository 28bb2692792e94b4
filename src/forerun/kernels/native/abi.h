// What Python calls: plain structs and functions behind a C ABI, without torch.
//
// All arrays are dense float32 unless a field says otherwise. Only `fr_team_new` allocates: whoever
// calls owns every buffer. One team serves one caller at a time. Sizes are not checked here; see
// `fr_linear_supported` and `fr_layer_supported`.
#pragma once
#include <cstdint>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

extern "C" {

// A weight packed by `fr_pack`: value = scale * code + zero term, in groups along the columns.
struct FrLinear {
    const uint8_t* packed;
    const float* bias;  // [rows] or null
    int32_t rows, columns, group, bits;
    int32_t wide_terms;  // 1: scales and zero terms are float32, 0: half precision
};

// A gated-delta layer's way to mix tokens.
struct FrDelta {
    FrLinear inputs[2];   // together queries, keys, values, output gates; a part may have no rows
    const float* gates;   // [2 * value_heads, hidden]: rows of beta, then of alpha
    const float* conv;    // [taps, channels], channels those of queries, keys and values
    const float* conv_bias;              // [channels] or null
    const float *log_decay, *step_bias;  // [value_heads]
    const float* norm;                   // [value_dim], of each head's result
    int32_t taps, key_heads, value_heads, key_dim, value_dim;
};

// MLPs of which each row takes the `top` that the router likes best.
struct FrExperts {
    const float* router;               // [count, hidden]
    const FrLinear *gate, *up, *down;  // [count]
    const FrLinear* shared;            // gate, up and down of the one that all rows take, or null
    const float* shared_gate;          // [hidden]: the sigmoid of a row's product scales it; or null
    int32_t count, top;
    int32_t renormalised;  // 1: the weights of a row's experts sum to 1
};

// A decoder layer. A norm that the family does not have is null.
struct FrLayer {
    const float *input_norm, *query_norm, *key_norm, *attended_norm, *mlp_norm, *output_norm;
    FrLinear qkv[3];  // together queries, keys, values; parts that are not needed have no rows
    FrLinear output, gate, up, down;
    float epsilon, attention_scale;
    int32_t hidden, inner, heads, kv_heads, head_dim;
    int32_t activation;  // 0: SiLU, 1: GELU by tanh
    int32_t window;      // positions that a query sees, itself included; 0: all before it
    // Of a draft's first layer, whose attention reads rows of tokens and of the stream side by side.
    int32_t normed_residual;  // 1: what attention adds to is the normed stream
    const float* token_norm;  // null: attention reads the stream alone
    int32_t rotary_dim;       // leading dimensions of a head that turn; 0: all
    FrLinear output_gate;     // no rows: none; else its sigmoid multiplies what attention makes
    const FrDelta* delta;     // not null: mixes instead of attention
    const FrExperts* experts;  // not null: feed forward instead of gate, up and down
};

// The rows of one forward, the same for all layers that turn by the same angles.
struct FrPass {
    float* stream;                 // [width, hidden], replaced by each layer's output
    const float *cosines, *sines;  // [width, rotary_dim / 2]
    int32_t width;
    const float* tokens;  // [width, hidden], read by layers with a norm for them
};

// What steps of a gated-delta layer read.
struct FrDeltaRows {
    float* raw;             // [rows, channels] before conv and activation
    float *keys, *values;   // [rows, key_heads, key_dim], [rows, value_heads, value_dim]
    float *decay, *beta;    // [rows, value_heads]
};

// A gated-delta layer's part of a forward. States are [value_heads, value_dim, key_dim], tails
// [taps - 1, channels] of raw conv inputs.
struct FrDeltaStep {
    const float *tail, *state;  // before the new rows; the state lacks the pending steps
    FrDeltaRows pending;        // which are folded in first
    int32_t pending_count;
    float* folded;               // gets the state after them; null: nobody wants it
    FrDeltaRows kept;            // gets what the new rows were; null: nobody wants it
    float *end_tail, *end_state;  // get what is left after the new rows; null: nobody wants it
    const int32_t* splits;        // ascending, inside the new rows: there, too, states are wanted
    float* const *split_tails;
    float* const *split_states;
    int32_t split_count;
};

// A delta state after some steps more.
struct FrDeltaFold {
    const float* state;  // [value_heads, value_dim, key_dim]
    float* folded;       // the same
    FrDeltaRows rows;    // of which `raw` is not read
    int32_t count;       // steps, of one at least
    int32_t key_heads, value_heads, key_dim, value_dim;
};

// What a layer does with the rows that pass: where they go, and the history that they see.
struct FrStep {
    const FrPass* rows;
    void *keys, *values;               // [kv_heads, capacity, head_dim]
    int64_t key_stride, value_stride;  // elements from one head to the next
    int32_t bfloat16;                  // 1: keys and values are bfloat16, 0: float32
    int32_t first_row;                 // where the first new row goes, of `capacity`
    int32_t live;                      // rows of the history that end with the new ones
    int32_t first_position;            // of the first live row
    const FrDeltaStep* delta;          // of a gated-delta layer, which reads nothing else here
};

// The final norm and the output head.
struct FrHead {
    const float* norm;  // null: the rows are normed already
    FrLinear weight;
    float epsilon;
};

struct FrTeam;

// A digest of the sources that this was built from.
const char* fr_sources();

// isa: null for the best. steady: 0 lets the caller work alone for a while where others hold the
// cores that the team would need; 1 is for tests. Null if this machine has no such instruction set.
FrTeam* fr_team_new(int32_t threads, const char* isa, int32_t steady);
void fr_team_free(FrTeam* team);
const char* fr_team_isa(const FrTeam* team);
int32_t fr_team_threads(const FrTeam* team);

int32_t fr_linear_supported(int32_t columns, int32_t group, int32_t bits);
int64_t fr_packed_bytes(int32_t rows, int32_t columns, int32_t group, int32_t bits,
                        int32_t wide_terms);
// words: [rows, columns * bits / 32], the lowest column in the lowest bits; scales and zero_terms:
// [rows, columns / group], zero_terms may be null.
void fr_pack(const uint32_t* words, const float* scales, const float* zero_terms,
             const FrLinear* shape, uint8_t* packed);
// Rows of a packed weight as float32, for an embedding that shares it.
void fr_unpack_rows(const FrLinear* weight, const int64_t* rows, int32_t count, float* values);

// y [width, rows of all parts] = x [width, columns] times the parts, one after the other.
int64_t fr_linear_scratch(int32_t columns, int32_t width);
void fr_linear(FrTeam* team, const FrLinear* parts, int32_t count, const float* x, int32_t width,
               float* y, void* scratch);

int32_t fr_layer_supported(const FrLayer* layer);
int64_t fr_layer_scratch(const FrLayer* layer, int32_t width, int32_t threads);
// `count` layers one after the other, as many steps. scratch: what the neediest of them takes.
void fr_layers(FrTeam* team, const FrLayer* layers, const FrStep* steps, int32_t count,
               void* scratch);

// To the last bit what layers make of the same steps.
int32_t fr_delta_fold_supported(const FrDeltaFold* fold);
int64_t fr_delta_fold_scratch(const FrDeltaFold* fold, int32_t threads);
void fr_delta_fold(FrTeam* team, const FrDeltaFold* fold, void* scratch);

// logits [width, rows] or null; the `top` largest of each row by value, then by smaller id, into
// ids and values [width, top]. Where there are fewer numbers than that, ids are -1.
int64_t fr_head_scratch(int32_t columns, int32_t width, int32_t top, int32_t threads);
void fr_head(FrTeam* team, const FrHead* head, const float* x, int32_t width, float* logits,
             int32_t top, int32_t* ids, float* values, void* scratch);
}
