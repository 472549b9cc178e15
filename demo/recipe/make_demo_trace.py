"""What the demo model computes on real text, by the float reference: expected.safetensors beside the model.

    python3 demo/recipe/make_demo_trace.py demo

192 tokens of held_out.txt, so that index_topk (64) matters.  The tensors are those of tests/fixtures/README.md; a trained
model has close calls, so trust the stored margins (compare.py does).
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from make_skills import load

import make_fixtures as M  # found by make_skills's path

LENGTH = 192


def main():
    path = Path(sys.argv[1])
    ids = Tokenizer.from_file(str(path / 'tokenizer.json')).encode((path / 'held_out.txt').read_text(), add_special_tokens=False).ids
    m = load(path)
    M.MIN_MARGIN, M.GREEDY_MARGIN = 0.0, 2e-3
    for start in range(0, len(ids) - LENGTH, LENGTH):
        try:
            x, source = M.expectations(M.Spec(m.c, length=LENGTH, greedy=12), m, torch.tensor([ids[start:start + LENGTH]]))
            break
        except M.TooClose:
            continue
    keep = {k: v for k, v in x.items() if k.split('.')[0] not in ('hidden', 'mtp_hidden') or k in ('hidden.0', 'hidden.4', 'hidden.5')}
    save_file(keep, str(path / 'expected.safetensors'), metadata={'source': source, 'first_token': str(start)})
    print('tokens from', start, {k: tuple(v.shape) for k, v in keep.items()})


if __name__ == '__main__':
    main()
