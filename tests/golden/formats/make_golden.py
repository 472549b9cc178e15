"""Writes the golden bytes of layout R16 beside this file, from docs/formats.md alone: python3 make_golden.py

A matrix of 18 rows x 200 columns, of which the columns 32..199 are packed (so that wide groups begin in their middle).
Codes and scales are simple formulas that tests/test_kernels.c repeats; nothing here is rounded."""
import struct
from pathlib import Path

ROWS, COLS, BEGIN = 18, 200, 32
# name: (bits of a code, kind of scale, blocks of 32 that share one (0: one a row), code of zero)
FORMATS = {
    'f32': (32, None, 0, 0), 'bf16': (16, None, 0, 0), 'fp8': (8, 'f32', 4, 0),
    'q8': (8, 'f32', 0, 0), 'q8g32': (8, 'f32', 1, 0),
    'q4': (4, 'f32', 0, 8), 'q4g32': (4, 'f16', 1, 8), 'q4g64': (4, 'f16', 2, 8), 'q4g128': (4, 'f16', 4, 8),
    'q4g32f32': (4, 'f32', 1, 8), 'q4g64f32': (4, 'f32', 2, 8), 'q4g128f32': (4, 'f32', 4, 8),
    'q2': (2, 'f32', 0, 2), 'mxfp4': (4, 'e8m0', 1, 0),
}
PER_LINE = {'f32': 1, 'f16': 2, 'e8m0': 4}


def code(name, bits, r, k):
    if name == 'f32':
        return struct.unpack('<I', struct.pack('<f', (r * 200 + k) * 0.25 - 100))[0]
    if name == 'bf16':
        return 0x3c00 + r * 64 + k                             # any finite pattern
    if name == 'fp8':
        return (r * 5 + k * 3) % 127 + (128 if k % 2 else 0)   # 0x7f and 0xff are not numbers
    return (r * 7 + k * 5 + k // 16) % (1 << bits)


def scale(name, kind, r, g):
    """As bytes; g counts groups of source columns from column 0."""
    if name == 'fp8':
        r = 0                                                  # one scale a block of 128 rows
    if kind == 'e8m0':
        return bytes([(r * 11 + g * 17) % 255])
    value = 2.0 ** -(g % 5) * (1 + r / 32)
    return struct.pack('<f' if kind == 'f32' else '<e', value)


def main():
    for name, (bits, kind, per_group, zero) in FORMATS.items():
        out = bytearray()
        blocks = -(-(COLS - BEGIN) // 32)
        for tile in range(0, ROWS, 16):
            def scales_of(g):
                empty = bytes({'f32': 4, 'f16': 2, 'e8m0': 1}[kind])
                return b''.join(scale(name, kind, r, g) if r < ROWS else empty for r in range(tile, tile + 16))

            if kind and per_group == 0:
                out += scales_of(0)
            first = last = None
            for b in range(blocks):
                if kind and per_group:
                    g = (BEGIN // 32 + b) // per_group
                    first = g if first is None else first
                    if g != last and (g - first) % PER_LINE[kind] == 0:
                        final = (BEGIN // 32 + blocks - 1) // per_group
                        line = b''.join(scales_of(i) for i in range(g, min(g + PER_LINE[kind], final + 1)))
                        out += line.ljust(64, b'\0')
                    last = g
                for line in range(bits):
                    k0 = BEGIN + b * 32 + line * 32 // bits
                    for r in range(tile, tile + 16):
                        def c(k):
                            return code(name, bits, r, k) if r < ROWS and k < COLS else zero
                        if bits >= 16:
                            for j in range(32 // bits):
                                out += c(k0 + j).to_bytes(bits // 8, 'little')
                        else:
                            for j in range(4):
                                out.append(sum(c(k0 + j + 4 * f) << f * bits for f in range(8 // bits)))
        Path(__file__).with_name(name + '.bin').write_bytes(out)


if __name__ == '__main__':
    main()
