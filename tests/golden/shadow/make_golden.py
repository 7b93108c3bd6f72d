#!/usr/bin/env python3
"""Writes golden.json: one row of weights in each of a shadow's dtypes.

    python3 tests/golden/shadow/make_golden.py > tests/golden/shadow/golden.json

Nothing of the C++ is used. Bits are written as a string of '0' and '1', the lowest first, eight to a byte; levels of
nf4 are tried one by one. The formulas are those of hub/model/package/shadow_codes.h; every step is rounded to float32.
"""
import json
import math
import random
import struct

LEVELS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
BITS = {"int2": 2, "int3": 3, "nf4": 4, "int8": 8}
SCALE_MIN = 2.0 ** -14


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def f16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


LEVELS = [f32(level) for level in LEVELS]


def nearest(value, low, high):
    return min(max(math.floor(f32(value + 0.5)), low), high)


def group_of(dtype, weights, source_codes):
    """Codes, the f16 values behind them, and the weights that are read again."""
    if dtype in ("nf4", "int8"):
        largest = max(abs(w) for w in weights)
        scale = max(f16(largest if dtype == "nf4" else f32(largest / 127)), SCALE_MIN)
        ratios = [f32(w / scale) for w in weights]
        if dtype == "nf4":
            codes = [min(range(16), key=lambda i: abs(LEVELS[i] - ratio)) for ratio in ratios]
            return codes, [scale], [f32(scale * LEVELS[code]) for code in codes]
        codes = [nearest(ratio, -127, 127) for ratio in ratios]
        return [code % 256 for code in codes], [scale], [f32(scale * code) for code in codes]

    num_codes = 2 ** BITS[dtype]
    low, high = min(min(weights), 0.0), max(max(weights), 0.0)
    margin = f32(f32(high - low) / (2 * (source_codes - 1))) if source_codes else 0.0
    full = f32(f32(f32(high - low) + 2 * margin) / num_codes)
    if full == 0:
        scale, zero = SCALE_MIN, 0.0
    else:
        full = max(full, SCALE_MIN)
        scale, zero = f16(full), f16(f32(f32(f32(margin - low) / full) - 0.5))
    codes = [nearest(f32(f32(w / scale) + zero), 0, num_codes - 1) for w in weights]
    return codes, [scale, zero], [f32(scale * f32(code - zero)) for code in codes]


def case(dtype, size, weights, source_codes=0):
    bits, halves, again = "", [], []
    for first in range(0, len(weights), size):
        codes, values, read = group_of(dtype, weights[first:first + size], source_codes)
        bits += "".join(format(code, f"0{BITS[dtype]}b")[::-1] for code in codes)
        halves += values
        again += read
    row = [int(bits[i:i + 8][::-1], 2) for i in range(0, len(bits), 8)]
    row += list(b"".join(struct.pack("<e", value) for value in halves))
    return {"dtype": dtype, "group_size": size, "source_codes": source_codes, "bytes": row, "weights": again}


def main():
    rng = random.Random(7)
    weights = [f32(rng.gauss(0, 0.05)) for _ in range(128)]
    weights[32:64] = [abs(w) for w in weights[32:64]]  # nothing below zero
    weights[64:96] = [0.0] * 32
    weights[100] = 0.75  # an outlier
    cases = [case(dtype, size, weights) for dtype in BITS for size in (32, 64)]
    cases += [case(dtype, 32, weights, source_codes=16) for dtype in ("int2", "int3")]
    print(json.dumps({"weights": weights, "cases": cases}))


main()
