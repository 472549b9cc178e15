"""Writes unicode_tables.c: which code points Hugging Face `tokenizers` takes for \\p{L}, \\p{N} and \\s.

    python3 model/unicode_tables.py > model/unicode_tables.c      (needs: pip install tokenizers)

Every code point is shown to a Split pre-tokenizer, so that the table is what the real tokenizer matches and not what
some other edition of Unicode says.  Only needed when `tokenizers` moves to a newer Unicode; users never run it.
"""
import tokenizers
from tokenizers import Regex, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = [("LETTER", r"\p{L}"), ("NUMBER", r"\p{N}"), ("SPACE", r"\s")]
PER_LINE = 3


def members(pattern):
    """The code points that `pattern` matches; in parts, because offsets of a long text are slow."""
    split, found = pre_tokenizers.Split(Regex(pattern), "removed", invert=True), []
    for at in range(0, len(CODE_POINTS), 4096):
        part = CODE_POINTS[at:at + 4096]
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, part))):
            found += part[begin:end]
    return found


def ranges(points):
    out = []
    for p in points:
        if out and out[-1][1] == p - 1:
            out[-1][1] = p
        else:
            out.append([p, p])
    return out


def contraction_folds():
    """Non-ASCII code points that (?i:) takes for a letter of a contraction: the C code knows only U+017F for s."""
    split = pre_tokenizers.Split(Regex("(?i:'s|'t|'re|'ve|'m|'ll|'d)"), "removed", invert=True)
    found = set()
    for c in CODE_POINTS[128:]:
        tries = ["'" + chr(c)] + ["'" + chr(c) + x for x in "strevmld"] + ["'" + x + chr(c) for x in "strevmld"]
        found |= {c for t in tries for piece, _ in split.pre_tokenize_str(t) if chr(c) in piece}
        found |= {c for x in ("s", "t", "re", "ve", "m", "ll", "d") if split.pre_tokenize_str(chr(c) + x)}
    return found


def main():
    table = sorted((first, last, name) for name, pattern in CLASSES for first, last in ranges(members(pattern)))
    assert all(a[1] < b[0] for a, b in zip(table, table[1:])), "the classes overlap"
    assert contraction_folds() == {0x17F}, "tokenizer_split.c folds only U+017F"
    print(f"/* Written by model/unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit. */")
    print('#include "model/unicode_tables.h"\n\n/* clang-format off */')
    print("const pot_unicode_range pot_unicode_ranges[] = {")
    for at in range(0, len(table), PER_LINE):
        print("    " + " ".join(f"{{0x{f:05X}, 0x{l:05X}, POT_CHAR_{n}}}," for f, l, n in table[at:at + PER_LINE]))
    print("};\n")
    print(f"const unsigned pot_unicode_n_ranges = {len(table)};")


if __name__ == "__main__":
    main()
