"""Trains the demo model and writes it as a checkpoint in the layout of amd/GLM-5.2-MXFP4.

    python3 demo/recipe/train_demo.py --minutes 120 --out build/demo_model --work build/demo_work

Needs torch, tokenizers, safetensors, numpy; apt (for the prose, see demo_corpus.py).  Seeded; about two
hours on two cores.  It trains with dense attention first, then the indexer learns from the attention and the
model learns to live with what the indexer selects (as DeepSeek-V3.2 was made).  In that second part the routed
experts are rounded to MXFP4 in the forward pass, so that the 4-bit checkpoint is the model that was trained,
not an approximation of it.
"""
import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'tests' / 'oracle'))

from demo_corpus import COPYING, EOT, corpus  # noqa: E402
from glm_reference import Attention, Config, Experts, FakeMXFP4, GLM, MoE, mxfp4, rope  # noqa: E402

SPECIALS = ['<|endoftext|>', '[MASK]', '[gMASK]', '[sMASK]', '<sop>', '<eop>', '<|system|>', '<|user|>',
            '<|assistant|>', '<|observation|>', '<|begin_of_image|>', '<|end_of_image|>', '<|begin_of_video|>',
            '<|end_of_video|>', '<|begin_of_audio|>', '<|end_of_audio|>', '<|begin_of_transcription|>',
            '<|end_of_transcription|>', '<|code_prefix|>', '<|code_middle|>', '<|code_suffix|>', '<think>',
            '</think>', '<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>', '<arg_key>',
            '</arg_key>', '<arg_value>', '</arg_value>', '/nothink', '<|begin_of_box|>', '<|end_of_box|>',
            '<|image|>', '<|video|>']
NOT_SPECIAL = {'<think>', '</think>', '<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>',
               '<arg_key>', '</arg_key>', '<arg_value>', '</arg_value>', '/nothink'}
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


HELD_OUT = 400           # documents kept from the training


def make_tokenizer(docs, vocab, path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior='isolated', invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab - len(SPECIALS), min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(docs, trainer)
    assert tok.get_vocab_size() == vocab - len(SPECIALS), tok.get_vocab_size()
    tok.add_tokens([AddedToken(s, special=s not in NOT_SPECIAL, normalized=False) for s in SPECIALS])
    tok.save(str(path))
    return tok


def batches(data, batch, length, rng):
    while True:
        at = rng.integers(0, len(data) - length - 3, size=batch)
        yield torch.from_numpy(np.stack([data[i:i + length + 2] for i in at]).astype(np.int64))


def dense_attention(self, h, positions, keep, sparse=True, detach_index=False):
    """Attention.forward without the indexer, by the fused kernel: what the first part of the training uses."""
    c = self.c
    B, T, _ = h.shape
    H, dn, dr, dv = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
    q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(h))).view(B, T, H, dn + dr).transpose(1, 2)
    kv = self.kv_a_proj_with_mqa(h)
    k_rope = rope(kv[..., c.kv_lora_rank:], positions, c.rope_theta)
    kvb = self.kv_b_proj(self.kv_a_layernorm(kv[..., :c.kv_lora_rank])).view(B, T, H, dn + dv).transpose(1, 2)
    q = torch.cat((q[..., :dn], rope(q[..., dn:], positions, c.rope_theta)), -1)
    k = torch.cat((kvb[..., :dn], k_rope[:, None].expand(B, H, T, dr)), -1)
    v = F.pad(kvb[..., dn:], (0, dn + dr - dv))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(dn + dr) ** -0.5)[..., :dv]
    return self.o_proj(o.transpose(1, 2).reshape(B, T, H * dv)), None, None, None


def experts_one_by_one(self, x, ids, weights, quant=None):
    """Experts.forward without padding: its cost does not grow when the router is out of balance."""
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    rows = order // ids.shape[1]
    count = torch.bincount(flat, minlength=self.gate_up_proj.shape[0]).tolist()
    wgu, wd = self.gate_up_proj, self.down_proj
    if quant is not None:
        wgu, wd = quant(wgu), quant(wd)
    out = []
    for xe, gu, d in zip(x[rows].split(count), wgu.unbind(0), wd.unbind(0)):
        g, u = F.linear(xe, gu).chunk(2, dim=-1)
        out.append(F.linear(F.silu(g) * u, d))
    y = torch.cat(out) * weights.reshape(-1)[order][:, None]
    return x.new_zeros(x.shape).index_add(0, rows, y)


def index_loss(trace, c):
    """KL(mean attention of the layers that use a selection || softmax of its indexer scores)."""
    total, groups = 0.0, []
    for layer, scores, p in trace:
        if scores is not None:
            groups.append([scores, p.detach().mean(1), 1])
        else:
            groups[-1][1] = groups[-1][1] + p.detach().mean(1)
            groups[-1][2] += 1
    for scores, target, n in groups:
        T = scores.shape[-1]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        logq = torch.log_softmax(scores.masked_fill(~causal, float('-inf')), -1)
        target = target / n
        kl = target * (torch.log(target.clamp_min(1e-9)) - logq.masked_fill(~causal, 0.0))
        total = total + kl.masked_fill(~causal, 0.0).sum(-1).mean()
    return total / len(groups)


@torch.no_grad()
def evaluate(m, data, quant, sparse):
    m.eval()
    rng = np.random.default_rng(5)
    it = batches(data, 8, 512, rng)
    loss = hits = seen = 0
    for _ in range(4):
        b = next(it)
        h, _ = m.trunk(b[:, :-2], sparse=sparse, quant=quant)
        lg = m.lm_head(h)
        loss += float(F.cross_entropy(lg.flatten(0, 1), b[:, 1:-1].flatten()))
        z, _ = m.mtp(lg.argmax(-1), h, sparse=sparse)                  # draft from the model's own choice
        draft = m.lm_head(z).argmax(-1)[:, :-1]
        want = lg.argmax(-1)[:, 1:]                                    # only where the text followed the choice
        same = lg.argmax(-1)[:, :-1] == b[:, 1:-2]
        hits += int((draft == want)[same].sum())
        seen += int(same.sum())
    m.train()
    return loss / 4, hits / max(seen, 1)


def export(m, tok_path, out):
    """BF16 everywhere but the routed experts of the main layers, which are MXFP4."""
    from safetensors.torch import save_file
    c = m.c
    out.mkdir(parents=True, exist_ok=True)
    t = {}
    for name, p in m.state_dict().items():
        if '.experts.' in name:
            continue
        t[name] = p.detach().float().contiguous() if name.endswith('e_score_correction_bias') \
            else p.detach().to(torch.bfloat16).contiguous()
    for i, layer in enumerate(m.model.layers):
        if not isinstance(layer.mlp, MoE):
            continue
        gu, d = layer.mlp.experts.gate_up_proj.detach(), layer.mlp.experts.down_proj.detach()
        for e in range(c.n_routed_experts):
            g, u = gu[e].chunk(2, 0)
            for nm, w in (('gate_proj', g), ('up_proj', u), ('down_proj', d[e])):
                base = f'model.layers.{i}.mlp.experts.{e}.{nm}.weight'
                if i >= c.num_hidden_layers:
                    t[base] = w.to(torch.bfloat16).contiguous()
                    continue
                _, codes, scale = mxfp4(w)
                t[base] = (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous()
                t[base + '_scale'] = scale.contiguous()
    save_file(t, str(out / 'model.safetensors'), metadata={'format': 'pt'})
    first = c.vocab_size - len(SPECIALS)
    ids = {s: first + i for i, s in enumerate(SPECIALS)}
    eos = [ids['<|endoftext|>'], ids['<|user|>'], ids['<|observation|>']]
    cfg = asdict(c)
    eps = cfg.pop('mla_norm_eps')
    theta = cfg.pop('rope_theta')
    n = c.num_hidden_layers
    cfg.update(architectures=['GlmMoeDsaForCausalLM'], model_type='glm_moe_dsa', dtype='bfloat16',
               attention_bias=False, hidden_act='silu', num_key_value_heads=c.num_attention_heads,
               qk_head_dim=c.qk_nope_head_dim + c.qk_rope_head_dim, head_dim=c.qk_nope_head_dim,
               moe_layer_freq=1, topk_method='noaux_tc', scoring_func='sigmoid', rope_interleave=True,
               indexer_rope_interleave=True, index_share_for_mtp_iteration=True, index_topk_pattern=None,
               indexer_types=['full' if c.index_is_full(i) else 'shared' for i in range(n)],
               mlp_layer_types=['dense'] * c.first_k_dense_replace + ['sparse'] * (n - c.first_k_dense_replace),
               max_position_embeddings=4096, rope_parameters={'rope_theta': theta, 'rope_type': 'default'},
               tie_word_embeddings=False, eos_token_id=eos, pad_token_id=eos[0], moe_router_dtype='float32',
               quantization_config={'quant_method': 'quark', 'fmt': 'mxfp4', 'group_size': 32,
                                    'exclude': [f'model.layers.{n}.*']})
    assert eps == c.rms_norm_eps
    (out / 'config.json').write_text(json.dumps(cfg, indent=2) + '\n')
    (out / 'generation_config.json').write_text(json.dumps(
        {'eos_token_id': eos, 'pad_token_id': eos[0], 'temperature': 1.0, 'top_p': 0.95}, indent=2) + '\n')
    (out / 'tokenizer.json').write_text(Path(tok_path).read_text())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--minutes', type=float, default=120)
    ap.add_argument('--out', type=Path, default=Path('build/demo_model'))
    ap.add_argument('--lr', type=float, default=3e-3)
    ap.add_argument('--batch', type=int, default=4)
    ap.add_argument('--length', type=int, default=512)
    ap.add_argument('--work', type=Path, default=Path('build/demo_work'))
    ap.add_argument('--resume', action='store_true', help='go on from WORK/last.pt, on chats and stories not seen before')
    a = ap.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    c = Config()
    docs = corpus()
    tok_path = a.work / 'tokenizer.json'
    if a.resume:
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(str(tok_path))
        more = corpus(seed=8, stories=5000, chats=40000, with_prose=False, kinds=COPYING)
        docs = more + docs[:-HELD_OUT:2] + docs[-HELD_OUT:]
    else:
        tok = make_tokenizer(docs, c.vocab_size, tok_path)
    eot = tok.token_to_id(EOT)

    def tokens(texts):
        ids = []
        for e in tok.encode_batch(texts, add_special_tokens=False):
            ids.extend(e.ids + [eot])
        return np.array(ids, dtype=np.uint16)

    train, held = tokens(docs[:-HELD_OUT]), tokens(docs[-HELD_OUT:])
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / 'held_out.txt').write_text(''.join(d + EOT for d in docs[-HELD_OUT:]), encoding='utf-8')
    print(f'{len(docs)} documents, {len(train)} tokens, {len(held)} held out', flush=True)

    m = GLM(c)
    for n, p in m.named_parameters():
        if p.dim() >= 2 and 'experts' not in n and 'gate.weight' not in n:
            torch.nn.init.normal_(p, std=0.02 if 'embed' in n or 'lm_head' in n else p.shape[-1] ** -0.5)
        if n.endswith(('o_proj.weight', 'down_proj.weight')) or n.endswith('experts.down_proj'):
            p.data.mul_(0.3)
    print(f'{sum(p.numel() for p in m.parameters()) / 1e6:.1f} M parameters', flush=True)
    if a.resume:
        m.load_state_dict(torch.load(a.work / 'last.pt')['model'])
    decay = [p for n, p in m.named_parameters() if p.dim() >= 2]
    plain = [p for n, p in m.named_parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{'params': decay, 'weight_decay': 0.05}, {'params': plain, 'weight_decay': 0.0}],
                            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    exact_attention = Attention.forward
    Experts.forward = experts_one_by_one
    it = batches(train, a.batch, a.length, np.random.default_rng(2))
    start, step, log = time.time(), 0, []
    while True:
        frac = (time.time() - start) / (a.minutes * 60)
        if frac >= 1:
            break
        late = frac > (0.45 if a.resume else 0.55)             # indexer, sparse attention and 4-bit experts
        sparse = late and (a.resume or frac > 0.62)            # the indexer has seen enough to be trusted
        quant = FakeMXFP4.apply if late else None
        Attention.forward = exact_attention if late else dense_attention
        lr = a.lr * min(1.0, (step + 1) / 200) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(frac, 1))))
        for g in opt.param_groups:
            g['lr'] = lr
        b = next(it)
        h, trace = m.trunk(b[:, :-2], sparse=sparse, detach_index=True, quant=quant)
        loss = F.cross_entropy(m.lm_head(h).flatten(0, 1), b[:, 1:-1].flatten())
        z, mt = m.mtp(b[:, 1:-1], h, sparse=sparse, detach_index=True, quant=None)
        mtp_loss = F.cross_entropy(m.lm_head(z).flatten(0, 1), b[:, 2:].flatten())
        kl = index_loss(trace, c) + index_loss([mt], c) if late else torch.zeros(())
        opt.zero_grad(set_to_none=True)
        (loss + 0.2 * mtp_loss + 0.5 * kl).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        with torch.no_grad():                                  # load balance without a loss term
            for layer in m.model.layers:
                if isinstance(layer.mlp, MoE):
                    load = torch.bincount(layer.mlp.last_ids.flatten(), minlength=c.n_routed_experts).float()
                    layer.mlp.gate.e_score_correction_bias += 3e-3 * (1 - frac) * torch.sign(load.mean() - load)
        step += 1
        if step % 50 == 0:
            log.append([step, float(loss), float(mtp_loss), float(kl)])
            print(f'{time.time() - start:7.0f}s step {step} lr {lr:.2e} loss {loss:.3f} mtp {mtp_loss:.3f} kl {kl:.3f}',
                  flush=True)
        if step % 400 == 0:
            print('   held-out loss %.3f, mtp acceptance %.3f' % evaluate(m, held, quant, sparse), flush=True)
            torch.save({'model': m.state_dict(), 'config': asdict(c), 'step': step}, a.work / 'last.pt')
    Attention.forward = exact_attention
    print('final held-out loss %.3f, mtp acceptance %.3f' % evaluate(m, held, FakeMXFP4.apply, True), flush=True)
    torch.save({'model': m.state_dict(), 'config': asdict(c), 'step': step}, a.work / 'last.pt')
    export(m, tok_path, a.out)
    (a.out / 'training_log.json').write_text(json.dumps(log))


if __name__ == '__main__':
    main()
