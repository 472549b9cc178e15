#!/usr/bin/env python3
"""Writes a BF16 checkpoint of one sparse layer with GLM-5.2's widths and as many experts as asked for, to convert and to measure.

usage: make_checkpoint.py DIRECTORY EXPERTS       75 MB an expert; the same bytes every time
"""
import json, os, random, struct, sys

directory, experts = sys.argv[1], int(sys.argv[2])
hidden, inner, heads, q_lora, kv_lora, nope, rope, v, vocab = 6144, 2048, 64, 2048, 512, 192, 64, 256, 4096
config = {"model_type": "glm_moe_dsa", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 12288, "moe_intermediate_size": inner,
          "num_hidden_layers": 1, "first_k_dense_replace": 0, "num_attention_heads": heads, "q_lora_rank": q_lora, "kv_lora_rank": kv_lora,
          "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v, "n_routed_experts": experts, "n_shared_experts": 1,
          "num_experts_per_tok": 8, "routed_scaling_factor": 2.5, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
          "index_topk_freq": 4, "index_skip_topk_offset": 3, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
          "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}}

# Noise with exponents that weights have: +-(2^-8 .. 2^-5).  Every tensor is a run of it from some place on.
noise = bytearray(random.Random(1).randbytes(32 << 20))
noise[1::2] = bytes(noise[1::2]).translate(bytes(0x3B + (b & 1) | (b & 0x80) for b in range(256)))

shapes = {"model.embed_tokens.weight": [vocab, hidden], "lm_head.weight": [vocab, hidden], "model.norm.weight": [hidden]}
layer = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_a_proj": [q_lora, hidden], "self_attn.q_a_layernorm": [q_lora],
         "self_attn.q_b_proj": [heads * (nope + rope), q_lora], "self_attn.kv_a_proj_with_mqa": [kv_lora + rope, hidden],
         "self_attn.kv_a_layernorm": [kv_lora], "self_attn.kv_b_proj": [heads * (nope + v), kv_lora], "self_attn.o_proj": [hidden, heads * v],
         "self_attn.indexer.wq_b": [32 * 128, q_lora], "self_attn.indexer.wk": [128, hidden], "self_attn.indexer.k_norm": [128],
         "self_attn.indexer.weights_proj": [32, hidden], "mlp.gate": [experts, hidden]}
for block in [f"mlp.experts.{e}" for e in range(experts)] + ["mlp.shared_experts"]:
    layer |= {f"{block}.gate_proj": [inner, hidden], f"{block}.up_proj": [inner, hidden], f"{block}.down_proj": [hidden, inner]}
shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
shapes |= {"model.layers.0.self_attn.indexer.k_norm.bias": [128], "model.layers.0.mlp.gate.e_score_correction_bias": [experts]}

header, at = {}, 0
for name, shape in shapes.items():
    size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
os.makedirs(directory, exist_ok=True)
json.dump(config, open(directory + "/config.json", "w"), indent=1)
with open(directory + "/model.safetensors", "wb") as out:
    text = json.dumps(header).encode()
    out.write(struct.pack("<Q", len(text)) + text)
    for i, tensor in enumerate(header.values()):
        left, start = tensor["data_offsets"][1] - tensor["data_offsets"][0], i * 999_424 % (16 << 20)
        while left:
            part = noise[start : start + left]
            out.write(part)
            left, start = left - len(part), 0
    out.flush()
    os.fsync(out.fileno())
