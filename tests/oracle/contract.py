"""The rules of "one answer" (docs/numerics.md) as a program: what one chunk of one expert must give, bit for bit, in every weight format.

    python3 tests/oracle/contract.py tests/fixtures/contract.safetensors

Slow and plain on purpose (fmaf from the C library, one output at a time).  The file holds, for each format and case:
x [n, K] f32, routing [n] f32, the weights as stored (row-major, not packed), and per chunk j the integer rows
grid.j [n, K] i64.  q.codes / q.scales are x after the activation quantizer.  silu.* is a table for exp and SwiGLU.
"""
import ctypes
import sys

import numpy as np
import torch
from safetensors.torch import save_file

from glm_reference import mxfp4

F = np.float32
_fmaf = ctypes.CDLL('libm.so.6').fmaf
_fmaf.restype = ctypes.c_float
_fmaf.argtypes = [ctypes.c_float] * 3
GRID_BITS = 24
BLOCK = 32
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]          # twice the value: integers


def fma(a, b, c):
    return F(_fmaf(float(a), float(b), float(c)))


def exp(x):
    """Own exp: fixed operations, error under 1 ulp over the clamped range."""
    x = min(max(F(x), F(-87.33654)), F(88.37626))
    n = F(np.rint(F(x * F(1.44269504088896341))))
    r = fma(n, F(-0.693359375), x)
    r = fma(n, F(2.12194440e-4), r)
    p = F(1.9875691500e-4)
    for k in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, F(k))
    y = F(fma(p, F(r * r), r) + F(1))
    return F(np.ldexp(y, int(n)))


def swiglu(g, u):
    return F(F(F(g) / F(F(1) + exp(F(-g)))) * F(u))


def quantize(x):
    """[K] f32 -> int8 codes [K], f32 scales [K/32]; K is padded to 32 with zeros by the caller."""
    b = np.asarray(x, F).reshape(-1, BLOCK)
    amax = np.abs(b).max(1)
    scale = (amax / F(127)).astype(F)
    scale[amax < F(2.0 ** -100)] = 0
    with np.errstate(divide='ignore', invalid='ignore'):
        q = np.rint(b / scale[:, None])
    return np.where(scale[:, None] > 0, q, 0).astype(np.int32).reshape(-1), scale


class Format:
    """Weights of one matrix [rows, cols]; dot(row, lo, hi, x) is that row over columns lo..hi-1 (a chunk of down)."""
    integer = True

    def row(self, r, lo, hi, x):
        """x: (codes, scales) of the columns lo..hi-1 for integer formats, else f32."""
        if not self.integer:
            return self.row_float(r, lo, hi, x)
        codes, scales = x
        acc = F(0)
        for b in range((hi - lo) // BLOCK):
            s = slice(lo + b * BLOCK, lo + (b + 1) * BLOCK)
            w_codes = self.code[r, s].astype(np.int64)                    # may end before the padding
            dot = int(np.dot(w_codes, codes[b * BLOCK:b * BLOCK + len(w_codes)]))
            w = self.block_scale(r, lo // BLOCK + b)
            acc = fma(F(dot), scales[b] if w is None else F(w * scales[b]), acc)
        return acc if self.row_scale is None else F(acc * self.row_scale[r])


class Grouped(Format):
    row_scale = None

    def __init__(self, w, bits, group, scale_dtype):
        top = 7 if bits == 4 else 127
        g = w.reshape(w.shape[0], -1, group)
        s = (np.abs(g).max(-1) / F(top)).astype(F)
        s[s == 0] = 1
        self.scale = s.astype(scale_dtype).astype(F)
        self.code = np.clip(np.rint(g / self.scale[:, :, None]), -top - 1, top).astype(np.int32).reshape(w.shape)
        self.group, self.dtype = group, scale_dtype

    def block_scale(self, r, b):
        return self.scale[r, b * BLOCK // self.group]

    def tensors(self):
        return {'codes': torch.from_numpy(self.code.astype(np.int8)), 'scales': torch.from_numpy(self.scale.astype(self.dtype))}


class Row(Format):
    def __init__(self, w, bits):
        top = {2: 1, 4: 7, 8: 127}[bits]
        s = (np.abs(w).max(-1) / F(top)).astype(F)
        s[s == 0] = 1
        self.row_scale = s
        self.code = np.clip(np.rint(w / s[:, None]), -top - 1, top).astype(np.int32)

    def block_scale(self, r, b):
        return None

    def tensors(self):
        return {'codes': torch.from_numpy(self.code.astype(np.int8)), 'scales': torch.from_numpy(self.row_scale)}


class MXFP4(Format):
    """Codes are doubled to integers, so the block scale is 2^(e-128): exact, and the same product of powers of two."""
    row_scale = None

    def __init__(self, w):
        _, codes, scale = mxfp4(torch.from_numpy(w))
        self.raw, self.exponent = codes.numpy(), scale.numpy()
        self.code = np.array(E2M1, np.int32)[self.raw]

    def block_scale(self, r, b):
        return F(2.0 ** (int(self.exponent[r, b]) - 128))

    def tensors(self):
        return {'codes': torch.from_numpy(self.raw), 'scales': torch.from_numpy(self.exponent)}


class Float(Format):
    integer = False

    def __init__(self, w, dtype):
        self.t = torch.from_numpy(w).to(dtype)
        self.value = self.t.float().numpy()

    def row_float(self, r, lo, hi, x):
        acc = F(0)
        for k in range(hi - lo):
            acc = fma(self.value[r, lo + k], x[k], acc)
        return acc

    def tensors(self):
        return {'values': self.t}


class FP8(Format):
    integer = False

    def __init__(self, w):
        rows, cols = w.shape
        self.scale = np.zeros((-(-rows // 128), -(-cols // 128)), F)
        q = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn)
        for i in range(self.scale.shape[0]):
            for j in range(self.scale.shape[1]):
                s = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
                self.scale[i, j] = F(np.abs(w[s]).max() / F(448))
                q[s] = torch.from_numpy(w[s] / self.scale[i, j]).to(torch.float8_e4m3fn)
        self.t, self.value = q, q.float().numpy()

    def row_float(self, r, lo, hi, x):
        """A chain from 0 over the columns that share a scale (source columns), then one fmaf with that scale."""
        acc, k = F(0), lo
        while k < hi:
            end, t = min(hi, (k // 128 + 1) * 128), F(0)
            for c in range(k, end):
                t = fma(self.value[r, c], x[c - lo], t)
            acc = fma(t, self.scale[r // 128, k // 128], acc)
            k = end
        return acc

    def tensors(self):
        return {'codes': self.t, 'scales': torch.from_numpy(self.scale)}


FORMATS = {
    'f32': lambda w: Float(w, torch.float32), 'bf16': lambda w: Float(w, torch.bfloat16), 'fp8': FP8, 'mxfp4': MXFP4,
    'q8_g32': lambda w: Grouped(w, 8, 32, np.float32), 'q8_row': lambda w: Row(w, 8),
    'q4_g32': lambda w: Grouped(w, 4, 32, np.float16), 'q4_g64': lambda w: Grouped(w, 4, 64, np.float16),
    'q4_g64_f32': lambda w: Grouped(w, 4, 64, np.float32), 'q4_g128': lambda w: Grouped(w, 4, 128, np.float16),
    'q4_row': lambda w: Row(w, 4), 'q2_row': lambda w: Row(w, 2),
}

GROUP_OF = {'mxfp4': 32, 'q8_g32': 32, 'q4_g32': 32, 'q4_g64': 64, 'q4_g64_f32': 64, 'q4_g128': 128}


def chunk_width(inner):
    return min(256, BLOCK * -(-inner // 256))


def pad(v):
    return np.concatenate((v, np.zeros(-len(v) % BLOCK, F))).astype(F)


def expert(x, routing, gate, up, down, inner):
    """Integer rows of every chunk: list of [n, K] int64."""
    c, out = chunk_width(inner), []
    for lo in range(0, inner, c):
        hi = min(inner, lo + c)
        rows = np.zeros(x.shape, np.int64)
        for i in range(len(x)):
            a = quantize(pad(x[i])) if gate.integer else x[i]
            cols = len(pad(x[i])) if gate.integer else len(x[i])
            h = np.array([swiglu(gate.row(r, 0, cols, a), up.row(r, 0, cols, a)) for r in range(lo, hi)], F)
            hq = quantize(pad(h)) if down.integer else h
            end = lo + (len(pad(h)) if down.integer else hi - lo)
            for r in range(x.shape[1]):
                v = F(routing[i] * down.row(r, lo, end, hq))
                rows[i, r] = int(np.rint(np.float64(v) * 2.0 ** GRID_BITS))
        out.append(rows)
    return out


def main():
    t = {}
    rng = np.random.default_rng(20)
    cases = {'narrow': (256, 128, 3), 'wide': (96, 544, 2), 'ragged': (200, 40, 2)}      # K, inner width, rows
    for case, (k, inner, n) in cases.items():
        x = rng.standard_normal((n, k)).astype(F)
        x[0, :32] *= F(300)                                               # one block with an outlier
        x[-1, 32:64] = 0                                                  # one empty block
        routing = rng.uniform(0.05, 1.2, n).astype(F)
        w = {p: (rng.standard_normal(s) / np.sqrt(s[1])).astype(F)
             for p, s in (('gate', (inner, k)), ('up', (inner, k)), ('down', (k, inner)))}
        w['gate'][3] = 0                                                  # a row of zeros
        t[f'{case}.x'], t[f'{case}.routing'] = torch.from_numpy(x), torch.from_numpy(routing)
        q = [quantize(pad(r)) for r in x]
        t[f'{case}.q.codes'] = torch.from_numpy(np.stack([a[0] for a in q]).astype(np.int8))
        t[f'{case}.q.scales'] = torch.from_numpy(np.stack([a[1] for a in q]))
        exact = None
        for name, make in FORMATS.items():
            group = GROUP_OF.get(name, 1)
            if k % group or inner % group:
                continue                                                  # only rows that the groups divide
            m = {p: make(v) for p, v in w.items()}
            rows = expert(x, routing, m['gate'], m['up'], m['down'], inner)
            for p in m:
                t.update({f'{case}.{name}.{p}.{s}': v.contiguous() for s, v in m[p].tensors().items()})
            for j, r in enumerate(rows):
                t[f'{case}.{name}.grid.{j}'] = torch.from_numpy(r)
            total = sum(rows) / 2.0 ** GRID_BITS
            exact = total if name == 'f32' else exact
            print(f'{case} {name}: {len(rows)} chunks, relative distance to f32 {np.linalg.norm(total - exact) / np.linalg.norm(exact):.4f}')
    g = np.concatenate((np.linspace(-100, 100, 401), np.linspace(-3, 3, 201), [0.0, 1e-30, -1e-30, 88.0, -88.0])).astype(F)
    t['silu.g'] = torch.from_numpy(g)
    t['silu.exp_minus_g'] = torch.tensor([float(exp(F(-v))) for v in g])
    t['silu.value'] = torch.tensor([float(swiglu(v, F(1))) for v in g])
    save_file(t, sys.argv[1])


if __name__ == '__main__':
    main()
