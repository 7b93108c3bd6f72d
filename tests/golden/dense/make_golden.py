#!/usr/bin/env python3
"""Dense checkpoints with random weights, and what an obvious implementation computes with them.

usage: make_golden.py            writes qwen2/, qwen3/ and llama/ beside this file
       make_golden.py CHECKPOINT compares this implementation with CHECKPOINT/golden.json
example: make_golden.py ../qwen3-tiny   (the golden of transformers: what is said here is said there)

Plain Python in doubles, a token at a time, from the papers: Touvron et al., "LLaMA", 2023; Su et al., "RoFormer", 2021;
the layers' names and the stretched frequencies ("llama3") are those of Hugging Face transformers.
"""
import json
import math
import pathlib
import random
import struct
import sys
from operator import mul

here = pathlib.Path(__file__).parent
prompt_sizes = (1, 7, 33)
greedy_tokens = 24

shape = {
    "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
    "max_position_embeddings": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 160,
}
configs = {
    "qwen2": shape | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_window_layers": 2, "sliding_window": 4096,
        "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "qwen3": shape | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 32,
        "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
    },
    "llama": shape | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        # A short original context: all three kinds of frequencies, within the golden's positions.
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 32, "rope_type": "llama3"},
    },
}


# Files: a checkpoint's tensors as rows of doubles.

def to_bf16(value):
    """The nearest bf16, ties to even, as its 16 bits."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def write_tensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (sizes, words) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(words)}H", *words)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path):
    file = path.read_bytes()
    size = struct.unpack("<Q", file[:8])[0]
    tensors = {}
    for name, entry in json.loads(file[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = [from_bf16(bits) for bits in struct.unpack(f"<{(end - begin) // 2}H", file[begin:end])]
        for length in reversed(entry["shape"][1:]):
            values = [values[at:at + length] for at in range(0, len(values), length)]
        tensors[name] = values
    return tensors


# The model.

def times(matrix, x):
    return [sum(map(mul, row, x)) for row in matrix]


def add(a, b):
    return [one + other for one, other in zip(a, b)]


def rms_norm(x, weight, epsilon):
    scale = 1 / math.sqrt(sum(value * value for value in x) / len(x) + epsilon)
    return [value * scale * factor for value, factor in zip(x, weight)]


def softmax(scores):
    peak = max(scores)
    weights = [math.exp(score - peak) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def frequencies(config, head_dim):
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    plain = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    if rope.get("rope_type", "default") == "default":
        return plain
    assert rope["rope_type"] == "llama3"

    def stretched(frequency):
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns > high:
            return frequency
        if turns < low:
            return frequency / rope["factor"]
        share = (turns - low) / (high - low)
        return share * frequency + (1 - share) * frequency / rope["factor"]
    return [stretched(frequency) for frequency in plain]


class Model:
    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.frequencies = frequencies(config, self.head_dim)
        self.cache = [([], []) for _ in range(config["num_hidden_layers"])]

    def product(self, name, x):
        y = times(self.tensors[name + ".weight"], x)
        return add(y, self.tensors[name + ".bias"]) if name + ".bias" in self.tensors else y

    def norm(self, name, x):
        return rms_norm(x, self.tensors[name + ".weight"], self.config["rms_norm_eps"])

    def heads(self, x):
        return [x[at:at + self.head_dim] for at in range(0, len(x), self.head_dim)]

    def turned(self, head, position, norm):
        if norm + ".weight" in self.tensors:
            head = self.norm(norm, head)
        half = self.head_dim // 2
        out = list(head)
        for i, frequency in enumerate(self.frequencies):
            cosine, sine = math.cos(position * frequency), math.sin(position * frequency)
            out[i] = head[i] * cosine - head[half + i] * sine
            out[half + i] = head[half + i] * cosine + head[i] * sine
        return out

    def attention(self, layer, at, x):
        keys, values = self.cache[layer]
        position = len(keys)
        queries = [self.turned(head, position, at + "q_norm") for head in self.heads(self.product(at + "q_proj", x))]
        keys.append([self.turned(head, position, at + "k_norm") for head in self.heads(self.product(at + "k_proj", x))])
        values.append(self.heads(self.product(at + "v_proj", x)))

        out = []
        for index, query in enumerate(queries):
            kv_head = index * self.config["num_key_value_heads"] // self.config["num_attention_heads"]
            weights = softmax([sum(map(mul, query, key[kv_head])) / math.sqrt(self.head_dim) for key in keys])
            for i in range(self.head_dim):
                out.append(sum(weight * value[kv_head][i] for weight, value in zip(weights, values)))
        return self.product(at + "o_proj", out)

    def ffn(self, gate, up, down, x):
        inner = [one / (1 + math.exp(-one)) * other for one, other in zip(times(gate, x), times(up, x))]
        return times(down, inner)

    def mlp(self, at, x):
        if at + "gate.weight" not in self.tensors:
            return self.ffn(*(self.tensors[f"{at}{name}_proj.weight"] for name in ("gate", "up", "down")), x)

        chances = softmax(times(self.tensors[at + "gate.weight"], x))
        chosen = sorted(range(len(chances)), key=lambda e: -chances[e])[:self.config["num_experts_per_tok"]]
        total = sum(chances[e] for e in chosen) if self.config["norm_topk_prob"] else 1
        out = [0.0] * len(x)
        for e in chosen:
            if at + "experts.gate_up_proj" in self.tensors:
                gate_up = self.tensors[at + "experts.gate_up_proj"][e]
                half = len(gate_up) // 2
                matrices = gate_up[:half], gate_up[half:], self.tensors[at + "experts.down_proj"][e]
            else:
                matrices = (self.tensors[f"{at}experts.{e}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            out = add(out, [chances[e] / total * value for value in self.ffn(*matrices, x)])
        return out

    def step(self, token):
        """Log-probabilities of what follows `token`."""
        x = self.tensors["model.embed_tokens.weight"][token]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = add(x, self.attention(layer, at + "self_attn.", self.norm(at + "input_layernorm", x)))
            x = add(x, self.mlp(at + "mlp.", self.norm(at + "post_attention_layernorm", x)))
        tied = self.config["tie_word_embeddings"]
        head = self.tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
        logits = times(head, self.norm("model.norm", x))
        peak = max(logits)
        total = peak + math.log(sum(math.exp(logit - peak) for logit in logits))
        return [logit - total for logit in logits]


def golden_of(config, tensors, ids):
    model = Model(config, tensors)
    rows = [model.step(token) for token in ids]
    top = [sorted(range(len(row)), key=lambda token: (-row[token], token))[:10] for row in rows]
    entry = {"ids": ids, "nll": [round(-row[token], 6) for row, token in zip(rows, ids[1:])],
             "top_ids": top,
             "top_logprobs": [[round(row[token], 6) for token in best] for row, best in zip(rows, top)],
             "greedy": [], "greedy_margin": []}
    last = rows[-1]
    for _ in range(greedy_tokens):
        first, second = sorted(range(len(last)), key=lambda token: (-last[token], token))[:2]
        entry["greedy"].append(first)
        entry["greedy_margin"].append(round(last[first] - last[second], 6))
        last = model.step(first)
    return entry


# What is written.

def random_tensors(config, seed):
    source = random.Random(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_size, kv_size = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    tensors = {}

    def add_tensor(name, *sizes, mean=0.0, spread=None):
        spread = 1.2 / math.sqrt(sizes[-1]) if spread is None else spread
        count = math.prod(sizes)
        tensors[name] = (list(sizes), [to_bf16(source.gauss(mean, spread)) for _ in range(count)])

    def add_norm(name, size):
        add_tensor(name + ".weight", size, mean=1.0, spread=0.2)

    add_tensor("model.embed_tokens.weight", config["vocab_size"], hidden, spread=0.4)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        add_norm(at + "input_layernorm", hidden)
        for name, num_out, num_in in (("q", q_size, hidden), ("k", kv_size, hidden), ("v", kv_size, hidden),
                                      ("o", hidden, q_size)):
            add_tensor(f"{at}self_attn.{name}_proj.weight", num_out, num_in)
            if config["model_type"] == "qwen2" and name != "o":
                add_tensor(f"{at}self_attn.{name}_proj.bias", num_out, spread=0.5)
        if config["model_type"] == "qwen3":
            add_norm(at + "self_attn.q_norm", head_dim)
            add_norm(at + "self_attn.k_norm", head_dim)
        add_norm(at + "post_attention_layernorm", hidden)
        add_tensor(at + "mlp.gate_proj.weight", inner, hidden)
        add_tensor(at + "mlp.up_proj.weight", inner, hidden)
        add_tensor(at + "mlp.down_proj.weight", hidden, inner)
    add_norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        add_tensor("lm_head.weight", config["vocab_size"], hidden)
    return tensors


def write(name, seed):
    folder = here / name
    folder.mkdir(exist_ok=True)
    config = configs[name]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_tensors(folder / "model.safetensors", random_tensors(config, seed))
    tensors = read_tensors(folder / "model.safetensors")
    source = random.Random(seed)
    golden = [golden_of(config, tensors, [source.randrange(config["vocab_size"]) for _ in range(size)])
              for size in prompt_sizes]
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(name, "greedy:", *golden[1]["greedy"])


def compare(folder):
    config, tensors = json.loads((folder / "config.json").read_text()), read_tensors(folder / "model.safetensors")
    worst = 0.0
    for entry in json.loads((folder / "golden.json").read_text()):
        model = Model(config, tensors)
        rows = [model.step(token) for token in entry["ids"]]
        for row, token, nll in zip(rows, entry["ids"][1:], entry["nll"]):
            worst = max(worst, abs(-row[token] - nll))
        for row, best, logprobs in zip(rows, entry["top_ids"], entry["top_logprobs"]):
            worst = max(worst, *(abs(row[token] - logprob) for token, logprob in zip(best, logprobs)))
        last, same = rows[-1], 0
        for token, margin in zip(entry["greedy"], entry["greedy_margin"]):
            assert margin < 1e-3 or last[token] == max(last), f"greedy token {token}"
            same += last[token] == max(last)
            last = model.step(token)
        print(len(entry["ids"]), "ids:", same, "of", len(entry["greedy"]), "greedy tokens equal")
    print(f"largest difference of a log-probability: {worst:.1e}")


if len(sys.argv) > 1:
    compare(pathlib.Path(sys.argv[1]))
else:
    for index, each in enumerate(configs):
        write(each, 20 + index)
