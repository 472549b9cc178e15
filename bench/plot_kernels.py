#!/usr/bin/env python3
"""Draws a result of `potluck bench kernels` (CSV): how near each format comes to what the machine can do.

    bench/plot_kernels.py kernels.csv [kernels.png]

Left, one token: the fraction of the read roofline.  Right, 64 tokens: the fraction of the instruction set's own peak.  A group of
bars a format, a bar a shape and table, with p10 and p90 as whiskers.  Needs matplotlib.
"""
import csv
import os
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot_kernels.py needs matplotlib (Debian: python3-matplotlib)")

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def read(path):
    with open(path, encoding="utf-8") as file:
        lines = list(file)
    title = next((line[1:].strip() for line in lines if line.startswith("#")), path)
    return title, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def draw(axes, cases, measure, what):
    formats = list(dict.fromkeys(case["format"] for case in cases))
    series = list(dict.fromkeys((case["table"], case["shape"]) for case in cases))
    width = 0.8 / max(1, len(series))
    for i, (table, shape) in enumerate(series):
        chosen = [case for case in cases if (case["table"], case["shape"]) == (table, shape)]
        at = [formats.index(case["format"]) + (i - (len(series) - 1) / 2) * width for case in chosen]
        height = [float(case[measure]) for case in chosen]
        below = [max(0.0, h - float(case[measure + "_p10"])) for h, case in zip(height, chosen)]
        above = [max(0.0, float(case[measure + "_p90"]) - h) for h, case in zip(height, chosen)]
        axes.bar(at, height, width, yerr=(below, above), error_kw={"linewidth": 0.6}, label=f"{table} {shape}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(formats)), formats, rotation=60, ha="right")
    axes.set_ylim(0, 1.3)
    axes.set_ylabel(what)
    axes.legend(fontsize="x-small")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: bench/plot_kernels.py kernels.csv [kernels.png]")
    path = sys.argv[1]
    try:
        title, cases = read(path)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{path}: {error}")
    needed = ("format", "table", "shape", "rows", "fraction", "fraction_p90", "peak_fraction", "peak_fraction_p90")
    cases = [case for case in cases if all(case.get(name) is not None for name in needed)]
    if not cases:
        sys.exit(f"{path}: holds no case; the CSV of `potluck bench kernels` was expected")
    one = [case for case in cases if case["rows"] == "1"]
    many = [case for case in cases if case["rows"] == "64" and case["peak_fraction"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6))
    draw(left, one, "fraction", "1 token: fraction of the read roofline")
    draw(right, many, "peak_fraction", "64 tokens: fraction of the arithmetic peak")
    figure.suptitle(title, fontsize="x-small", wrap=True)
    figure.tight_layout()
    figure.savefig(sys.argv[2] if len(sys.argv) == 3 else os.path.splitext(path)[0] + ".png", dpi=120)


if __name__ == "__main__":
    main()
