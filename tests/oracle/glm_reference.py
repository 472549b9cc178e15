"""Plain float32 PyTorch reference of GLM-5.2 / GLM-5.3 (model_type glm_moe_dsa).

Every part that the engine must have is here, in the simplest form that is right:
MLA with a shared rotary key, the DSA indexer with shared selections (IndexShare), the sigmoid
router with a correction bias, routed and shared experts, and the MTP layer, which the
`transformers` package leaves out.  make_fixtures.py holds it against `transformers`.

Parameter names are the checkpoint's own names with '.' kept, so that state_dict() maps one to one
(experts are stored fused here and are split when they are saved).
"""
from dataclasses import dataclass, field, asdict
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 384          # dense layers
    moe_intermediate_size: int = 64       # one routed expert
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    num_attention_heads: int = 6
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    n_routed_experts: int = 64
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    rms_norm_eps: float = 1e-5
    mla_norm_eps: float = 1e-5            # transformers uses 1e-6 here; vLLM and SGLang 1e-5
    index_head_dim: int = 32
    index_n_heads: int = 8
    index_topk: int = 64
    index_topk_freq: int = 4
    index_skip_topk_offset: int = 3
    rope_theta: float = 10000.0
    num_nextn_predict_layers: int = 1

    def index_is_full(self, layer: int) -> bool:
        """True when `layer` owns an indexer; a shared layer reuses the last full layer's choice."""
        if layer >= self.num_hidden_layers:
            return True
        return max(layer - self.index_skip_topk_offset + 1, 0) % max(self.index_topk_freq, 1) == 0


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, positions, theta):
    """Interleaved rotation of the last dimension; pairs are (2j, 2j+1).  x: [..., T, d]."""
    d = x.shape[-1]
    inv = (theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d))
    angle = positions.to(torch.float32)[:, None] * inv[None, :]
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., 0::2], x[..., 1::2]
    return torch.stack((x0 * cos - x1 * sin, x1 * cos + x0 * sin), dim=-1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class Indexer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.wq_b = nn.Linear(c.q_lora_rank, c.index_n_heads * c.index_head_dim, bias=False)
        self.wk = nn.Linear(c.hidden_size, c.index_head_dim, bias=False)
        self.k_norm = nn.LayerNorm(c.index_head_dim, eps=1e-6)
        self.weights_proj = nn.Linear(c.hidden_size, c.index_n_heads, bias=False)

    def forward(self, h, q_res, positions):
        """Scores [B, T, T] of every key for every query, before the causal mask."""
        c = self.c
        B, T, _ = h.shape
        r = c.qk_rope_head_dim
        q = self.wq_b(q_res).view(B, T, c.index_n_heads, c.index_head_dim).transpose(1, 2)
        k = self.k_norm(self.wk(h))
        q = torch.cat((rope(q[..., :r], positions, c.rope_theta), q[..., r:]), -1)
        k = torch.cat((rope(k[..., :r], positions, c.rope_theta), k[..., r:]), -1)
        w = self.weights_proj(h) * c.index_n_heads ** -0.5                      # [B, T, heads]
        s = torch.relu(torch.einsum('bhtd,bsd->bhts', q, k) * c.index_head_dim ** -0.5)
        return torch.einsum('bhts,bth->bts', s, w)


def top_positions(scores, k):
    """Boolean mask [B, T, T] of the k best allowed keys of each query; ties go to the lower index."""
    B, T, _ = scores.shape
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    s = scores.masked_fill(~causal, float('-inf'))
    order = torch.argsort(s, dim=-1, descending=True, stable=True)[..., :min(k, T)]
    keep = torch.zeros(B, T, T, dtype=torch.bool)
    keep.scatter_(-1, order, True)
    return keep & causal


class Attention(nn.Module):
    def __init__(self, c: Config, full: bool):
        super().__init__()
        self.c = c
        H, dn, dr, dv = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
        self.q_a_proj = nn.Linear(c.hidden_size, c.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(c.q_lora_rank, c.mla_norm_eps)
        self.q_b_proj = nn.Linear(c.q_lora_rank, H * (dn + dr), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(c.hidden_size, c.kv_lora_rank + dr, bias=False)
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, c.mla_norm_eps)
        self.kv_b_proj = nn.Linear(c.kv_lora_rank, H * (dn + dv), bias=False)
        self.o_proj = nn.Linear(H * dv, c.hidden_size, bias=False)
        if full:
            self.indexer = Indexer(c)

    def forward(self, h, positions, keep, sparse=True, detach_index=False):
        """Returns output, the selection used, the indexer's scores (or None), attention [B,H,T,T]."""
        c = self.c
        B, T, _ = h.shape
        H, dn, dr, dv = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
        q_res = self.q_a_layernorm(self.q_a_proj(h))
        q = self.q_b_proj(q_res).view(B, T, H, dn + dr).transpose(1, 2)
        q_nope, q_rope = q[..., :dn], rope(q[..., dn:], positions, c.rope_theta)
        kv = self.kv_a_proj_with_mqa(h)
        latent = self.kv_a_layernorm(kv[..., :c.kv_lora_rank])
        k_rope = rope(kv[..., c.kv_lora_rank:], positions, c.rope_theta)        # [B, T, dr], one for all heads
        kvb = self.kv_b_proj(latent).view(B, T, H, dn + dv).transpose(1, 2)
        k_nope, v = kvb[..., :dn], kvb[..., dn:]
        index_scores = None
        if hasattr(self, 'indexer'):
            index_scores = (self.indexer(h.detach(), q_res.detach(), positions) if detach_index
                            else self.indexer(h, q_res, positions))
            keep = top_positions(index_scores.detach(), c.index_topk)
        scores = (q_nope @ k_nope.transpose(-1, -2) + torch.einsum('bhtd,bsd->bhts', q_rope, k_rope))
        scores = scores * (dn + dr) ** -0.5
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        allowed = keep[:, None] if sparse else causal[None, None]
        p = torch.softmax(scores.masked_fill(~allowed, float('-inf')), dim=-1)
        out = self.o_proj((p @ v).transpose(1, 2).reshape(B, T, H * dv))
        return out, keep, index_scores, p


class MLP(nn.Module):
    def __init__(self, hidden, inter):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """gate_up_proj [E, 2I, H] with the gate rows first, down_proj [E, H, I]."""

    def __init__(self, c: Config):
        super().__init__()
        E, I, D = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(E, 2 * I, D) * D ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(E, D, I) * I ** -0.5)

    def forward(self, x, ids, weights, quant=None):
        """x [N, D], ids [N, k], weights [N, k] -> [N, D]."""
        N, D = x.shape
        E = self.gate_up_proj.shape[0]
        k = ids.shape[1]
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        count = torch.bincount(flat, minlength=E)
        start = torch.cumsum(count, 0) - count
        cap = int(count.max())
        slot = torch.arange(N * k) - start[flat[order]]
        rows = order // k
        padded = x.new_zeros(E, cap, D).index_put((flat[order], slot), x[rows])
        wgu, wd = self.gate_up_proj, self.down_proj
        if quant is not None:
            wgu, wd = quant(wgu), quant(wd)
        g, u = torch.bmm(padded, wgu.transpose(1, 2)).chunk(2, dim=-1)
        y = torch.bmm(F.silu(g) * u, wd.transpose(1, 2))
        y = y[flat[order], slot] * weights.reshape(-1)[order][:, None]
        return x.new_zeros(N, D).index_add(0, rows, y)


class Gate(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c.n_routed_experts, c.hidden_size) * c.hidden_size ** -0.5)
        self.register_buffer('e_score_correction_bias', torch.zeros(c.n_routed_experts))


class MoE(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.gate = Gate(c)
        self.experts = Experts(c)
        self.shared_experts = MLP(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)
        self.last_ids = None

    def route(self, x):
        c = self.c
        s = torch.sigmoid(x @ self.gate.weight.t())
        choice = s + self.gate.e_score_correction_bias
        if c.n_group > 1:
            g = choice.view(-1, c.n_group, c.n_routed_experts // c.n_group)
            best = g.topk(2, dim=-1)[0].sum(-1)
            keep = torch.zeros_like(best).scatter_(1, best.topk(c.topk_group, dim=-1)[1], 1.0)
            choice = choice.masked_fill(~keep[:, :, None].expand_as(g).reshape(choice.shape).bool(), float('-inf'))
        ids = torch.argsort(choice, dim=-1, descending=True, stable=True)[:, :c.num_experts_per_tok]
        w = s.gather(1, ids)
        if c.norm_topk_prob:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        return ids, w * c.routed_scaling_factor

    def forward(self, h, quant=None):
        x = h.reshape(-1, h.shape[-1])
        ids, w = self.route(x)
        self.last_ids = ids.detach()
        return (self.experts(x, ids, w, quant) + self.shared_experts(x)).view_as(h)


class Layer(nn.Module):
    def __init__(self, c: Config, index: int):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c, c.index_is_full(index))
        self.mlp = MLP(c.hidden_size, c.intermediate_size) if index < c.first_k_dense_replace else MoE(c)
        if index >= c.num_hidden_layers:                      # the MTP layer
            self.enorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
            self.hnorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
            self.eh_proj = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
            self.shared_head = nn.Module()
            self.shared_head.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, positions, keep, sparse, detach_index, quant):
        a, keep, scores, p = self.self_attn(self.input_layernorm(x), positions, keep, sparse, detach_index)
        x = x + a
        h = self.post_attention_layernorm(x)
        x = x + (self.mlp(h, quant) if isinstance(self.mlp, MoE) else self.mlp(h))
        return x, keep, scores, p


class GLM(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(
            Layer(c, i) for i in range(c.num_hidden_layers + c.num_nextn_predict_layers))
        self.model.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def trunk(self, ids, sparse=True, detach_index=False, quant=None, first_position=0):
        """ids [B, T] -> hidden after the final norm [B, T, D] and [(layer, scores, p), ...]."""
        x = self.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1]) + first_position
        keep, trace = None, []
        for i in range(self.c.num_hidden_layers):
            x, keep, scores, p = self.model.layers[i](x, positions, keep, sparse, detach_index, quant)
            trace.append((i, scores, p))
        return self.model.norm(x), trace

    def mtp(self, next_ids, hidden, sparse=True, detach_index=False, quant=None, first_position=0):
        """Row p combines the embedding of token p+1 with the trunk's normed hidden of p.

        Returns z [B, T, D] (already through shared_head.norm; lm_head(z) predicts token p+2; z also
        takes the place of `hidden` when another draft is chained) and the attention trace."""
        layer = self.model.layers[self.c.num_hidden_layers]
        u = layer.eh_proj(torch.cat((layer.enorm(self.model.embed_tokens(next_ids)),
                                     layer.hnorm(hidden)), -1))
        positions = torch.arange(next_ids.shape[1]) + first_position
        x, _, scores, p = layer(u, positions, None, sparse, detach_index, quant)
        return layer.shared_head.norm(x), (self.c.num_hidden_layers, scores, p)

    def forward(self, ids, **kw):
        hidden, _ = self.trunk(ids, **kw)
        return self.lm_head(hidden)

    @torch.no_grad()
    def greedy(self, prompt, n):
        ids = torch.tensor([prompt])
        out = []
        for _ in range(n):
            nxt = int(self(ids)[0, -1].argmax())
            out.append(nxt)
            ids = torch.cat((ids, torch.tensor([[nxt]])), 1)
        return out


def mxfp4(w, rule='quark'):
    """Round [..., n*32] to OCP MXFP4 and back.  Returns values, E2M1 codes, E8M0 scale bytes.

    rule 'quark' bumps the shared exponent when amax * 2^-X >= 7; rule 'ocp' is the plain floor."""
    shape = w.shape
    b = w.detach().to(torch.float32).reshape(-1, 32)
    amax = b.abs().amax(-1)
    bits = amax.view(torch.int32)
    if rule == 'quark':
        bits = bits + 0x00200000
    expo = ((bits >> 23) & 0xFF) - 127 - 2
    expo = expo.clamp(-127, 127)
    scale = torch.pow(torch.tensor(2.0, dtype=torch.float64), expo.double())
    q = b.double() / scale[:, None]
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    mids = (grid[1:] + grid[:-1]) / 2
    a = q.abs()
    code = torch.bucketize(a, mids)                          # ties: right=False puts a == mid in the lower bin
    tie = (a[..., None] == mids).any(-1)
    code = torch.where(tie & (code % 2 == 1), code + 1, code)  # half to even code
    val = grid[code] * torch.sign(q) * scale[:, None]
    codes = (code + 8 * (q < 0)).to(torch.uint8)
    codes = torch.where(code == 0, torch.zeros_like(codes), codes)   # no negative zero
    return (val.to(torch.float32).reshape(shape), codes.reshape(shape),
            (expo + 127).to(torch.uint8).reshape(*shape[:-1], shape[-1] // 32))


class FakeMXFP4(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        return mxfp4(w)[0]

    @staticmethod
    def backward(ctx, g):
        return g
