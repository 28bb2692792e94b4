// The layout of packed weights (see linear.h), written once at load.
#include <cstring>

#include "abi.h"
#include "half.h"

namespace {

constexpr int kRows = 16, kSub = 32;

int64_t code_bytes(const FrLinear& w) { return int64_t(w.group) * w.bits * kRows / 8; }
int64_t term_bytes(const FrLinear& w) { return kRows * (w.wide_terms ? 4 : 2); }
int64_t group_bytes(const FrLinear& w) { return code_bytes(w) + 2 * term_bytes(w); }
int groups_of(const FrLinear& w) { return w.columns / w.group; }

int64_t group_at(const FrLinear& w, int row, int group) {
    return (int64_t(row / kRows) * groups_of(w) + group) * group_bytes(w);
}

// Where the code of a column of its group stands, and whether in the high nibble.
struct Place {
    int64_t byte;
    bool high;
};

Place place_of(const FrLinear& w, int row, int column) {
    const int within = column % kSub, lane = row % kRows;
    const int64_t sub = int64_t(column / kSub) * w.bits * kSub * kRows / 8;
    if (w.bits == 8) return {sub + within / 4 * 64 + lane * 4 + within % 4, false};
    return {sub + within / 8 * 64 + lane * 4 + within % 4, within % 8 >= 4};
}

void put_term(const FrLinear& w, uint8_t* terms, int row, float value) {
    const int lane = row % kRows;
    if (w.wide_terms) {
        std::memcpy(terms + lane * 4, &value, 4);
    } else {
        const uint16_t half = forerun::to_half(value);
        std::memcpy(terms + lane * 2, &half, 2);
    }
}

float term_at(const FrLinear& w, const uint8_t* terms, int row) {
    const int lane = row % kRows;
    if (w.wide_terms) {
        float value;
        std::memcpy(&value, terms + lane * 4, 4);
        return value;
    }
    uint16_t half;
    std::memcpy(&half, terms + lane * 2, 2);
    return forerun::from_half(half);
}

// Half a word's nibbles, each in a byte of its own.
uint32_t apart(uint32_t nibbles) {
    const uint32_t pairs = (nibbles | nibbles << 8) & 0x00ff00ff;
    return (pairs | pairs << 4) & 0x0f0f0f0f;
}

// A word's columns stand together in its row's four bytes of a chunk.
void pack_group(const FrLinear& w, const uint32_t* words, int row, uint8_t* to) {
    const int count = w.group * w.bits / 32;
    to += row % kRows * 4;
    for (int i = 0; i < count; ++i, to += 64) {
        uint32_t codes = words[i];
        if (w.bits == 4) codes = apart(codes & 0xffff) | apart(codes >> 16) << 4;
        for (int byte = 0; byte < 4; ++byte) to[byte] = uint8_t(codes >> 8 * byte);
    }
}

void unpack_group(const FrLinear& w, const uint8_t* from, int row, float* values) {
    const float scale = term_at(w, from + code_bytes(w), row);
    const float zero_term = term_at(w, from + code_bytes(w) + term_bytes(w), row);
    for (int column = 0; column < w.group; ++column) {
        const Place place = place_of(w, row, column);
        const int byte = from[place.byte];
        const int code = w.bits == 8 ? byte : place.high ? byte >> 4 : byte & 15;
        values[column] = scale * float(code) + zero_term;
    }
}

}  // namespace

extern "C" {

int64_t fr_packed_bytes(int32_t rows, int32_t columns, int32_t group, int32_t bits,
                        int32_t wide_terms) {
    const FrLinear w = {nullptr, nullptr, rows, columns, group, bits, wide_terms};
    return int64_t((rows + kRows - 1) / kRows) * groups_of(w) * group_bytes(w);
}

void fr_pack(const uint32_t* words, const float* scales, const float* zero_terms,
             const FrLinear* shape, uint8_t* packed) {
    const FrLinear& w = *shape;
    const int groups = groups_of(w), words_per_group = w.group * w.bits / 32;
    if (w.rows % kRows) {  // the last block is not full
        const int64_t block = groups * group_bytes(w);
        std::memset(packed + w.rows / kRows * block, 0, block);
    }
    for (int64_t row = 0; row < w.rows; ++row) {
        for (int group = 0; group < groups; ++group) {
            uint8_t* to = packed + group_at(w, int(row), group);
            const int64_t at = row * groups + group;
            pack_group(w, words + at * words_per_group, int(row), to);
            put_term(w, to + code_bytes(w), int(row), scales[at]);
            put_term(w, to + code_bytes(w) + term_bytes(w), int(row),
                     zero_terms ? zero_terms[at] : 0.0f);
        }
    }
}

void fr_unpack_rows(const FrLinear* weight, const int64_t* rows, int32_t count, float* values) {
    const FrLinear& w = *weight;
    for (int32_t i = 0; i < count; ++i)
        for (int group = 0; group < groups_of(w); ++group) {
            const uint8_t* from = w.packed + group_at(w, int(rows[i]), group);
            unpack_group(w, from, int(rows[i]), values + int64_t(i) * w.columns + group * w.group);
        }
}
}
