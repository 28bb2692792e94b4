// Runs the kernels over odd sizes with exactly as much memory as they ask for, so that sanitisers
// see a byte too far. Prints nothing and returns 0 where all widths and threads agree.
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "abi.h"

namespace {

std::mt19937 random_bits(7);

float uniform() { return float(random_bits() >> 8) / 8388608.0f - 1.0f; }

std::vector<float> floats(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = uniform();
    return values;
}

struct Packed {
    std::vector<uint8_t> bytes;
    std::vector<float> bias;
    FrLinear linear;

    Packed(int rows, int columns, int group, int bits, bool wide, bool biased) {
        linear = {nullptr, nullptr, rows, columns, group, bits, wide};
        std::vector<uint32_t> words(int64_t(rows) * columns * bits / 32);
        for (uint32_t& word : words) word = random_bits();
        const int64_t groups = int64_t(rows) * columns / group;
        std::vector<float> scales(groups, 0.03125f), zero_terms(groups, -0.25f);
        bytes.resize(fr_packed_bytes(rows, columns, group, bits, wide));
        fr_pack(words.data(), scales.data(), zero_terms.data(), &linear, bytes.data());
        linear.packed = bytes.data();
        if (biased) bias = floats(rows), linear.bias = bias.data();
    }
};

struct Release {
    void operator()(FrTeam* team) const { fr_team_free(team); }
};
using Team = std::unique_ptr<FrTeam, Release>;

// Experts of a layer, and one that all rows take.
class Mixture {
public:
    Mixture(int count, int top, int hidden, int inner)
        : router_(floats(int64_t(count) * hidden)), shared_gate_(floats(hidden)) {
        parts_.reserve(3 * (count + 1));  // structs point into them
        for (int mlp = 0; mlp <= count; ++mlp) {
            const int rows = mlp < count ? inner : inner + 32;
            add(mlp < count ? gate_ : shared_, {rows, hidden, 32, 4, mlp % 2 == 1, false});
            add(mlp < count ? up_ : shared_, {rows, hidden, 32, 8, false, true});
            add(mlp < count ? down_ : shared_, {hidden, rows, 32, 4, false, false});
        }
        experts_ = {router_.data(), gate_.data(),        up_.data(), down_.data(),
                    shared_.data(), shared_gate_.data(), count,      top,          1};
    }
    const FrExperts* experts() const { return &experts_; }

private:
    void add(std::vector<FrLinear>& linears, Packed part) {
        parts_.push_back(std::move(part));
        linears.push_back(parts_.back().linear);
    }

    std::vector<float> router_, shared_gate_;
    std::vector<Packed> parts_;
    std::vector<FrLinear> gate_, up_, down_, shared_;
    FrExperts experts_;
};

struct Shape {
    int hidden, inner, heads, kv_heads, dim, bits, window, activation;
    bool wide, extra_norms, bfloat16, tokens;
    int turned;  // dimensions of a head; where not all do, attention is gated
    const FrExperts* experts = nullptr;
};

class Layer {
public:
    explicit Layer(const Shape& s)
        : shape_(s),
          stream_norm_(floats(s.hidden)),
          head_norm_(floats(s.dim)),
          queries_(s.heads * s.dim, read(s), 32, s.bits, s.wide, true),
          keys_(s.kv_heads * s.dim, read(s), 32, 8, false, false),
          values_(s.kv_heads * s.dim, read(s), 32, s.bits, s.wide, false),
          gates_(s.heads * s.dim, read(s), 32, s.bits, s.wide, true),
          output_(s.hidden, s.heads * s.dim, 32, s.bits, s.wide, false),
          gate_(s.inner, s.hidden, 32, s.bits, s.wide, true),
          up_(s.inner, s.hidden, 32, 8, s.wide, false),
          down_(s.hidden, s.inner, 32, s.bits, s.wide, true) {}

    FrLayer layer() const {
        const float* extra = shape_.extra_norms ? stream_norm_.data() : nullptr;
        const float* head = shape_.extra_norms ? head_norm_.data() : nullptr;
        return {stream_norm_.data(),
                head,
                head,
                extra,
                stream_norm_.data(),
                extra,
                {queries_.linear, keys_.linear, values_.linear},
                output_.linear,
                gate_.linear,
                up_.linear,
                down_.linear,
                1e-6f,
                0.125f,
                shape_.hidden,
                shape_.inner,
                shape_.heads,
                shape_.kv_heads,
                shape_.dim,
                shape_.activation,
                shape_.window,
                shape_.tokens,
                shape_.tokens ? stream_norm_.data() : nullptr,
                shape_.turned,
                shape_.turned < shape_.dim ? gates_.linear : FrLinear{},
                nullptr,
                shape_.experts};
    }

    // The stream of `length` rows that pass in forwards of `width` through this layer three times,
    // by calls for `together` of them.
    std::vector<float> run(FrTeam* team, const std::vector<float>& input, int length, int width,
                           int together) const {
        const FrLayer layer = this->layer();
        const std::vector<FrLayer> layers(kLayers, layer);
        const int element = shape_.bfloat16 ? 2 : 4, half = shape_.turned / 2;
        std::vector<float> stream = input, cosines(length * half, 0.8f), sines(length * half, 0.6f);
        const int64_t bytes = int64_t(shape_.kv_heads) * length * shape_.dim * element;
        std::vector<uint8_t> keys[kLayers], values[kLayers];
        for (int i = 0; i < kLayers; ++i) keys[i].resize(bytes, 0xff), values[i] = keys[i];
        for (int at = 0; at < length; at += width) {
            const int rows = length - at < width ? length - at : width;
            std::vector<uint8_t> scratch(fr_layer_scratch(&layer, rows, fr_team_threads(team)));
            const FrPass pass = {&stream[int64_t(at) * shape_.hidden], &cosines[at * half],
                                 &sines[at * half], rows, &input[int64_t(at) * shape_.hidden]};
            std::vector<FrStep> steps;
            for (int i = 0; i < kLayers; ++i)
                steps.push_back({&pass, keys[i].data(), values[i].data(),
                                 int64_t(length) * shape_.dim, int64_t(length) * shape_.dim,
                                 shape_.bfloat16, at, at + rows, 5});
            for (int i = 0; i < kLayers; i += together)
                fr_layers(team, &layers[i], &steps[i], together, scratch.data());
        }
        return stream;
    }

    static constexpr int kLayers = 3;

private:
    static int read(const Shape& s) { return s.tokens ? 2 * s.hidden : s.hidden; }

    Shape shape_;
    std::vector<float> stream_norm_, head_norm_;
    Packed queries_, keys_, values_, gates_, output_, gate_, up_, down_;
};

struct DeltaSizes {
    int hidden, inner, key_heads, value_heads, key_dim, value_dim, taps, bits;
    int channels() const { return 2 * key_heads * key_dim + mixed(); }
    int mixed() const { return value_heads * value_dim; }
    int64_t tail() const { return int64_t(taps - 1) * channels(); }
    int64_t state() const { return int64_t(mixed()) * key_dim; }
};

// What steps read, and a struct that points to it.
struct DeltaRows {
    std::vector<float> raw, keys, values, decay, beta;
    DeltaRows(const DeltaSizes& s, int rows)
        : raw(int64_t(rows) * s.channels()),
          keys(rows * s.key_heads * s.key_dim),
          values(rows * s.mixed()),
          decay(rows * s.value_heads),
          beta(decay) {}
    FrDeltaRows rows() {
        return {raw.data(), keys.data(), values.data(), decay.data(), beta.data()};
    }
};

class DeltaLayer {
public:
    explicit DeltaLayer(const DeltaSizes& s)
        : sizes_(s),
          stream_norm_(floats(s.hidden)),
          gates_(floats(2 * s.value_heads * s.hidden)),
          conv_(floats(s.taps * s.channels())),
          conv_bias_(floats(s.channels())),
          log_decay_(floats(s.value_heads)),
          step_bias_(floats(s.value_heads)),
          norm_(floats(s.value_dim)),
          inputs_(s.channels(), s.hidden, 32, s.bits, false, true),
          output_gates_(s.mixed(), s.hidden, 32, 8, true, false),
          output_(s.hidden, s.mixed(), 32, s.bits, false, false),
          gate_(s.inner, s.hidden, 32, 8, false, false),
          down_(s.hidden, s.inner, 32, 8, false, false) {
        delta_ = {{inputs_.linear, output_gates_.linear},
                  gates_.data(),
                  conv_.data(),
                  conv_bias_.data(),
                  log_decay_.data(),
                  step_bias_.data(),
                  norm_.data(),
                  s.taps,
                  s.key_heads,
                  s.value_heads,
                  s.key_dim,
                  s.value_dim};
        layer_.input_norm = layer_.mlp_norm = stream_norm_.data();
        layer_.output = output_.linear;
        layer_.gate = layer_.up = gate_.linear;
        layer_.down = down_.linear;
        layer_.epsilon = 1e-6f;
        layer_.hidden = s.hidden;
        layer_.inner = s.inner;
        layer_.delta = &delta_;
    }
    DeltaLayer(const DeltaLayer&) = delete;

    bool supported() const { return fr_layer_supported(&layer_); }

    // The stream and the state after `length` rows in forwards of `width`, of which the last ones
    // stay pending and are folded in at the end. States at splits are copied, too.
    std::vector<float> run(FrTeam* team, const std::vector<float>& input, int length,
                           int width) const {
        const DeltaSizes& s = sizes_;
        std::vector<float> stream = input, tails(2 * s.tail(), 0.5f), states(2 * s.state(), 0.5f);
        for (int at = 0, flip = 0; at < length; at += width, flip = !flip) {
            const int rows = length - at < width ? length - at : width, split = rows / 2;
            const bool last = at + rows == length;
            DeltaRows kept(s, rows);
            std::vector<float> split_tail(s.tail()), split_state(s.state());
            float *const split_tails[] = {split_tail.data()}, *state = &states[flip * s.state()];
            float *const split_states[] = {split_state.data()};
            float *tail = &tails[flip * s.tail()], *next = &states[!flip * s.state()];
            FrDeltaStep step = {};
            step.tail = tail;
            step.state = state;
            if (last) step.kept = kept.rows();
            if (!last) step.end_tail = &tails[!flip * s.tail()], step.end_state = next;
            step.splits = &split;
            step.split_tails = split_tails;
            step.split_states = split_states;
            step.split_count = split > 0;
            pass(team, &stream[int64_t(at) * s.hidden], rows, step);
            if (last) fold(team, state, next, kept, rows);
            if (last) stream.insert(stream.end(), next, next + s.state());
        }
        return stream;
    }

private:
    void pass(FrTeam* team, float* stream, int rows, const FrDeltaStep& delta) const {
        std::vector<uint8_t> scratch(fr_layer_scratch(&layer_, rows, fr_team_threads(team)));
        const FrPass passing = {stream, nullptr, nullptr, rows, nullptr};
        FrStep step = {};
        step.rows = &passing;
        step.delta = &delta;
        fr_layers(team, &layer_, &step, 1, scratch.data());
    }

    // Half of the steps by the fold alone, the others before a row that leaves no state.
    void fold(FrTeam* team, const float* from, float* to, DeltaRows& kept, int rows) const {
        const DeltaSizes& s = sizes_;
        const int half = rows / 2;
        std::vector<float> between(from, from + s.state()), tail(s.tail()), row(s.hidden, 0.5f);
        if (half) {
            const FrDeltaFold some = {from,          between.data(), kept.rows(), half, s.key_heads,
                                      s.value_heads, s.key_dim,      s.value_dim};
            std::vector<uint8_t> scratch(fr_delta_fold_scratch(&some, fr_team_threads(team)));
            fr_delta_fold(team, &some, scratch.data());
        }
        const FrDeltaRows all = kept.rows();
        FrDeltaStep step = {};
        step.tail = tail.data();
        step.state = between.data();
        step.pending = {nullptr, all.keys + half * s.key_heads * s.key_dim,
                        all.values + half * s.mixed(), all.decay + half * s.value_heads,
                        all.beta + half * s.value_heads};
        step.pending_count = rows - half;
        step.folded = to;
        pass(team, row.data(), 1, step);
    }

    DeltaSizes sizes_;
    std::vector<float> stream_norm_, gates_, conv_, conv_bias_, log_decay_, step_bias_, norm_;
    Packed inputs_, output_gates_, output_, gate_, down_;
    FrDelta delta_{};
    FrLayer layer_{};
};

int failures = 0;

void check(bool right, const char* what, const char* isa, int width) {
    if (right) return;
    std::fprintf(stderr, "%s differs on %s at width %d\n", what, isa, width);
    ++failures;
}

bool same(const std::vector<float>& a, const float* b) {
    return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

void test_linear(const char* isa, int rows, int columns, int group, int bits) {
    const Packed one(rows, columns, group, bits, rows % 2, true),
        two(3, columns, 32, 8, true, false);
    const FrLinear parts[] = {one.linear, two.linear};
    const int length = 300, outputs = rows + 3;
    const std::vector<float> x = floats(int64_t(length) * columns);
    std::vector<float> whole(int64_t(length) * outputs);
    const Team alone(fr_team_new(1, isa, 1)), team(fr_team_new(3, isa, 1));
    std::vector<uint8_t> scratch(fr_linear_scratch(columns, length));
    fr_linear(alone.get(), parts, 2, x.data(), length, whole.data(), scratch.data());
    for (int width : {1, 5, 8, 16, 299}) {
        std::vector<float> part(int64_t(width) * outputs);
        std::vector<uint8_t> small(fr_linear_scratch(columns, width));
        fr_linear(team.get(), parts, 2, x.data() + columns, width, part.data(), small.data());
        check(same(part, whole.data() + outputs), "linear", isa, width);
    }
}

void test_head(const char* isa) {
    const Packed weight(77, 96, 32, 8, false, false);
    const std::vector<float> norm = floats(96), x = floats(20 * 96);
    const FrHead head = {norm.data(), weight.linear, 1e-6f};
    const Team team(fr_team_new(2, isa, 1));
    std::vector<float> first;
    for (int width : {20, 1, 7}) {
        std::vector<float> logits(width * 77), best(width * 80);
        std::vector<int32_t> ids(width * 80);
        std::vector<uint8_t> scratch(fr_head_scratch(96, width, 80, 2));
        fr_head(team.get(), &head, x.data(), width, logits.data(), 80, ids.data(), best.data(),
                scratch.data());
        if (first.empty()) first = logits;
        check(same(logits, first.data()), "head", isa, width);
        check(ids[76] >= 0 && ids[77] == -1 && best[0] == logits[ids[0]], "top", isa, width);
    }
}

void test_layer(const char* isa, const Shape& shape) {
    const Layer layer(shape);
    const int length = 270;
    const std::vector<float> input = floats(int64_t(length) * shape.hidden);
    const Team alone(fr_team_new(1, isa, 1)), team(fr_team_new(3, isa, 1));
    const std::vector<float> whole = layer.run(alone.get(), input, length, length, 1);
    for (int width : {2, 7, 16, 100})
        for (int together : {1, Layer::kLayers})
            check(same(layer.run(team.get(), input, length, width, together), whole.data()),
                  "layers", isa, width);
}

void test_delta(const char* isa, const DeltaSizes& sizes) {
    const DeltaLayer layer(sizes);
    check(layer.supported(), "support", isa, 0);
    const int length = 270;
    const std::vector<float> input = floats(int64_t(length) * sizes.hidden);
    const Team alone(fr_team_new(1, isa, 1)), team(fr_team_new(3, isa, 1));
    const std::vector<float> whole = layer.run(alone.get(), input, length, length);
    for (int width : {1, 7, 16, 265})
        check(same(layer.run(team.get(), input, length, width), whole.data()), "delta", isa, width);
}

}  // namespace

int main() {
    for (const char* isa : {"avx512", "avx2", "neon", "scalar"}) {
        if (!Team(fr_team_new(1, isa, 1))) continue;
        test_linear(isa, 1, 32, 32, 4);
        test_linear(isa, 33, 192, 64, 8);
        test_linear(isa, 50, 384, 128, 4);
        test_head(isa);
        test_layer(isa, {64, 96, 4, 2, 32, 4, 0, 0, false, false, true, false, 32});
        test_layer(isa, {96, 64, 3, 1, 96, 8, 37, 1, true, true, false, false, 96});
        test_layer(isa, {96, 64, 2, 2, 32, 8, 0, 0, false, false, true, true, 32});
        test_layer(isa, {64, 96, 4, 2, 64, 4, 0, 0, false, true, true, false, 22});
        const Mixture mixture(19, 3, 64, 32);
        test_layer(isa, {64, 0, 2, 1, 32, 8, 0, 1, true, true, true, false, 32, mixture.experts()});
        test_delta(isa, {32, 32, 1, 3, 16, 32, 2, 4});
        test_delta(isa, {64, 32, 1, 1, 128, 64, 5, 8});
    }
    return failures != 0;
}
