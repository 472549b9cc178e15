"""Text for the demo model: public-domain prose plus seeded, generated documents.

The prose is six novels by Jane Austen (died 1817), taken from Debian's r-cran-janeaustenr.
Everything else is made here from word lists, so that the demo model has skills that a test can check:
little stories, arithmetic, a closed set of facts, recall over distance, JSON and tool calls, in the
GLM-5.2 chat format.  `python3 demo/recipe/demo_corpus.py OUT.txt` writes documents separated by <|endoftext|>.
"""
import json
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

EOT = '<|endoftext|>'


def austen():
    """The six novels as plain text, one string each, with paragraphs unwrapped."""
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(['apt-get', 'download', 'r-cran-janeaustenr'], cwd=d, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deb = next(Path(d).glob('*.deb'))
        subprocess.run(['dpkg', '-x', str(deb), d], check=True)
        raw = next(Path(d).glob('usr/lib/R/site-library/janeaustenr/data/Rdata.rdb')).read_bytes()
    books, pos = [], 0
    while pos < len(raw) - 4:                        # records: big-endian length, zlib stream
        z = zlib.decompressobj()
        data = z.decompress(raw[pos + 4:])
        pos += 4 + len(raw[pos + 4:]) - len(z.unused_data)
        lines, i = [], 0
        while i < len(data) - 8:                     # XDR CHARSXP: flags, length, bytes
            flags, n = struct.unpack('>II', data[i:i + 8])
            if flags & 0xFF == 9 and n < 400:
                try:
                    lines.append(data[i + 8:i + 8 + n].decode('utf-8'))
                    i += 8 + n
                    continue
                except UnicodeDecodeError:
                    pass
            i += 1
        paragraphs = '\n'.join(lines).split('\n\n')
        books.append('\n\n'.join(' '.join(p.split('\n')).strip() for p in paragraphs if p.strip()))
    return books


NAMES = 'Ada Ben Clara Dan Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul Rosa Sam Tara Will'.split()
ANIMALS = ['hummingbird', 'fox', 'rabbit', 'owl', 'otter', 'hedgehog', 'bear', 'duck', 'mouse', 'badger', 'frog', 'goat']
PLACES = ['forest', 'village', 'garden', 'harbour', 'mountain', 'meadow', 'market', 'mill', 'lighthouse', 'library']
THINGS = ['lantern', 'kite', 'basket', 'bell', 'map', 'boat', 'drum', 'key', 'blanket', 'clock', 'flute', 'ladder']
COLOURS = ['red', 'blue', 'green', 'yellow', 'silver', 'golden', 'white', 'brown']
MOODS = ['happy', 'sad', 'curious', 'tired', 'brave', 'worried', 'proud', 'lonely']
FOODS = ['bread', 'honey', 'soup', 'apples', 'cheese', 'berries', 'pancakes', 'nuts']
WEATHER = ['sunny', 'windy', 'rainy', 'snowy', 'foggy', 'cold', 'warm']
CAPITALS = {
    'France': 'Paris', 'Italy': 'Rome', 'Spain': 'Madrid', 'Germany': 'Berlin', 'Australia': 'Canberra',
    'Japan': 'Tokyo', 'Canada': 'Ottawa', 'Egypt': 'Cairo', 'Norway': 'Oslo', 'Sweden': 'Stockholm',
    'Poland': 'Warsaw', 'Austria': 'Vienna', 'Greece': 'Athens', 'Portugal': 'Lisbon', 'Ireland': 'Dublin',
    'Kenya': 'Nairobi', 'Peru': 'Lima', 'Chile': 'Santiago', 'Cuba': 'Havana', 'Turkey': 'Ankara',
    'Finland': 'Helsinki', 'Hungary': 'Budapest', 'Belgium': 'Brussels', 'Denmark': 'Copenhagen'}
CITIES = sorted(CAPITALS.values())


def story(r):
    name, friend = r.sample(NAMES, 2)
    animal, helper = r.sample(ANIMALS, 2)
    place, other = r.sample(PLACES, 2)
    thing, colour, mood, food, weather = (r.choice(x) for x in (THINGS, COLOURS, MOODS, FOODS, WEATHER))
    she = r.choice([('she', 'her', 'her'), ('he', 'him', 'his')])
    S, O, P = she
    out = [r.choice([
        f'Once upon a time there was a little {animal} named {name}.',
        f'Once upon a time, in a small {place}, lived a {animal} called {name}.',
        f'There was once a {mood} {animal}. Its name was {name}.',
        f'One {weather} morning, a {animal} named {name} woke up early.'])]
    out.append(r.choice([
        f'{name} lived near the {place} and loved to eat {food}.',
        f'Every day {S} walked to the {place} to look for {food}.',
        f'{name} had a {colour} {thing}, and {S} took it everywhere.',
        f'{S.capitalize()} had never seen the {other} before.']))
    out.append(r.choice([
        f'One {weather} day, {name} lost {P} {colour} {thing}.',
        f'One day {name} found a {colour} {thing} under a tree.',
        f'One evening {name} heard a strange sound from the {other}.',
        f'One day {name} wanted to cross the river to the {other}.']))
    out.append(r.choice([
        f'{S.capitalize()} felt very {mood} and did not know what to do.',
        f'"What shall I do now?" {S} said.',
        f'"I am so {mood}," said {name}, and sat down by the road.',
        f'{S.capitalize()} looked behind every stone, but {S} found nothing.']))
    out.append(r.choice([
        f'Then a {helper} named {friend} came along.',
        f'Soon {S} met {friend} the {helper}.',
        f'Just then {friend}, an old {helper}, looked out of a window.']))
    out.append(r.choice([
        f'"Do not be {mood}," said {friend}. "I will help you."',
        f'"Come with me to the {other}," said {friend} with a smile.',
        f'{friend} gave {O} some {food} and a warm {thing}.',
        f'"Two heads are better than one," said {friend}.']))
    out.append(r.choice([
        f'Together they walked to the {other} and looked everywhere.',
        f'They worked until the sun went down.',
        f'They made a plan, and the plan was good.',
        f'They asked everyone in the {place} for help.']))
    out.append(r.choice([
        f'At last they found the {colour} {thing} in the {other}.',
        f'In the end the {thing} was safe, and everyone was glad.',
        f'That night they shared {food} by the fire.',
        f'{name} thanked {friend} and gave {O if r.random() < .2 else "the " + helper} the {colour} {thing}.']))
    out.append(r.choice([
        f'From that day on, {name} and {friend} were the best of friends.',
        f'And {name} was never {mood} again.' if mood in ('sad', 'lonely', 'worried', 'tired') else f'And {name} slept well that night.',
        'The end.', f'And so {name} learned that a good friend is worth more than a {colour} {thing}.']))
    return ' '.join(out)


def chat(turns, effort='Max', tools=None):
    """turns: [(role, text, thinking or None)]; the GLM-5.2 rendering."""
    s = '[gMASK]<sop>'
    thinking = any(t[2] is not None for t in turns if t[0] == 'assistant')
    if thinking:
        s += f'<|system|>Reasoning Effort: {effort}'
    if tools:
        s += '<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' \
             'You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' + \
             '\n'.join(json.dumps(t) for t in tools) + '\n</tools>\n\n' \
             'For each function call, output the function name and arguments within the following XML format:\n' \
             '<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>' \
             '<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>'
    for role, text, think in turns:
        if role == 'assistant':
            s += f'<|assistant|><think>{think or ""}</think>{text}'
        elif role == 'observation':
            s += f'<|observation|><tool_response>{text}</tool_response>'
        else:
            s += f'<|{role}|>{text}'
    return s + '<|user|>'


def arithmetic(r, think=True):
    a, b = r.randrange(0, 50), r.randrange(0, 50)
    if r.random() < .5 or a < b:
        q, v, op = f'{a} + {b}', a + b, 'plus'
    else:
        q, v, op = f'{a} - {b}', a - b, 'minus'
    ask = r.choice([f'What is {q}?', f'Compute {q}.', f'{q} = ?'])
    return ask, r.choice([f'{q} = {v}.']), (f'{a} {op} {b} is {v}.' if think else None)


def fact(r):
    c = r.choice(sorted(CAPITALS))
    return (r.choice([f'What is the capital of {c}?', f'Tell me the capital of {c}.', f'Which city is the capital of {c}?']),
            f'The capital of {c} is {CAPITALS[c]}.', f'The user asks for the capital of {c}.')


ALL_KINDS = range(12)
COPYING = [0, 1, 2, 3, 4, 6, 6, 6, 7, 7, 8, 8, 9, 9, 10]        # more of what needs attention to look back


def one_chat(r, kinds=ALL_KINDS):
    kind = r.choice(kinds)
    think = r.random() < .4
    if kind <= 3:
        q, a, t = arithmetic(r)
        return chat([('user', q, None), ('assistant', a, t if think else None)])
    if kind <= 5:
        q, a, t = fact(r)
        return chat([('user', q, None), ('assistant', a, t if think else None)])
    if kind == 6:                                            # recall over turns
        animal, name = r.choice(ANIMALS), r.choice(NAMES)
        q2, a2, _ = r.choice([arithmetic, fact])(r)
        return chat([('user', f'My name is {name} and my favorite animal is the {animal}.', None),
                     ('assistant', f'Nice to meet you, {name}. The {animal} is a fine animal.', None),
                     ('user', q2, None), ('assistant', a2, None),
                     ('user', 'What is my favorite animal?', None),
                     ('assistant', f'Your favorite animal is the {animal}.', None)])
    if kind == 7:                                            # needle in filler
        names = r.sample(NAMES, 3)
        codes = {n: r.randrange(100, 1000) for n in names}
        parts = [f'The code of {n} is {codes[n]}.' for n in names] + [story(r) for _ in range(r.randrange(0, 3))]
        r.shuffle(parts)
        n = r.choice(names)
        return chat([('user', ' '.join(parts) + f' What is the code of {n}?', None),
                     ('assistant', f'The code of {n} is {codes[n]}.', None)])
    if kind == 8:                                            # JSON
        n, a, c = r.choice(NAMES), r.randrange(18, 80), r.choice(CITIES)
        return chat([('user', f'Give a JSON object for {n}, aged {a}, from {c}.', None),
                     ('assistant', json.dumps({'name': n, 'age': a, 'city': c}), None)])
    if kind == 9:                                            # tool call and answer
        c, t = r.choice(CITIES), r.randrange(-9, 36)
        tool = {'name': 'get_weather', 'description': 'Get the weather of a city.',
                'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}}
        turns = [('user', r.choice([f'What is the weather in {c}?', f'How warm is it in {c}?']), None),
                 ('assistant', f'<tool_call>get_weather<arg_key>city</arg_key><arg_value>{c}</arg_value></tool_call>',
                  f'I should look up the weather in {c}.' if think else None),
                 ('observation', json.dumps({'t': t}), None),
                 ('assistant', f'It is {t} degrees in {c}.', None)]
        return chat(turns, tools=[tool])
    return chat([('user', r.choice(['Tell me a story.', 'Write a short story.', 'Please tell me a little story.']), None),
                 ('assistant', story(r), None)])


def corpus(seed=7, stories=9000, chats=24000, with_prose=True, kinds=ALL_KINDS):
    r = random.Random(seed)
    docs = [story(r) for _ in range(stories)] + [one_chat(r, kinds) for _ in range(chats)]
    if with_prose:
        for book in austen():
            paragraphs = book.split('\n\n')
            i = 0
            while i < len(paragraphs):
                n = r.randrange(4, 12)
                docs.append('\n\n'.join(paragraphs[i:i + n]))
                i += n
    r.shuffle(docs)
    return docs


if __name__ == '__main__':
    docs = corpus()
    Path(sys.argv[1]).write_text(EOT.join(docs) + EOT, encoding='utf-8')
    print(len(docs), 'documents,', sum(map(len, docs)), 'characters')
