"""Holds what an engine computed against a fixture.

    python3 tests/oracle/compare.py EXPECTED.safetensors GOT.safetensors [--tolerance 1e-4] [--only logits,greedy]

Both files use the names that tests/fixtures/README.md explains.  Floats: max|a-b| / max|b| over the tensor.  Integers
(experts, selected, greedy): equal, in every place whose stored margin says that the choice is not a coin toss.
Exit status 1 when a tensor is missing or differs.  Needs numpy and safetensors.
"""
import argparse
import sys

import numpy as np
from safetensors.numpy import load_file

MARGIN_OF = {'selected': 'select_margin', 'experts': 'route_margin'}


def check(name, want, got, expected, tolerance):
    """None when it holds, else a sentence; and the figure to print."""
    if got.size != want.size:
        return f'shape {got.shape}, expected {want.shape}', ''
    got = got.reshape(want.shape)
    if want.dtype.kind == 'f':
        if not np.isfinite(got).all():
            return 'not finite', ''
        error = float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())
        return (f'relative error {error:.2e}' if error > tolerance else None), f'{error:.1e}'
    kind, _, layer = name.partition('.')
    different = got.astype(np.int64) != want.astype(np.int64)
    if kind in MARGIN_OF:
        margin = expected[f'{MARGIN_OF[kind]}.{layer}']
        sure = margin > 10 * tolerance
        different = different.reshape(len(margin), -1).any(1)
        wrong = different & sure
        return (f'{int(wrong.sum())} of {int(sure.sum())} clear rows differ, first {int(np.flatnonzero(wrong)[0])}'
                if wrong.any() else None), f'{int(different.sum())} rows differ'
    return (f'{int(different.sum())} of {different.size} differ' if different.any() else None), 'equal'


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('expected')
    ap.add_argument('got')
    ap.add_argument('--tolerance', type=float, default=1e-4)
    ap.add_argument('--only', default='')
    a = ap.parse_args()
    expected, got = load_file(a.expected), load_file(a.got)
    bad = 0
    for name in sorted(expected):
        kind = name.partition('.')[0]
        if kind in ('input_ids', 'mtp_next_ids', 'select_margin', 'route_margin') or (a.only and kind not in a.only.split(',')):
            continue
        if name not in got:
            why, figure = 'missing', ''
        else:
            why, figure = check(name, expected[name], got[name], expected, a.tolerance)
        bad += why is not None
        print(f'{"FAIL" if why else "ok  "} {name:18s} {why or figure}')
    print(f'{bad} of {len(expected)} tensors fall short' if bad else 'all tensors hold')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
