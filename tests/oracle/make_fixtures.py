"""Makes tests/fixtures/: tiny random models in every layout the engine must read, with what they must compute.

    python3 tests/oracle/make_fixtures.py [OUT [NAME...]]

Needs torch, transformers (>= 5.24), safetensors, numpy.  The numbers of the trunk come from `transformers` in
float32 and are checked against glm_reference.py; the MTP layer, which `transformers` leaves out, comes from
glm_reference.py alone.  Where the router, the indexer or greedy decoding had to choose, the distance to the other
choice (the margin) is stored too, and a model whose choices are too close is thrown away and drawn again.
"""
import dataclasses
import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from glm_reference import GLM, Config, MoE, mxfp4, top_positions

MIN_MARGIN = 1e-4          # relative to the scale of the scores
GREEDY_MARGIN = 1e-3


@dataclass
class Spec:
    """One fixture: a model, the layout of its files, and the text it is run on."""
    config: Config
    layout: str = 'per_expert'            # per_expert | fused
    store: str = 'bf16'                   # bf16 | f16 | f32 | fp8 | mxfp4 | article4 (int4 + .qs) | article8
    shards: int = 1
    length: int = 48
    greedy: int = 16
    config_json: dict = field(default_factory=dict)      # keys to set; a None value removes the key
    indexer_types: list = None                            # overrides the freq/offset schedule
    note: str = ''


def scheduled(c, types):
    """Config whose schedule is an explicit list."""
    if types is None:
        return c
    full = [t in ('full', 'F') for t in types]
    c = dataclasses.replace(c)
    c.index_is_full = lambda i: True if i >= c.num_hidden_layers else full[i]
    return c


def dtype_of(store):
    return {'f32': torch.float32, 'f16': torch.float16}.get(store, torch.bfloat16)


def draw(spec, seed):
    """A random model whose weights are exactly what the files will hold, as float32."""
    c = scheduled(spec.config, spec.indexer_types)
    torch.manual_seed(seed)
    m = GLM(c)
    keep = dtype_of(spec.store)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if name.endswith('k_norm.bias'):
                p.normal_(std=0.2)
            elif p.dim() == 1:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif 'embed_tokens' in name:
                p.normal_()
            elif name == 'lm_head.weight':
                p.normal_(std=3 * c.hidden_size ** -0.5)
            elif name.endswith('gate.weight'):
                p.normal_(std=1.5 * c.hidden_size ** -0.5)
            else:
                p.normal_(std=p.shape[-1] ** -0.5)
            p.copy_(p.to(keep).float())
        for name, b in m.named_buffers():
            b.normal_(std=0.2)
        for name, p in m.named_parameters():
            if quantized(spec, name, p):
                for w in matrices(name, p):
                    w.copy_(QUANT[spec.store](w)[0])
    return m.eval()


def matrices(name, p):
    """The checkpoint's matrices inside a parameter: a fused gate_up_proj holds two for each expert."""
    if p.dim() < 3:
        return [p]
    return [w for e in p for w in (e.chunk(2, 0) if name.endswith('gate_up_proj') else (e,))]


def quantized(spec, name, p):
    """Is this parameter stored in the compact format?"""
    if spec.store not in QUANT or p.dim() < 2 or 'embed_tokens' in name or 'lm_head' in name or 'eh_proj' in name or name.endswith('gate.weight') \
            or 'weights_proj' in name:
        return False
    n = spec.config.num_hidden_layers
    if spec.store == 'mxfp4':
        return 'expert' in name and f'layers.{n}.' not in name
    return True


def fp8(w):
    """e4m3 with one float32 scale per 128 x 128 block: values, codes, scales (weight_scale_inv)."""
    rows, cols = w.shape
    br, bc = -(-rows // 128), -(-cols // 128)
    scale = torch.zeros(br, bc)
    codes = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn)
    out = torch.zeros_like(w)
    for i in range(br):
        for j in range(bc):
            s = (slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128))
            scale[i, j] = w[s].abs().max() / 448
            q = (w[s] / scale[i, j]).to(torch.float8_e4m3fn)
            codes[s] = q
            out[s] = q.float() * scale[i, j]
    return out, codes, scale


def row_int(w, bits):
    """The article's rows: symmetric, absmax / max code, half to even; int4 is v + 8, low nibble first."""
    top = 7 if bits == 4 else 127
    scale = w.abs().amax(-1) / top
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    q = torch.clamp(torch.round(w / scale[:, None]), -top - 1, top).to(torch.int32)
    value = q.float() * scale[:, None]
    if bits == 8:
        return value, q.to(torch.int8).view(torch.uint8), scale
    u = (q + 8).to(torch.uint8)
    if u.shape[1] % 2:
        u = torch.cat((u, torch.full((u.shape[0], 1), 8, dtype=torch.uint8)), 1)
    return value, u[:, 0::2] | (u[:, 1::2] << 4), scale


def quark(w):
    value, codes, scale = mxfp4(w)
    return value, codes[:, 0::2] | (codes[:, 1::2] << 4), scale


QUANT = {'fp8': fp8, 'mxfp4': quark, 'article4': lambda w: row_int(w, 4), 'article8': lambda w: row_int(w, 8)}


def tensors(spec, m):
    """The checkpoint's tensors by name.  Quantizing an already quantized weight must give it back."""
    c, keep, t = m.c, dtype_of(spec.store), {}

    def put(name, w, compact):
        if not compact:
            t[name] = w.to(keep).contiguous()
            return
        value, codes, scale = QUANT[spec.store](w)
        assert (value - w).abs().max() <= 1e-6 * w.abs().max(), name
        if spec.store == 'fp8':
            t[name], t[name + '_scale_inv'] = codes.contiguous(), scale.contiguous()
        elif spec.store == 'mxfp4':
            t[name], t[name + '_scale'] = codes.contiguous(), scale.contiguous()
        else:
            t[name], t[name + '.qs'] = codes.reshape(-1).contiguous(), scale.contiguous()

    for name, p in m.state_dict().items():
        if name.endswith('e_score_correction_bias'):
            t[name] = p.float().contiguous()
        elif '.experts.' not in name or spec.layout == 'fused':
            put(name, p, quantized(spec, name, p))
        else:
            base = name.rsplit('.', 1)[0]
            for e in range(c.n_routed_experts):
                parts = {'down_proj': p[e]} if name.endswith('down_proj') \
                    else dict(zip(('gate_proj', 'up_proj'), p[e].chunk(2, 0)))
                for k, w in parts.items():
                    put(f'{base}.{e}.{k}.weight', w, quantized(spec, name, p))
    return t


def hf_model(m):
    """The same trunk in transformers, float32, plain attention."""
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
    c = m.c
    types = ['full' if c.index_is_full(i) else 'shared' for i in range(c.num_hidden_layers)]
    hc = GlmMoeDsaConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        moe_intermediate_size=c.moe_intermediate_size, num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_attention_heads,
        n_shared_experts=c.n_shared_experts, n_routed_experts=c.n_routed_experts,
        routed_scaling_factor=c.routed_scaling_factor, kv_lora_rank=c.kv_lora_rank, q_lora_rank=c.q_lora_rank,
        qk_rope_head_dim=c.qk_rope_head_dim, v_head_dim=c.v_head_dim, qk_nope_head_dim=c.qk_nope_head_dim,
        n_group=c.n_group, topk_group=c.topk_group, num_experts_per_tok=c.num_experts_per_tok,
        norm_topk_prob=c.norm_topk_prob, rms_norm_eps=c.rms_norm_eps, index_topk=c.index_topk,
        index_head_dim=c.index_head_dim, index_n_heads=c.index_n_heads, indexer_types=types,
        first_k_dense_replace=c.first_k_dense_replace, max_position_embeddings=4096, eos_token_id=None,
        bos_token_id=None, rope_parameters={'rope_theta': c.rope_theta, 'rope_type': 'default'})
    hc._attn_implementation = 'eager'
    hf = GlmMoeDsaForCausalLM(hc).float().eval()
    own = {k: v for k, v in m.state_dict().items() if f'layers.{c.num_hidden_layers}.' not in k}
    missing, unexpected = hf.load_state_dict(own, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return hf


def margin_at(scores, k):
    """Gap between the k-th and the next score of the last dimension, over the largest |score|."""
    s = scores.sort(-1, descending=True)[0]
    if s.shape[-1] <= k:
        return torch.full(s.shape[:-1], float('inf'))
    return (s[..., k - 1] - s[..., k]) / s.abs().amax(-1).clamp_min(1e-20)


def route_margin(moe, h):
    """Gap between the last chosen expert and the first left out, over the largest |choice score|, for each row of h."""
    c = moe.c
    choice = torch.sigmoid(h @ moe.gate.weight.t()) + moe.gate.e_score_correction_bias
    gap = torch.full(h.shape[:1], float('inf'))
    scale = choice.abs().amax(-1)
    if c.n_group > 1:
        grouped = choice.view(-1, c.n_group, c.n_routed_experts // c.n_group)
        best = grouped.topk(2, -1)[0].sum(-1)
        gap = margin_at(best, c.topk_group)
        keep = torch.zeros_like(best).scatter_(1, best.topk(c.topk_group, -1)[1], 1.0)
        choice = choice.masked_fill(~keep[:, :, None].expand_as(grouped).reshape(choice.shape).bool(), -1e9)
    s = choice.sort(-1, descending=True)[0]
    if s.shape[-1] > c.num_experts_per_tok:
        gap = torch.minimum(gap, (s[:, c.num_experts_per_tok - 1] - s[:, c.num_experts_per_tok]) / scale)
    return gap


class TooClose(Exception):
    pass


@torch.no_grad()
def expectations(spec, m, ids=None):
    """Everything that is checked, from transformers where it can, with margins.  ids [1, T], else random."""
    c = m.c
    if ids is None:
        ids = torch.randint(0, c.vocab_size, (1, spec.length), generator=torch.Generator().manual_seed(77))
    x = {'input_ids': ids[0].to(torch.int32)}
    hooks, seen = [], {}

    def watch(name, module, pick):
        hooks.append(module.register_forward_hook(lambda mod, a, kw, out: seen.__setitem__(name, pick(mod, a, out)),
                                                  with_kwargs=True))
    for i, layer in enumerate(m.model.layers):
        watch(f'hidden.{i}', layer, lambda mod, a, out: out[0][0])
        if isinstance(layer.mlp, MoE):
            watch(f'moe_in.{i}', layer.mlp, lambda mod, a, out: a[0][0])
    hidden, trace = m.trunk(ids)
    logits = m.lm_head(hidden)[0]
    if c.mla_norm_eps == 1e-6:                                   # transformers has no other
        hf = hf_model(m)
        out = hf(ids, output_hidden_states=True, use_cache=False)
        error = (out.logits[0] - logits).abs().max() / logits.abs().max()
        assert error < 2e-5, f'reference and transformers disagree: {error:.2e}'
        for i in range(c.num_hidden_layers - 1):                 # the last entry is after the final norm
            h = out.hidden_states[i + 1][0]
            assert (h - seen[f'hidden.{i}']).abs().max() / h.abs().max() < 2e-5, i
            seen[f'hidden.{i}'] = h
        logits = out.logits[0]
        source = 'transformers'
    else:
        source = 'glm_reference.py'
    for i in range(c.num_hidden_layers):
        x[f'hidden.{i}'] = seen[f'hidden.{i}']
    x['logits'] = logits
    causal = torch.ones(spec.length, spec.length, dtype=torch.bool).tril()
    for layer, scores, _ in trace:
        if scores is None:
            continue
        x[f'selected.{layer}'] = top_positions(scores, c.index_topk)[0].to(torch.uint8)
        gap = torch.full((spec.length,), float('inf'))
        for t in range(c.index_topk, spec.length):
            gap[t] = margin_at(scores[0, t, :t + 1], c.index_topk)
        x[f'select_margin.{layer}'] = gap
        if gap.min() < MIN_MARGIN:
            raise TooClose(f'indexer of layer {layer}: {gap.min():.1e}')
    if c.num_nextn_predict_layers:
        nxt = torch.cat((ids[:, 1:], logits[-1:].argmax(-1)[None]), 1)
        z, mt = m.mtp(nxt, hidden)
        n = c.num_hidden_layers
        x['mtp_next_ids'] = nxt[0].to(torch.int32)
        x[f'hidden.{n}'] = seen[f'hidden.{n}']
        x['mtp_hidden'] = z[0]
        x['mtp_logits'] = m.lm_head(z)[0]
        x[f'selected.{n}'] = top_positions(mt[1], c.index_topk)[0].to(torch.uint8)
        gap = torch.tensor([margin_at(mt[1][0, t, :t + 1], c.index_topk) for t in range(spec.length)])
        x[f'select_margin.{n}'] = gap
        if gap.min() < MIN_MARGIN:
            raise TooClose(f'indexer of the MTP layer: {gap.min():.1e}')
    for i, layer in enumerate(m.model.layers):
        if not isinstance(layer.mlp, MoE):
            continue
        h = seen[f'moe_in.{i}']
        e, w = layer.mlp.route(h)
        order = e.argsort(-1)
        x[f'experts.{i}'] = e.gather(1, order).to(torch.int32)
        x[f'weights.{i}'] = w.gather(1, order)
        x[f'route_margin.{i}'] = route_margin(layer.mlp, h)
        if x[f'route_margin.{i}'].min() < MIN_MARGIN:
            raise TooClose(f'router of layer {i}')
    at, toks, gaps = ids, [], []
    for _ in range(spec.greedy):
        lg = (hf(at, use_cache=False).logits if source == 'transformers' else m(at))[0, -1]
        best = lg.topk(2)[0]
        gaps.append(float((best[0] - best[1]) / lg.abs().max()))
        toks.append(int(lg.argmax()))
        at = torch.cat((at, torch.tensor([[toks[-1]]])), 1)
    if min(gaps) < GREEDY_MARGIN:
        raise TooClose(f'greedy: {min(gaps):.1e}')
    _, trace = m.trunk(at)                                       # the choices behind the continuation must be clear too
    for layer, scores, _ in trace:
        if scores is not None and min(float(margin_at(scores[0, t, :t + 1], c.index_topk))
                                      for t in range(spec.length, at.shape[1])) < MIN_MARGIN:
            raise TooClose(f'indexer of layer {layer} while greedy')
    for i in range(c.num_hidden_layers):
        if isinstance(m.model.layers[i].mlp, MoE) \
                and route_margin(m.model.layers[i].mlp, seen[f'moe_in.{i}'][spec.length:]).min() < MIN_MARGIN:
            raise TooClose(f'router of layer {i} while greedy')
    for h in hooks:
        h.remove()
    x['greedy'] = torch.tensor(toks, dtype=torch.int32)
    return {k: v.contiguous() for k, v in x.items()}, source


def config_json(spec, c):
    n, types = c.num_hidden_layers, None
    types = ['full' if c.index_is_full(i) else 'shared' for i in range(n)]
    d = {k: v for k, v in dataclasses.asdict(spec.config).items() if k not in ('mla_norm_eps', 'rope_theta')}
    d.update(architectures=['GlmMoeDsaForCausalLM'], model_type='glm_moe_dsa', dtype='bfloat16', attention_bias=False,
             attention_dropout=0.0, hidden_act='silu', num_key_value_heads=c.num_attention_heads,
             qk_head_dim=c.qk_nope_head_dim + c.qk_rope_head_dim, head_dim=c.qk_nope_head_dim, moe_layer_freq=1,
             topk_method='noaux_tc', scoring_func='sigmoid', rope_interleave=True, indexer_rope_interleave=True,
             index_share_for_mtp_iteration=True, index_topk_pattern=None, indexer_types=types,
             mlp_layer_types=['dense'] * c.first_k_dense_replace + ['sparse'] * (n - c.first_k_dense_replace),
             max_position_embeddings=4096, rope_parameters={'rope_theta': c.rope_theta, 'rope_type': 'default'},
             tie_word_embeddings=False, eos_token_id=[0, 1], pad_token_id=0, moe_router_dtype='float32',
             pretraining_tp=1, ep_size=1, initializer_range=0.02, use_cache=True)
    if spec.store == 'fp8':
        d['quantization_config'] = {'quant_method': 'fp8', 'fmt': 'e4m3', 'activation_scheme': 'dynamic',
                                    'weight_block_size': [128, 128],
                                    'modules_to_not_convert': ['lm_head', 'model.embed_tokens']}
    if spec.store == 'mxfp4':
        d['quantization_config'] = {'quant_method': 'quark', 'exclude': [f'model.layers.{n}.*', 'lm_head'],
                                    'global_quant_config': {'weight': {'dtype': 'fp4', 'group_size': 32}}}
    for k, v in spec.config_json.items():
        d.pop(k, None)
        if v is not None:
            d[k] = v
    return d


def save_shards(t, out, shards):
    names = list(t)
    if shards == 1:
        save_file(t, str(out / 'model.safetensors'), metadata={'format': 'pt'})
        return
    index, total = {}, 0
    for s in range(shards):
        part = {k: t[k] for k in names[s::shards]}                # scattered, so that a layer spans shards
        f = f'model-{s + 1:05d}-of-{shards:05d}.safetensors'
        save_file(part, str(out / f), metadata={'format': 'pt'})
        index.update({k: f for k in part})
        total += sum(v.numel() * v.element_size() for v in part.values())
    (out / 'model.safetensors.index.json').write_text(
        json.dumps({'metadata': {'total_size': total}, 'weight_map': dict(sorted(index.items()))}, indent=1) + '\n')


def make(name, spec, out):
    for seed in range(1, 400):
        try:
            m = draw(spec, seed)
            x, source = expectations(spec, m)
            break
        except TooClose as e:
            why = e
    else:
        raise SystemExit(f'{name}: no seed has clear margins ({why})')
    d = out / name
    shutil.rmtree(d, ignore_errors=True)
    d.mkdir(parents=True)
    (d / 'config.json').write_text(json.dumps(config_json(spec, m.c), indent=1) + '\n')
    save_shards(tensors(spec, m), d, spec.shards)
    save_file(x, str(d / 'expected.safetensors'), metadata={'source': source, 'note': spec.note})
    size = sum(f.stat().st_size for f in d.iterdir()) / 1e6
    print(f'{name}: seed {seed}, {source}, {size:.1f} MB', flush=True)


SPECS = {
    'indexshare': Spec(
        Config(vocab_size=320, hidden_size=96, intermediate_size=160, moe_intermediate_size=64, num_hidden_layers=8,
               first_k_dense_replace=3, num_attention_heads=4, q_lora_rank=48, kv_lora_rank=40, qk_nope_head_dim=24,
               qk_rope_head_dim=16, v_head_dim=20, n_routed_experts=9, num_experts_per_tok=3, rms_norm_eps=1e-6,
               mla_norm_eps=1e-6, index_head_dim=32, index_n_heads=16, index_topk=12, index_topk_freq=4,
               index_skip_topk_offset=3, rope_theta=8e6),
        length=64, greedy=24,
        note='GLM-5.2 schedule F F F S S S F S; selections beyond index_topk; every width is different'),
    'experts256': Spec(
        Config(vocab_size=300, hidden_size=32, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3,
               first_k_dense_replace=1, num_attention_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
               qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=256, num_experts_per_tok=8, rms_norm_eps=1e-6,
               mla_norm_eps=1e-6, index_head_dim=16, index_n_heads=16, index_topk=16, index_topk_freq=1,
               index_skip_topk_offset=2, rope_theta=1e6, num_nextn_predict_layers=0),
        layout='fused', shards=3, length=40,
        config_json=dict(indexer_types=None, index_topk_freq=None, index_skip_topk_offset=None, index_topk_pattern=None,
                         mlp_layer_types=None, moe_router_dtype=None, index_share_for_mtp_iteration=None, head_dim=64),
        note='GLM-5.1 style config (no schedule: all layers full), fused expert tensors, three shards with an index'),
    'fp8': Spec(
        Config(vocab_size=288, hidden_size=160, intermediate_size=224, moe_intermediate_size=320, num_hidden_layers=4,
               first_k_dense_replace=1, num_attention_heads=4, q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=32,
               qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-6,
               mla_norm_eps=1e-6, index_head_dim=32, index_n_heads=16, index_topk=16, index_topk_freq=4,
               index_skip_topk_offset=3, rope_theta=8e6),
        store='fp8', length=32,
        note='e4m3 with 128x128 block scales, partial blocks; experts of width 320 = five chunks of 64'),
    'mxfp4': Spec(
        Config(vocab_size=288, hidden_size=128, intermediate_size=160, moe_intermediate_size=288, num_hidden_layers=4,
               first_k_dense_replace=1, num_attention_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=24,
               qk_rope_head_dim=8, v_head_dim=32, n_routed_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-6,
               mla_norm_eps=1e-6, index_head_dim=16, index_n_heads=16, index_topk=16, index_topk_freq=4,
               index_skip_topk_offset=3, rope_theta=8e6),
        store='mxfp4', length=32,
        note='Quark MXFP4 for routed and shared experts, MTP layer in BF16 as AMD ships it; width 288 = four chunks of 64 and one of 32'),
    'eps': Spec(
        Config(vocab_size=260, hidden_size=96, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=6,
               first_k_dense_replace=2, num_attention_heads=3, q_lora_rank=32, kv_lora_rank=24, qk_nope_head_dim=16,
               qk_rope_head_dim=8, v_head_dim=24, n_routed_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-2,
               mla_norm_eps=1e-2, index_head_dim=16, index_n_heads=16, index_topk=8, rope_theta=50000.0,
               num_nextn_predict_layers=0),
        store='f32', length=32, indexer_types=list('FSFSSF'),
        config_json=dict(indexer_types=None, index_topk_pattern='FSFSSF', rope_parameters=None, rope_theta=50000.0,
                         eos_token_id=2),
        note='float32 files, flat rope_theta, schedule as a pattern string, no MTP layer, and an epsilon so large that '
             'using any other one (or 1e-6 in the MLA norms) shows'),
    'article4': Spec(
        Config(vocab_size=256, hidden_size=96, intermediate_size=160, moe_intermediate_size=64, num_hidden_layers=3,
               first_k_dense_replace=1, num_attention_heads=3, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16,
               qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=12, num_experts_per_tok=3, rms_norm_eps=1e-6,
               mla_norm_eps=1e-6, index_head_dim=16, index_n_heads=16, index_topk=16, index_topk_freq=1,
               index_skip_topk_offset=2, rope_theta=8e6),
        store='article4', length=24,
        note="the article's container: X (U8, flat) + X.qs (F32 per row), int4 rows; dense parts in it too"),
}


def main(specs=SPECS, default=Path(__file__).resolve().parents[1] / 'fixtures'):
    out = Path(sys.argv[1] if len(sys.argv) > 1 else default)
    only = sys.argv[2:] or list(specs)
    torch.set_num_threads(1)
    for name in only:
        make(name, specs[name], out)


if __name__ == '__main__':
    main()
