#!/usr/bin/env python3
"""Reads a converted model by docs/formats.md alone and compares every routed expert with its checkpoint (one file, a tensor an expert).

usage: read_container.py CONTAINER CHECKPOINT      experts in mxfp4 or q4g64; no packages needed
"""
import json, struct, sys

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6]
f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
f16 = lambda x: struct.unpack("<e", struct.pack("<e", x))[0]

def tensors(path):
    data = open(path, "rb").read()
    start = 8 + struct.unpack_from("<Q", data)[0]
    return {name: (t["shape"], data[start + t["data_offsets"][0] : start + t["data_offsets"][1]])
            for name, t in json.loads(data[8:start]).items() if name != "__metadata__"}

def tile(data, at, cols, begin, format):
    """16 rows of `cols` values from data[at], and where the next tile begins; `begin` is the first column in the whole matrix."""
    mx, rows = format == "mxfp4", [[] for _ in range(16)]
    phase = 0 if mx else begin // 32 % 2
    for block in range((cols + 31) // 32):
        group = block if mx else (block + phase) // 2
        if block == 0 or (block % 4 == 0 if mx else (block + phase) % 4 == 0):
            scales, at = data[at : at + 64], at + 64
        for r in range(16):
            place = 16 * (group % 4) + r if mx else 2 * (16 * (group % 2) + r)
            scale = 2.0 ** (scales[place] - 127) if mx else struct.unpack_from("<e", scales, place)[0]
            for k in range(32):
                code = data[at + 64 * (k // 8) + 4 * r + k % 4] >> (4 if k // 4 % 2 else 0) & 15
                rows[r].append((E2M1[code] if mx else code - 8) * scale)
        at += 4 * 64
    return [row[:cols] for row in rows], at

def stored(weights, name, format):
    """A matrix of the checkpoint as rows of what the format makes of it."""
    (rows, cols), data = weights[name]
    if name + "_scale" in weights: # Quark: two E2M1 codes a byte, low nibble first, and an E8M0 byte for 32 of them
        values = [E2M1[b >> s & 15] for b in data for s in (0, 4)]
        scales, cols = weights[name + "_scale"][1], 2 * cols
        return [[values[r * cols + c] * 2.0 ** (scales[(r * cols + c) // 32] - 127) for c in range(cols)] for r in range(rows)]
    out = []
    for row in (struct.unpack_from(f"<{cols}f", data, 4 * r * cols) for r in range(rows)):
        out.append([])
        for group in (row[c : c + 64] for c in range(0, cols, 64)):
            scale = f16(f32(max(map(abs, group)) / 7)) or 1
            out[-1] += [max(-8, min(7, round(f32(v / scale)))) * scale for v in group]
    return out

directory, checkpoint = sys.argv[1:]
weights, compared = tensors(checkpoint + "/model.safetensors"), 0
for layer in json.load(open(directory + "/potluck.json"))["layers"]:
    shape, file = layer.get("routed"), tensors(f"{directory}/experts-{layer['layer']:03}.safetensors")
    if not shape or shape["gate_up"] not in ("mxfp4", "q4g64"):
        continue
    for name in (n for n in file if ".experts." in n):
        parts = {p: stored(weights, name.replace("chunks", p + "_proj.weight"), shape["gate_up"]) for p in ("gate", "up", "down")}
        hidden, (n_chunks, chunk_bytes), data = len(parts["down"]), *file[name]
        for chunk in range(n_chunks):
            begin, at = chunk * shape["chunk"], chunk * chunk_bytes
            n = min(shape["chunk"], shape["inner"] - begin)
            for r in range(0, n, 16):
                for part in ("gate", "up"):
                    rows, at = tile(data, at, hidden, 0, shape["gate_up"])
                    assert rows[: min(16, n - r)] == parts[part][begin + r : begin + min(n, r + 16)], (name, chunk, part, r)
            for r in range(0, hidden, 16):
                rows, at = tile(data, at, n, begin, shape["down"])
                want = [row[begin : begin + n] for row in parts["down"][r : r + 16]]
                assert rows[: len(want)] == want, (name, chunk, "down", r)
            compared += 3 * n * hidden
print(f"{compared} weights are those of the checkpoint")
sys.exit(not compared)
