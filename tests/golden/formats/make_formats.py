#!/usr/bin/env python3
"""Writes the small checkpoints of this folder: one per weight format, with the weights that its codes stand for.

Every checkpoint is a whole model (one layer, random codes). expected.json has, per tensor under its name in
transformers, the shape, the SHA-256 of the weights as little-endian f32, and the first four of them. The decoders here
were written from the descriptions of the formats (GPTQModel, AutoAWQ, transformers, ggml), with Python's standard
library alone; they share nothing with the program.

usage: python3 tests/golden/formats/make_formats.py [FOLDER]      default: the folder of this script
"""
import hashlib
import json
import math
import os
import random
import struct
import sys

HIDDEN, VOCAB, HEADS, HEAD_DIM, EXPERTS, INNER = 64, 16, 2, 16, 2, 32


def r32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def r16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16(x):
    return struct.unpack("<f", struct.pack("<I", bf16_bits(x) << 16))[0]


class Model:
    """Tensors of a safetensors file, and the weights that a reader must give."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = []  # name, dtype, shape, bytes
        self.expected = {}

    def expect(self, name, shape, values):
        data = struct.pack("<%df" % len(values), *values)
        self.expected[name] = {"shape": shape, "sha256": hashlib.sha256(data).hexdigest(), "first": values[:4]}

    def put(self, name, dtype, shape, data):
        self.tensors.append((name, dtype, shape, data))

    def normal(self, count, scale=0.05):
        return [self.random.gauss(0, scale) for _ in range(count)]

    def plain(self, name, shape, mean=0.0):
        count = 1
        for size in shape:
            count *= size
        values = [bf16(mean + v) for v in self.normal(count)]
        self.put(name, "BF16", shape, b"".join(struct.pack("<H", bf16_bits(v)) for v in values))
        self.expect(name, shape, values)

    def write(self, folder, config):
        os.makedirs(folder, exist_ok=True)
        header, offset = {}, 0
        for name, dtype, shape, data in self.tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, "model.safetensors"), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in self.tensors))
        write_json(os.path.join(folder, "config.json"), config)
        write_json(os.path.join(folder, "expected.json"), self.expected)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(value, out, separators=(",", ":"))
        out.write("\n")


def config_of(inner=INNER, **more):
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": 64, "num_experts": EXPERTS, "num_experts_per_tok": 1,
        "moe_intermediate_size": inner, "intermediate_size": 64, "norm_topk_prob": True, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 1}
    config.update(more)
    return config


def matrices(inner=INNER):
    """The quantised matrices: module name, outputs, inputs."""
    at = "model.layers.0.self_attn."
    yield at + "q_proj", HEADS * HEAD_DIM, HIDDEN
    yield at + "k_proj", HEAD_DIM, HIDDEN
    yield at + "v_proj", HEAD_DIM, HIDDEN
    yield at + "o_proj", HIDDEN, HEADS * HEAD_DIM
    for expert in range(EXPERTS):
        at = "model.layers.0.mlp.experts.%d." % expert
        yield at + "gate_proj", inner, HIDDEN
        yield at + "up_proj", inner, HIDDEN
        yield at + "down_proj", HIDDEN, inner


def plain_parts(model):
    model.plain("model.embed_tokens.weight", [VOCAB, HIDDEN])
    model.plain("model.norm.weight", [HIDDEN], 1.0)
    at = "model.layers.0."
    model.plain(at + "input_layernorm.weight", [HIDDEN], 1.0)
    model.plain(at + "post_attention_layernorm.weight", [HIDDEN], 1.0)
    model.plain(at + "self_attn.q_norm.weight", [HEAD_DIM], 1.0)
    model.plain(at + "self_attn.k_norm.weight", [HEAD_DIM], 1.0)
    model.plain(at + "mlp.gate.weight", [EXPERTS, HIDDEN])


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if code & 0x80 else value


def fp8(folder, seed, kind):
    """kind: block (32 by 32, F32 scales), block16 (bf16 scales), tensor, channel."""
    model, inner, block = Model(seed), 40, 32
    plain_parts(model)
    for name, rows, columns in matrices(inner):
        codes = [model.random.choice([c for c in range(256) if c & 0x7F != 0x7F]) for _ in range(rows * columns)]
        if kind.startswith("block"):
            down, across = -(-rows // block), -(-columns // block)
        else:
            down, across = (rows if kind == "channel" else 1), 1
        scales = [r32(model.random.uniform(1e-4, 1e-3)) for _ in range(down * across)]
        if kind == "block16":
            scales = [bf16(s) for s in scales]
        values = []
        for r in range(rows):
            for c in range(columns):
                if kind.startswith("block"):
                    s = scales[r // block * across + c // block]
                else:
                    s = scales[r if kind == "channel" else 0]
                values.append(r32(e4m3(codes[r * columns + c]) * s))
        model.put(name + ".weight", "F8_E4M3", [rows, columns], bytes(codes))
        model.expect(name + ".weight", [rows, columns], values)
        if kind == "block16":
            model.put(name + ".weight_scale_inv", "BF16", [down, across],
                      b"".join(struct.pack("<H", bf16_bits(s)) for s in scales))
        elif kind == "block":
            model.put(name + ".weight_scale_inv", "F32", [down, across], struct.pack("<%df" % len(scales), *scales))
        else:
            shape = [rows, 1] if kind == "channel" else []
            model.put(name + ".weight_scale", "F32", shape, struct.pack("<%df" % len(scales), *scales))
            model.put(name + ".input_scale", "F32", [], struct.pack("<f", 0.01))
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    if kind.startswith("block"):
        quantization["weight_block_size"] = [block, block]
    model.write(folder, config_of(inner, quantization_config=quantization))


def packed(nibbles):
    word = 0
    for position, nibble in enumerate(nibbles):
        word |= nibble << 4 * position
    return struct.pack("<I", word)


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def int4(folder, seed, method, group, sym=False, version=1, act=False):
    """GPTQ or AWQ. group 0: one group per row. Some scales are negative."""
    model = Model(seed)
    plain_parts(model)
    for name, rows, columns in matrices():
        size = columns if group == 0 else group
        groups = -(-columns // size)
        codes = [[model.random.randrange(16) for _ in range(columns)] for _ in range(rows)]
        zeros = [[8 if sym else model.random.randrange(1, 16) for _ in range(rows)] for _ in range(groups)]
        scales = [[r16(model.random.choice([1, 1, 1, -1]) * model.random.uniform(1e-3, 1e-2)) for _ in range(rows)]
                  for _ in range(groups)]
        index = [c // size for c in range(columns)]
        if act:
            model.random.shuffle(index)
        values = [r32(scales[index[c]][r] * (codes[r][c] - zeros[index[c]][r]))
                  for r in range(rows) for c in range(columns)]
        model.expect(name + ".weight", [rows, columns], values)

        if method == "gptq":
            stored = [[z - 1 if version == 1 else z for z in line] for line in zeros]
            qweight = b"".join(packed([codes[r][8 * w + k] for k in range(8)])
                               for w in range(columns // 8) for r in range(rows))
            qzeros = b"".join(packed(line[8 * w:8 * w + 8]) for line in stored for w in range(rows // 8))
            model.put(name + ".qweight", "I32", [columns // 8, rows], qweight)
            model.put(name + ".g_idx", "I32", [columns], struct.pack("<%di" % columns, *index))
        else:
            qweight = b"".join(packed([codes[8 * w + AWQ_ORDER[k]][c] for k in range(8)])
                               for c in range(columns) for w in range(rows // 8))
            qzeros = b"".join(packed([line[8 * w + AWQ_ORDER[k]] for k in range(8)])
                              for line in zeros for w in range(rows // 8))
            model.put(name + ".qweight", "I32", [columns, rows // 8], qweight)
        model.put(name + ".qzeros", "I32", [groups, rows // 8], qzeros)
        model.put(name + ".scales", "F16", [groups, rows],
                  b"".join(struct.pack("<e", s) for line in scales for s in line))
    if method == "gptq":
        quantization = {"quant_method": "gptq", "bits": 4, "group_size": group or -1, "sym": sym, "desc_act": act,
                        "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    else:
        quantization = {"quant_method": "awq", "bits": 4, "group_size": group or -1, "zero_point": True,
                        "version": "gemm"}
    model.write(folder, config_of(quantization_config=quantization))


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def mxfp4(folder, seed):
    model = Model(seed)
    plain_parts(model)
    at = "model.layers.0."
    for name, rows, columns in matrices():
        if "experts" not in name:
            model.plain(name + ".weight", [rows, columns])
    for part, rows, columns in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        name = at + "mlp.experts." + part
        blocks = EXPERTS * rows * columns // 32
        codes = [model.random.randrange(16) for _ in range(blocks * 32)]
        scales = [model.random.randrange(119, 123) for _ in range(blocks)]
        values = [r32(E2M1[codes[i]] * 2.0 ** (scales[i // 32] - 127)) for i in range(len(codes))]
        model.put(name + "_blocks", "U8", [EXPERTS, rows, columns // 32, 16],
                  bytes(codes[2 * i] | codes[2 * i + 1] << 4 for i in range(len(codes) // 2)))
        model.put(name + "_scales", "U8", [EXPERTS, rows, columns // 32], bytes(scales))
        model.expect(name, [EXPERTS, rows, columns], values)
    model.write(folder, config_of(quantization_config={"quant_method": "mxfp4"}))


# GGUF: blocks of random codes with sensible scales, and their weights.
def half(rng, low, high):
    return r16(rng.uniform(low, high))


def block_f32(rng):
    value = r32(rng.gauss(0, 0.05))
    return struct.pack("<f", value), [value]


def block_f16(rng):
    value = r16(rng.gauss(0, 0.05))
    return struct.pack("<e", value), [value]


def block_bf16(rng):
    value = bf16(rng.gauss(0, 0.05))
    return struct.pack("<H", bf16_bits(value)), [value]


def block_q8_0(rng):
    d, codes = half(rng, 1e-4, 1e-3), [rng.randrange(-128, 128) for _ in range(32)]
    return struct.pack("<e32b", d, *codes), [r32(d * q) for q in codes]


def block_q4_0(rng):
    d, codes = rng.choice([1, -1]) * half(rng, 1e-3, 1e-2), [rng.randrange(16) for _ in range(32)]
    return (struct.pack("<e", d) + bytes(codes[j] | codes[j + 16] << 4 for j in range(16)),
            [r32(d * (q - 8)) for q in codes])


def block_mxfp4(rng):
    e, codes = rng.randrange(119, 123), [rng.randrange(16) for _ in range(32)]
    return (bytes([e]) + bytes(codes[j] | codes[j + 16] << 4 for j in range(16)),
            [r32(E2M1[q] * 2.0 ** (e - 127)) for q in codes])


def k_scales(rng):
    """Eight scales and minima of 6 bits, and the 12 bytes that hold them."""
    s, m = [rng.randrange(64) for _ in range(8)], [rng.randrange(64) for _ in range(8)]
    out = [0] * 12
    for j in range(4):
        out[j] = s[j] | (s[j + 4] >> 4) << 6
        out[j + 4] = m[j] | (m[j + 4] >> 4) << 6
        out[j + 8] = (s[j + 4] & 15) | (m[j + 4] & 15) << 4
    return s, m, bytes(out)


def block_k45(rng, bits):
    d, dmin = half(rng, 1e-5, 1e-4), half(rng, 1e-5, 1e-3)
    s, m, scales = k_scales(rng)
    codes = [[rng.randrange(2 ** bits) for _ in range(32)] for _ in range(8)]
    low = bytes((codes[2 * p][l] & 15) | (codes[2 * p + 1][l] & 15) << 4 for p in range(4) for l in range(32))
    high = bytes(sum((codes[j][l] >> 4) << j for j in range(8)) for l in range(32)) if bits == 5 else b""
    values = [r32(r32(r32(d * s[j]) * codes[j][l]) - r32(dmin * m[j])) for j in range(8) for l in range(32)]
    return struct.pack("<ee", d, dmin) + scales + high + low, values


def block_q6_k(rng):
    d, scales = half(rng, 1e-5, 1e-4), [rng.randrange(-128, 128) for _ in range(16)]
    codes = [rng.randrange(64) for _ in range(256)]
    low, high = bytearray(128), bytearray(64)
    for i, q in enumerate(codes):
        part, row, l = i // 128, i % 128 // 32, i % 32
        low[part * 64 + row % 2 * 32 + l] |= (q & 15) << (0 if row < 2 else 4)
        high[part * 32 + l] |= (q >> 4) << 2 * row
    values = [r32(r32(d * scales[i // 16]) * (q - 32)) for i, q in enumerate(codes)]
    return bytes(low) + bytes(high) + struct.pack("<16b", *scales) + struct.pack("<e", d), values


TYPES = {  # name: id, elements of a block, function
    "F32": (0, 1, block_f32), "F16": (1, 1, block_f16), "BF16": (30, 1, block_bf16), "Q4_0": (2, 32, block_q4_0),
    "Q8_0": (8, 32, block_q8_0), "Q4_K": (12, 256, lambda rng: block_k45(rng, 4)),
    "Q5_K": (13, 256, lambda rng: block_k45(rng, 5)), "Q6_K": (14, 256, block_q6_k), "MXFP4": (39, 32, block_mxfp4)}


class Gguf:
    def __init__(self, seed):
        self.random, self.values, self.tensors, self.expected = random.Random(seed), [], [], {}

    def tensor(self, name, hf_name, shape, kind, permute=0):
        """permute: heads whose rows llama.cpp stores with neighbours rotated."""
        type_id, elements, make = TYPES[kind]
        count = 1
        for size in shape:
            count *= size
        data, values = bytearray(), []
        for _ in range(count // elements):
            raw, decoded = make(self.random)
            data += raw
            values += decoded
        if permute:
            width = count // shape[0]
            dim = shape[0] // permute
            rows = [values[i * width:(i + 1) * width] for i in range(shape[0])]
            values = []
            for head in range(permute):
                for p in range(2):
                    for j in range(dim // 2):
                        values += rows[head * dim + 2 * j + p]
        self.tensors.append((name, shape, type_id, bytes(data)))
        self.expected[hf_name] = {"shape": shape, "sha256": hashlib.sha256(
            struct.pack("<%df" % len(values), *values)).hexdigest(), "first": values[:4]}

    @staticmethod
    def string(text):
        raw = text.encode()
        return struct.pack("<Q", len(raw)) + raw

    def value(self, value):
        if isinstance(value, bool):
            return struct.pack("<IB", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, float):
            return struct.pack("<If", 6, value)
        if isinstance(value, str):
            return struct.pack("<I", 8) + self.string(value)
        kind = 8 if isinstance(value[0], str) else 5
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(
            self.string(v) if kind == 8 else struct.pack("<i", v) for v in value)

    def file(self, values, tensors):
        head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(values))
        for name, value in values:
            head += self.string(name) + self.value(value)
        offset, body = 0, b""
        for name, shape, type_id, data in tensors:
            head += self.string(name) + struct.pack("<I", len(shape))
            head += b"".join(struct.pack("<Q", size) for size in reversed(shape))
            head += struct.pack("<IQ", type_id, len(body))
            body += data + bytes(-len(data) % 32)
        return head + bytes(-len(head) % 32) + body

    def write(self, folder, splits=1):
        os.makedirs(folder, exist_ok=True)
        if splits == 1:
            with open(os.path.join(folder, "model.gguf"), "wb") as out:
                out.write(self.file(self.values, self.tensors))
        for number in range(splits if splits > 1 else 0):
            values = [("split.no", number), ("split.count", splits), ("split.tensors.count", len(self.tensors))]
            name = "model-%05d-of-%05d.gguf" % (number + 1, splits)
            with open(os.path.join(folder, name), "wb") as out:
                out.write(self.file((self.values if number == 0 else []) + values, self.tensors[number::splits]))
        write_json(os.path.join(folder, "expected.json"), self.expected)


# A byte-level BPE tokenizer of 16 tokens: "hello hello<|end|>" is 8, 9, 15.
TOKENIZER = [
    ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2"),
    ("tokenizer.ggml.tokens", ["h", "e", "l", "o", "\u0120", "he", "ll", "hell", "hello", "\u0120hello", "a", "b", "c",
                               "d", "<|pad|>", "<|end|>"]),
    ("tokenizer.ggml.token_type", [1] * 14 + [5, 3]),
    ("tokenizer.ggml.merges", ["h e", "l l", "he ll", "hell o", "\u0120 hello"]),
    ("tokenizer.ggml.eos_token_id", 15), ("tokenizer.ggml.bos_token_id", 15), ("tokenizer.ggml.add_bos_token", False),
    ("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")]


def gguf(folder, seed, family, hidden, inner, kinds, experts=0, bias=False, splits=1, tied=True):
    """kinds: types by turns for the matrices. Rows that a type's blocks do not divide get F16."""
    model = Gguf(seed)
    heads, dim, turn = 2, 16, 0
    values = [("general.architecture", family), ("general.name", "tiny")]
    for name, value in (("block_count", 1), ("context_length", 64), ("embedding_length", hidden),
                        ("feed_forward_length", inner), ("attention.head_count", heads),
                        ("attention.head_count_kv", 1), ("attention.key_length", dim),
                        ("attention.value_length", dim), ("rope.freq_base", 10000.0),
                        ("attention.layer_norm_rms_epsilon", 1e-6)):
        values.append((family + "." + name, value))
    if experts:
        for name, value in (("expert_count", experts), ("expert_used_count", 1),
                            ("expert_feed_forward_length", inner)):
            values.append((family + "." + name, value))
    if experts and splits == 1:
        values += TOKENIZER
    model.values = values

    def matrix(name, hf_name, shape, permute=0):
        nonlocal turn
        kind = kinds[turn % len(kinds)]
        turn += 1
        model.tensor(name, hf_name, shape, kind if shape[-1] % TYPES[kind][1] == 0 else "F16", permute)

    at, to, rotated = "blk.0.", "model.layers.0.", family == "llama"
    matrix("token_embd.weight", "model.embed_tokens.weight", [VOCAB, hidden])
    if not tied:
        matrix("output.weight", "lm_head.weight", [VOCAB, hidden])
    model.tensor("output_norm.weight", "model.norm.weight", [hidden], "F32")
    model.tensor(at + "attn_norm.weight", to + "input_layernorm.weight", [hidden], "F32")
    model.tensor(at + "ffn_norm.weight", to + "post_attention_layernorm.weight", [hidden], "F32")
    for part, rows, count in (("q", heads * dim, heads), ("k", dim, 1), ("v", dim, 0)):
        names = at + "attn_" + part, to + "self_attn." + part + "_proj"
        matrix(names[0] + ".weight", names[1] + ".weight", [rows, hidden], count if rotated else 0)
        if bias:
            model.tensor(names[0] + ".bias", names[1] + ".bias", [rows], "F32", count if rotated else 0)
    if rotated:  # Llama 3.1's scaling of the rotation: factor 8, low 1, high 4, original context 8192
        factors = []
        for j in range(dim // 2):
            turns = 8192 * 10000.0 ** (-2 * j / dim) / (2 * math.pi)
            smooth = min(1, max(0, (turns - 1) / (4 - 1)))
            factors.append(r32(1 / ((1 - smooth) / 8 + smooth)))
        model.tensors.append(("rope_freqs.weight", [dim // 2], 0, struct.pack("<%df" % len(factors), *factors)))
    matrix(at + "attn_output.weight", to + "self_attn.o_proj.weight", [hidden, heads * dim])
    if bias and family == "llama":
        model.tensor(at + "attn_output.bias", to + "self_attn.o_proj.bias", [hidden], "F32")
    if family.startswith("qwen3"):
        model.tensor(at + "attn_q_norm.weight", to + "self_attn.q_norm.weight", [dim], "F32")
        model.tensor(at + "attn_k_norm.weight", to + "self_attn.k_norm.weight", [dim], "F32")
    if experts:
        model.tensor(at + "ffn_gate_inp.weight", to + "mlp.gate.weight", [experts, hidden], "F32")
        for part, shape in (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])):
            matrix(at + "ffn_" + part + "_exps.weight", to + "mlp.experts." + part + "_proj.weight",
                   [experts] + shape)
    else:
        for part, shape in (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])):
            matrix(at + "ffn_" + part + ".weight", to + "mlp." + part + "_proj.weight", shape)
    model.write(folder, splits)


def main():
    if any(word in ("-h", "--help") for word in sys.argv[1:]):
        print(__doc__)
        return
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))

    def at(name):
        return os.path.join(root, name)

    for seed, kind in enumerate(("block", "block16", "tensor", "channel")):
        fp8(at("fp8-" + kind), 100 + seed, kind)
    int4(at("gptq-g32-asym"), 200, "gptq", 32)
    int4(at("gptq-g64-v2"), 201, "gptq", 64, version=2)
    int4(at("gptq-row-sym"), 202, "gptq", 0, sym=True)
    int4(at("gptq-g32-act"), 203, "gptq", 32, act=True)
    int4(at("awq-g32"), 300, "awq", 32)
    int4(at("awq-g16"), 301, "awq", 16)
    mxfp4(at("mxfp4"), 400)
    gguf(at("gguf-moe-q4_0"), 500, "qwen3moe", 64, 32, ["Q4_0"], experts=2)
    gguf(at("gguf-moe-split"), 501, "qwen3moe", 64, 32, ["MXFP4", "Q8_0", "BF16"], experts=2, splits=3)
    gguf(at("gguf-k"), 502, "qwen3", 256, 8, ["Q4_K", "Q5_K", "Q6_K"], tied=False)
    gguf(at("gguf-llama"), 503, "llama", 64, 32, ["Q8_0", "F16", "F32"], bias=True)
    gguf(at("gguf-qwen2"), 504, "qwen2", 64, 32, ["Q4_0", "Q8_0"], bias=True)


if __name__ == "__main__":
    main()
