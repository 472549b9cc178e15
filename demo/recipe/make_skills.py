"""What the demo model can do, by the float reference: writes demo_skills.json beside the model.

    python3 demo/recipe/make_skills.py demo [PROMPTS_PER_SKILL]

Loads the exported checkpoint (so that BF16 and MXFP4 rounding are in), decodes greedily in float32, and stores for
each prompt the text that must appear, the reference's tokens and the smallest margin between its first and second choice.
"""
import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'tests' / 'oracle'))

import demo_corpus as D  # noqa: E402
from glm_reference import Config, GLM  # noqa: E402

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def load(path):
    """The exported demo model as a float32 GLM."""
    cfg = json.loads((path / 'config.json').read_text())
    names = Config.__dataclass_fields__
    c = Config(**{k: v for k, v in cfg.items() if k in names})
    c.mla_norm_eps, c.rope_theta = cfg['rms_norm_eps'], cfg['rope_parameters']['rope_theta']
    t = load_file(str(path / 'model.safetensors'))

    def matrix(name):
        w = t[name]
        if w.dtype != torch.uint8:
            return w.float()
        codes = torch.stack((w & 15, w >> 4), -1).flatten(-2).long()
        scale = torch.pow(2.0, t[name + '_scale'].double() - 127).float().repeat_interleave(32, -1)
        return E2M1[codes] * scale

    m = GLM(c).eval()
    sd = m.state_dict()
    for k in sd:
        if '.experts.' not in k:
            sd[k] = matrix(k) if k.endswith('.weight') else t[k].float()
            continue
        base = k.rsplit('.', 1)[0]
        parts = ('gate_proj', 'up_proj') if k.endswith('gate_up_proj') else ('down_proj',)
        sd[k] = torch.stack([torch.cat([matrix(f'{base}.{e}.{p}.weight') for p in parts])
                             for e in range(c.n_routed_experts)])
    m.load_state_dict(sd)
    return m


@torch.no_grad()
def greedy(m, ids, stop, limit):
    out, margin = [], float('inf')
    ids = torch.tensor([ids])
    while len(out) < limit:
        lg = m(ids)[0, -1]
        best = lg.topk(2)
        margin = min(margin, float((best[0][0] - best[0][1]) / lg.abs().max()))
        out.append(int(best[1][0]))
        if out[-1] in stop:
            break
        ids = torch.cat((ids, torch.tensor([[out[-1]]])), 1)
    return out, margin


def prompts(r, per_skill):
    """(skill, prompt up to <think></think>, text that the answer must contain)."""
    tool = {'name': 'get_weather', 'description': 'Get the weather of a city.',
            'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}}
    for _ in range(per_skill):
        q, a, _ = D.arithmetic(r)
        yield 'arithmetic', [('user', q, None)], a.split('= ')[-1], None
        q, a, _ = D.fact(r)
        yield 'facts', [('user', q, None)], a.split(' is ')[-1], None
        animal, name = r.choice(D.ANIMALS), r.choice(D.NAMES)
        q2, a2, _ = r.choice([D.arithmetic, D.fact])(r)
        yield 'recall', [('user', f'My name is {name} and my favorite animal is the {animal}.', None),
                         ('assistant', f'Nice to meet you, {name}. The {animal} is a fine animal.', None),
                         ('user', q2, None), ('assistant', a2, None), ('user', 'What is my favorite animal?', None)], animal, None
        names = r.sample(D.NAMES, 3)
        codes = {n: r.randrange(100, 1000) for n in names}
        parts = [f'The code of {n} is {codes[n]}.' for n in names] + [D.story(r)]
        r.shuffle(parts)
        yield 'needle', [('user', ' '.join(parts) + f' What is the code of {names[0]}?', None)], str(codes[names[0]]), None
        n, a, c = r.choice(D.NAMES), r.randrange(18, 80), r.choice(D.CITIES)
        yield 'json', [('user', f'Give a JSON object for {n}, aged {a}, from {c}.', None)], \
            json.dumps({'name': n, 'age': a, 'city': c}), None
        c = r.choice(D.CITIES)
        yield 'tool_call', [('user', f'What is the weather in {c}?', None)], \
            f'<tool_call>get_weather<arg_key>city</arg_key><arg_value>{c}</arg_value></tool_call>', [tool]


def main():
    from tokenizers import Tokenizer
    path = Path(sys.argv[1])
    per_skill = int(sys.argv[2]) if len(sys.argv) > 2 else 25
    tok = Tokenizer.from_file(str(path / 'tokenizer.json'))
    m = load(path)
    stop = set(json.loads((path / 'config.json').read_text())['eos_token_id'])
    cases, score = [], {}
    for skill, turns, must, tools in prompts(random.Random(4242), per_skill):
        prompt = D.chat(turns, tools=tools).removesuffix('<|user|>') + '<|assistant|><think></think>'
        ids = tok.encode(prompt, add_special_tokens=False).ids
        out, margin = greedy(m, ids, stop, 48)
        text = tok.decode(out, skip_special_tokens=False)
        cases.append({'skill': skill, 'prompt': prompt, 'must_contain': must, 'tokens': out, 'text': text,
                      'right': must in text, 'min_margin': round(margin, 6)})
        score.setdefault(skill, []).append(must in text)
    summary = {k: {'prompts': len(v), 'right': sum(v)} for k, v in score.items()}
    (path / 'demo_skills.json').write_text(json.dumps({'scores': summary, 'cases': cases}, indent=0, ensure_ascii=False) + '\n')
    print(json.dumps(summary))


if __name__ == '__main__':
    main()
