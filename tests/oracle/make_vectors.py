"""Makes the small vector files of tests/fixtures/: tokenizer, chat template and weight encoders.

    python3 tests/oracle/make_vectors.py demo/tokenizer.json GLM-5.2.jinja GLM-5.3.jinja tests/fixtures

tokenizer_vectors.json   text -> ids by Hugging Face `tokenizers` with the demo model's tokenizer, and back
chat_vectors.json        messages -> prompt by jinja2 with the templates that GLM-5.2 and GLM-5.3 publish
encoders.safetensors     float32 blocks -> MXFP4 (Quark rule and plain OCP rule), int4 and int8 rows, fp8 table
"""
import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from glm_reference import mxfp4
from make_fixtures import row_int

TEXTS = [
    '', ' ', '  ', '   a', 'a   ', '\n', '\n\n', ' \n', '\n ', '\r\n', '\r\n\r\n x', '\t', '\t\tx', 'a\tb', ' \t \n \t',
    'Hello, world!', 'hello  world', ' hello', 'HELLO', "I'm you're we've they'll he'd it's don't", "I'M YOU'RE WE'VE IT'S",
    "'s", "''s", "x'S", "x'ſ", "it’s", "'tis", "'", "''", 'a.b.c', '...', '....!!??', 'a...\n\n b', '!\n', ' !\n\n\n',
    '1', '12', '123', '1234', '12345678901', ' 123', '1,234.56', '٣٤٥', '½', 'Ⅷ', '2²', '1a2b3c', 'abc123def',
    'naïve café Ünïcödé', 'Straße', 'İstanbul ıı', 'ñandú', 'Ελληνικά', 'Русский текст', 'العربية', 'עברית', '日本語テキスト',
    '中文字符，标点。', '한국어', 'ไทย', 'हिन्दी', '\u00a0x', 'x\u00a0\u00a0y', '\u2003\u2003', '\u3000全角', '\u200b', '\ufeffx',
    'e\u0301', '\u0301', '👍', '👩\u200d👩\u200d👧\u200d👦', '🇫🇷', 'a👍b', '\U0001f600\U0001f601', '\x00', '\x01\x02', '\x7f',
    '\u2028', '\u2029x', '\x0b\x0c', '\x85', '\x1c', '_under_score_', 'snake_case camelCase', '#include <stdio.h>',
    'for (int i = 0; i < n; i++) {\n    x[i] += 1;\n}\n', '{"a": [1, 2, {"b": null}]}', '<html>&amp;</html>', 'http://a.b/c?d=e&f=g#h',
    'mail@example.org', '$100 €5 £3', '100%', 'C++', 'a-b—c–d', '"quoted" «guillemets» “curly”', '(parens) [brackets]',
    'It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.',
    'Once upon a time there was a little fox named Ella.', 'What is 12 + 7?',
    '<|user|>', '<|user|>Hi<|assistant|><think>', '[gMASK]<sop><|user|>What is the capital of France?<|assistant|><think></think>',
    '<think>a</think>', '<think', '<|user', '<|user|', 'x<|user|>y', ' <|user|> ', '<|user|><|user|>', '[MASK][gMASK]',
    '[gMASK', '<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>', '/nothink', 'x/nothinky', '/no', '<|endoftext|>',
    '<|begin_of_image|><|image|><|end_of_image|>', '< |user|>', '<|USER|>', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    '            deep indent', 'x' * 200, 'ab' * 100, ' ' * 100, '\n' * 50, '=' * 80, '-' * 33 + '\n', '🙂' * 10,
    'Thequickbrownfoxjumpsoverthelazydog', 'a b c d e f g', 'a  b   c    d', 'end with space ', 'end with newline\n',
]


def more_texts(seed, n):
    """Random strings over a few alphabets, for what a list of examples forgets."""
    r = random.Random(seed)
    parts = ['a', 'b', 'the', 'ing', ' ', '  ', '\n', '\r', '\t', "'", "'s", '.', '!', '<', '|', '>', '1', '22', 'é', 'ß', 'Ω', 'ж',
             '中', '、', '\u00a0', '\u3000', '👍', '\u200d', '\u0301', '_', '-', '/', '<|user|>', '<think>', '</think>', '[MASK]', 'T', 'LL',
             "'Ll", '\x00', '\u0378', '\U000e0001', '\u180e', '\u1680', '²', '೨']
    return [''.join(r.choice(parts) for _ in range(r.randrange(1, 24))) for _ in range(n)]


def tokenizer_vectors(path, texts):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(path)
    out = []
    for t in texts:
        ids = tok.encode(t, add_special_tokens=False).ids
        out.append({'text': t, 'ids': ids, 'decoded': tok.decode(ids, skip_special_tokens=False)})
    return out


TOOL = {'type': 'function', 'function': {'name': 'get_weather', 'description': 'Get the weather of a city — now.', 'strict': True,
        'parameters': {'type': 'object', 'properties': {'city': {'type': 'string', 'description': 'e.g. "Zürich" <b>&</b>'},
                                                        'days': {'type': 'integer', 'default': 1}}, 'required': ['city']}}}
PLAIN_TOOL = {'name': 'now', 'description': '', 'parameters': {}}
DEFERRED = {'type': 'function', 'function': {'name': 'later', 'defer_loading': True, 'parameters': {'x': 1.5, 'y': None, 'z': [True, False]}}}


def call(name, args, **kw):
    return {'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'call_1', 'type': 'function',
                                                              'function': {'name': name, 'arguments': args}}], **kw}


U = {'role': 'user', 'content': 'Hi'}
CHATS = [
    dict(messages=[U]),
    dict(messages=[U], add_generation_prompt=False),
    dict(messages=[U], enable_thinking=False),
    dict(messages=[U], enable_thinking=True),
    dict(messages=[U], reasoning_effort='high'),
    dict(messages=[U], reasoning_effort='max'),
    dict(messages=[U], reasoning_effort='low'),
    dict(messages=[U], reasoning_effort='high', enable_thinking=False),
    dict(messages=[{'role': 'system', 'content': 'Be brief.'}, U]),
    dict(messages=[{'role': 'system', 'content': ''}, U], enable_thinking=False),
    dict(messages=[{'role': 'system', 'content': ' a '}, U, {'role': 'system', 'content': 'later'}, U]),
    dict(messages=[{'role': 'user', 'content': ''}]),
    dict(messages=[{'role': 'user', 'content': '  spaces kept \n'}]),
    dict(messages=[{'role': 'user', 'content': [{'type': 'text', 'text': 'two '}, {'type': 'text', 'text': 'parts'}]}]),
    dict(messages=[{'role': 'user', 'content': [{'type': 'text', 'text': 'see '}, {'type': 'image_url', 'image_url': {'url': 'x'}}]}]),
    dict(messages=[{'role': 'user', 'content': [{'type': 'input_audio', 'input_audio': {}}, 'plain']}]),
    dict(messages=[U, {'role': 'assistant', 'content': 'Hello!'}, {'role': 'user', 'content': 'Bye'}]),
    dict(messages=[U, {'role': 'assistant', 'content': '  Hello!\n', 'reasoning_content': 'greet'}, {'role': 'user', 'content': 'Bye'}]),
    dict(messages=[U, {'role': 'assistant', 'content': 'Hello!', 'reasoning_content': 'greet'}, {'role': 'user', 'content': 'Bye'}],
         clear_thinking=False),
    dict(messages=[U, {'role': 'assistant', 'content': 'Hello!', 'reasoning_content': 'greet'}, {'role': 'user', 'content': 'Bye'}],
         clear_thinking=True),
    dict(messages=[U, {'role': 'assistant', 'content': '<think>greet</think>Hello!'}, {'role': 'user', 'content': 'Bye'}], clear_thinking=False),
    dict(messages=[U, {'role': 'assistant', 'content': '<think>a</think>b</think>c'}], add_generation_prompt=False),
    dict(messages=[U, {'role': 'assistant', 'content': 'no think here', 'reasoning_content': ''}], add_generation_prompt=False),
    dict(messages=[U, {'role': 'assistant', 'content': '', 'reasoning_content': 'only thought'}], add_generation_prompt=False),
    dict(messages=[U], tools=[TOOL]),
    dict(messages=[U], tools=[TOOL], enable_thinking=False),
    dict(messages=[U], tools=[]),
    dict(messages=[{'role': 'system', 'content': 'S'}, U], tools=[TOOL, PLAIN_TOOL, DEFERRED]),
    dict(messages=[U, call('get_weather', {'city': 'Rome', 'days': 2}, reasoning_content='use tool'),
                   {'role': 'tool', 'content': '{"t": 21}', 'tool_call_id': 'call_1'}], tools=[TOOL]),
    dict(messages=[U, call('get_weather', {'city': 'Zürich "x"', 'n': 1.5, 'b': True, 'z': None, 'l': [1, 'é'], 'o': {'k': 'v'}}),
                   {'role': 'tool', 'content': 'one'}, {'role': 'tool', 'content': 'two'}, {'role': 'assistant', 'content': 'Done.'},
                   {'role': 'user', 'content': 'More'}], tools=[TOOL]),
    dict(messages=[U, call('now', {}, content='Let me look. '), {'role': 'tool', 'content': ''}]),
    dict(messages=[U, {'role': 'assistant', 'content': '', 'tool_calls': [{'function': {'name': 'a', 'arguments': {'x': 'y'}}},
                                                                            {'function': {'name': 'b', 'arguments': {}}}]},
                   {'role': 'tool', 'content': 'r1'}, {'role': 'tool', 'content': 'r2'}, {'role': 'user', 'content': 'ok'}, call('c', {'q': ''}),
                   {'role': 'tool', 'content': [{'type': 'text', 'text': 'parts'}]}]),
]


def results(*ids, calls=('c1', 'c2')):
    """Two calls, then results with these ids, in this order (None: no id)."""
    return dict(messages=[U, {'role': 'assistant', 'content': '', 'tool_calls': [
        {'id': i, 'type': 'function', 'function': {'name': f'tool_{i}', 'arguments': {'n': 1}}} for i in calls]}] + [
        {'role': 'tool', 'content': f'result {k} of {i}', **({'tool_call_id': i} if i else {})} for k, i in enumerate(ids)])


CHATS += [results('c1', 'c2'), results('c2', 'c1'), results('c2'), results('c1', 'c1'), results('c2', None), results('c2', 'cX'), results('c2', 'c1', calls=('c1', 'c1')),
          results('c3', 'c1', 'c2', calls=('c1', 'c2', 'c3'))]


def chat_vectors(paths, chats):
    """paths: template name -> file."""
    import jinja2
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols'])
    env.filters['tojson'] = lambda x, ensure_ascii=False: json.dumps(x, ensure_ascii=ensure_ascii)
    out = []
    for name, path in paths.items():
        template = env.from_string(Path(path).read_text())
        for c in chats:
            kw = {'add_generation_prompt': True, **c}
            out.append({'template': name, 'input': kw, 'prompt': template.render(**kw)})
    return out


def encoders():
    g = torch.Generator().manual_seed(3)
    w = torch.randn(64, 128, generator=g)
    w[1] *= 1e-3
    w[2] *= 1e4
    w[3, :32] = 0
    w[4, :32] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 6.9, 0.26, 0.24, -0.25, -0.1, -5.0, 6.5] * 2)
    w[5, :32] = torch.linspace(-7.2, 7.2, 32)
    w[6, :32] = 2.0 ** torch.arange(-16, 16).float()
    w[7, :32] = 1e-38
    w[8, :32] = 1e-45
    w[9, :32] = 3.4e38
    w[10] = w[10].to(torch.bfloat16).float()
    w[11, 5] = 6.99999
    t = {'weight': w}
    for rule in ('quark', 'ocp'):
        value, codes, scale = mxfp4(w, rule)
        t[f'mxfp4_{rule}.codes'] = (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous()
        t[f'mxfp4_{rule}.scale'] = scale.contiguous()
        t[f'mxfp4_{rule}.value'] = value.contiguous()
    rows = torch.cat((w[:6], w[10:40]))
    t['rows'] = rows
    for bits in (4, 8):
        value, codes, scale = row_int(rows, bits)
        t[f'int{bits}_row.codes'], t[f'int{bits}_row.scale'], t[f'int{bits}_row.value'] = codes.contiguous(), scale.contiguous(), value
    t['fp8_e4m3.value'] = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return t


def write(out, tokenizer, templates, texts, chats):
    out.mkdir(parents=True, exist_ok=True)
    (out / 'tokenizer_vectors.json').write_text(json.dumps(tokenizer_vectors(tokenizer, texts), ensure_ascii=True, indent=0) + '\n')
    (out / 'chat_vectors.json').write_text(json.dumps(chat_vectors(templates, chats), ensure_ascii=True, indent=1) + '\n')


if __name__ == '__main__':
    out = Path(sys.argv[4])
    write(out, sys.argv[1], {'glm-5.2': sys.argv[2], 'glm-5.3': sys.argv[3]}, TEXTS + more_texts(1, 400), CHATS)
    save_file(encoders(), str(out / 'encoders.safetensors'))
