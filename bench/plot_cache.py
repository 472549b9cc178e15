#!/usr/bin/env python3
"""Draws a result of bench_cache (CSV): what part of the wanted experts is missed, by slots.

    bench/plot_cache.py cache.csv [cache.svg]

Left, one layer alone (mean over the layers); right, all layers with all slots shared (lines) or in equal shares (dots).  Writes SVG and
needs nothing but Python.
"""
import csv
import sys

COLOURS = {"lfu-decay": "#c22", "lru": "#27c", "slru": "#2a2", "gdsf": "#a6c", "lfu": "#999", "belady": "#000", "weights": "#e90"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 330, 60, 40, 90


def read(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Panel:
    def __init__(self, out, at, title, slots, label):
        self.out, self.at = out, LEFT + at * (WIDTH + GAP)
        self.slots = slots
        out.append(f'<text x="{self.at}" y="{TOP - 14}" font-weight="bold">{title}</text>')
        for percent in range(0, 101, 20):
            y = self.y(percent)
            out.append(f'<path d="M{self.at} {y}h{WIDTH}" stroke="#ddd"/><text x="{self.at - 8}" y="{y + 4}" text-anchor="end">{percent}</text>')
        for slot in slots:
            out.append(f'<text x="{self.x(slot):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{slot}</text>')
        out.append(f'<text x="{self.at + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">{label}</text>')

    def x(self, slot):
        return self.at + WIDTH * self.slots.index(slot) / (len(self.slots) - 1)

    def y(self, percent):
        return TOP + HEIGHT * (1 - percent / 100)

    def line(self, points, colour, dashed):
        path = "L".join(f"{self.x(slot):.1f} {self.y(miss):.1f}" for slot, miss in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')

    def dots(self, points, colour):
        for slot, miss in points:
            self.out.append(f'<circle cx="{self.x(slot):.1f}" cy="{self.y(miss):.1f}" r="3.5" fill="#fff" stroke="{colour}" stroke-width="2"/>')


def curve(rows, case, policy, way):
    chosen = (row for row in rows if (row["case"], row["trace"], row["policy"], row["way"]) == (case, "glm", policy, way))
    return [(int(row["slots"]), 100 - float(row["value"])) for row in chosen]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    rows = read(sys.argv[1])
    out = []
    for at, (case, way, title, label) in enumerate((
            ("layer", "two-phase", "One layer: misses, % of the wanted experts", "slots of 256"),
            ("shares", "shared", "All 75 layers: misses, %", "slots of 19200; dots: equal shares"))):
        slots = [slot for slot, _ in curve(rows, case, "lru", way)]
        panel = Panel(out, at, title, slots, label)
        for policy, colour in COLOURS.items():
            points = curve(rows, case, policy, way)
            if points:
                panel.line(points, colour, policy in ("belady", "weights"))
            if case == "shares":
                panel.dots(curve(rows, case, policy, "equal"), colour)
    for number, (policy, colour) in enumerate(COLOURS.items()):
        x, y = LEFT + WIDTH - 130, TOP + 16 + 18 * number
        out.append(f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2"/><text x="{x + 30}" y="{y}">{policy}</text>')
    size = f'width="{2 * WIDTH + GAP + LEFT + 40}" height="{TOP + HEIGHT + 50}"'
    text = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
    path = sys.argv[2] if len(sys.argv) == 3 else sys.argv[1].rsplit(".", 1)[0] + ".svg"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
