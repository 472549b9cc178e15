/* The option table.  A row here is all that a new option needs besides its member in pot_settings; `make golden` then
 * renews docs/options.md and the golden help text. */
#include "common/settings.h"

#include <stddef.h>

enum {
    GENERATE = POT_CMD_RUN | POT_CMD_CHAT,
    ENGINE = POT_CMD_ENGINE,
    MODEL = POT_CMD_ENGINE | POT_CMD_TOOLS, /* also what reads a model without running it */
    EVAL = POT_CMD_EVAL,
    BENCH = POT_CMD_BENCH,
    STORE = POT_CMD_ENGINE | POT_CMD_STORE, /* what holds experts */
    FORMATS = MODEL | POT_CMD_CONVERT | POT_CMD_SLICE | POT_CMD_PLAN | POT_CMD_STORE,
    ALL = POT_CMD_ALL
};

#define AT(member) offsetof(pot_settings, member)
#define COUNT 9007199254740992.0 /* 2^53, the largest bound that a double holds exactly: no upper bound in practice */

#define SWITCH(name, member, group, commands, help) \
    { name, NULL, POT_OPTION_BOOL, AT(member), "false", "", group, commands, 0, 0, NULL, help }
#define TEXT(name, alias, member, fallback, argument, group, commands, help) \
    { name, alias, POT_OPTION_TEXT, AT(member), fallback, argument, group, commands, 0, 0, NULL, help }
#define CHOICE(name, member, fallback, choices, argument, group, commands, help) \
    { name, NULL, POT_OPTION_CHOICE, AT(member), fallback, argument, group, commands, 0, 0, choices, help }
#define INTEGER(name, alias, member, fallback, argument, group, commands, min, max, word, help) \
    { name, alias, POT_OPTION_INT, AT(member), fallback, argument, group, commands, min, max, word, help }
#define NUMBER(name, member, fallback, group, commands, min, max, word, help) \
    { name, NULL, POT_OPTION_NUMBER, AT(member), fallback, "NUMBER", group, commands, min, max, word, help }
#define BYTES(name, member, fallback, group, commands, word, help) \
    { name, NULL, POT_OPTION_BYTES, AT(member), fallback, "SIZE", group, commands, 0, 0, word, help }
#define TIME(name, member, fallback, word, help) \
    { name, NULL, POT_OPTION_TIME, AT(member), fallback, "TIME", "Cluster", ENGINE, 0, 0, word, help }

static const pot_option table[] = {
    TEXT("prompt", "p", prompt, NULL, "TEXT", "Generation", POT_CMD_RUN,
         "The text to continue; without it standard input is read."),
    SWITCH("chat", chat, "Generation", POT_CMD_RUN, "Apply the model's chat template to the prompt."),
    TEXT("system", NULL, system, NULL, "TEXT", "Generation", GENERATE,
         "The system message that opens the conversation."),
    TEXT("tools", NULL, tools, NULL, "FILE", "Generation", GENERATE,
         "A JSON list of tools, as an OpenAI client sends it, that the model may call."),
    SWITCH("think", think, "Generation", GENERATE, "Let the model reason before it answers."),
    INTEGER("n-predict", "n", n_predict, "256", "TOKENS", "Generation", GENERATE, 0, COUNT, "unlimited",
            "Stop after so many tokens; `unlimited` goes on until the model ends or the context is full."),
    SWITCH("ignore-eos", ignore_eos, "Generation", GENERATE, "Go on after the model has ended its text."),
    NUMBER("temp", temperature, "model", "Generation", GENERATE, 0, 100, "model",
           "Temperature; 0 takes the likeliest token every time, `model` is the model's own value."),
    NUMBER("top-p", top_p, "model", "Generation", GENERATE, 0, 1, "model",
           "Keep the likeliest tokens that together have this probability."),
    NUMBER("min-p", min_p, "model", "Generation", GENERATE, 0, 1, "model",
           "Drop tokens less likely than this share of the likeliest one."),
    INTEGER("top-k", NULL, top_k, "model", "TOKENS", "Generation", GENERATE, 0, 2147483647.0, "model",
            "Keep only so many of the likeliest tokens; 0 keeps all."),
    INTEGER("seed", NULL, seed, "random", "NUMBER", "Generation", GENERATE, 0, COUNT, "random",
            "Seed of the random numbers; the same seed gives the same text on every machine."),
    CHOICE("chat-template", chat_template, "auto", "auto|glm-5.2|glm-5.3", "NAME", "Generation",
           GENERATE | POT_CMD_TOOLS, "The chat template to use; `auto` goes by the model's own file."),

    SWITCH("reference", reference, "Model", MODEL,
           "Compute everything in f32, without quantization: slow, and what the rest is measured against."),
    TEXT("experts", NULL, experts_format, "auto", "FORMAT", "Model", FORMATS & ~POT_CMD_SLICE,
         "Weight format of the experts, such as mxfp4 or q4g64; `auto` keeps what the files hold where that is "
         "possible."),
    TEXT("format", NULL, slice_format, "mxfp4", "FORMAT", "Model", POT_CMD_SLICE,
         "Weight format of the slice's experts."),
    TEXT("dense", NULL, dense_format, "auto", "FORMAT", "Model", FORMATS,
         "Weight format of the attention projections; `auto` is q4g64."),
    TEXT("head", NULL, head_format, "auto", "FORMAT", "Model", FORMATS,
         "Weight format of the output head, the embeddings and the other dense weights; `auto` is q8g32."),
    TEXT("mtp", NULL, mtp_format, "auto", "FORMAT", "Model", FORMATS,
         "Weight format of the MTP layer's experts and eh_proj; `auto` never goes below 8 bits."),
    CHOICE(
        "rounding", rounding, "auto", "auto|search|ocp", "RULE", "Model", FORMATS,
        "How scales are chosen: by the largest value (`auto`), by the least squared error (`search`), or by the plain "
        "OCP rule of MXFP4 (`ocp`)."),
    INTEGER("ctx", NULL, ctx, "8192", "TOKENS", "Model", MODEL | POT_CMD_PLAN, 1, 16777216, NULL,
            "Room for so many tokens of prompt and answer; never more than the model allows."),
    CHOICE("kv", kv, "bf16", "bf16|f32", "FORMAT", "Model", MODEL | POT_CMD_PLAN,
           "Number format of the attention cache; --reference uses f32."),
    INTEGER("prefill-tile", NULL, prefill_tile, "64", "TOKENS", "Model", ENGINE, 1, 65536, NULL,
            "Rows of the prompt that are computed together; it changes the speed, never the result."),

    TEXT("kernels", NULL, kernels, "auto", "NAME", "Machine", ALL,
         "The instruction set to compute with: generic, avx2, avxvnni, avx512, amx or neon; `auto` takes the best that "
         "this machine has."),
    INTEGER("threads", NULL, threads, "0", "THREADS", "Machine",
            ENGINE | BENCH | POT_CMD_STORE | POT_CMD_CONVERT | POT_CMD_SLICE | POT_CMD_MACHINE, 0, 4096, NULL,
            "Compute threads of each process; 0 shares the machine's cores among its processes."),
    SWITCH(
        "keep-binding", keep_binding, "Machine", ENGINE,
        "Stay on the cores that the launcher bound this process to; without it all that the machine allows are used."),

    BYTES("ram", ram, "auto", "Expert store", STORE | POT_CMD_PLAN, "auto",
          "RAM for the experts of each process, a ceiling; `auto` takes what the machine or the cgroup leaves. What "
          "does not "
          "fit is read from disk when it is needed."),
    BYTES("vram", vram, "auto", "Expert store", ENGINE | POT_CMD_PLAN, "auto",
          "Memory of the GPU for experts, a ceiling; `auto` takes what is free, 0 leaves the GPU alone."),
    TEXT("disk-cache", NULL, disk_cache, NULL, "PATH", "Expert store", ENGINE,
         "Keep packed copies of this process's experts in this directory, and read from there: for models that are not "
         "converted, or lie on a slow disk."),
    CHOICE("cache", cache, "lfu-decay", "lfu-decay|lfu|lru|lfru|slru|gdsf", "POLICY", "Expert store", STORE,
           "Which experts stay in memory; it changes the speed, never the result."),
    CHOICE("read-path", read_path, "auto", "auto|direct|cached", "WAY", "Expert store", STORE | POT_CMD_MACHINE,
           "Read experts past the page cache or through it; `auto` measures both for a moment."),
    CHOICE("read-engine", read_engine, "auto", "auto|uring|pool", "WAY", "Expert store", STORE | POT_CMD_MACHINE,
           "Read with io_uring or with a pool of threads; `auto` is io_uring where the system permits it."),
    INTEGER("read-depth", NULL, read_depth, "0", "READS", "Expert store", STORE, 0, 256, NULL,
            "Reads in flight at a time; 0 chooses."),
    SWITCH("prefetch", prefetch, "Expert store", STORE,
           "Read what the next layer's router expects ahead of time; it pays when the disk has time to spare."),
    TEXT("usage", NULL, usage, "auto", "FILE", "Expert store", STORE | POT_CMD_PLAN,
         "Remember in this file which experts were used; `auto` keeps it below ~/.cache/potluck, `off` forgets."),

    TEXT("layers", NULL, layers, NULL, "LAYERS", "Conversion", POT_CMD_CONVERT | POT_CMD_SLICE,
         "Convert only these layers, as in `3-7`; for a slice, how many layers it has."),
    SWITCH("delete-source", delete_source, "Conversion", POT_CMD_CONVERT,
           "Remove each source file once everything that came from it is written and verified."),

    TEXT("cluster", NULL, cluster, NULL, "FILE", "Cluster", POT_CMD_PLAN,
         "The machines to plan for, as `potluck bench machine` describes them."),
    CHOICE("map", map, "contiguous", "contiguous|round-robin|sliced|random:", "POLICY", "Cluster",
           ENGINE | POT_CMD_PLAN, "Which worker holds which expert; random takes a seed, as in random:7."),
    TEXT("model", NULL, model, NULL, "PATH", "Cluster", ENGINE,
         "Where this worker finds the model, if not at the path that the coordinator names."),
    TIME("spin", spin_us, "auto", "auto",
         "Poll so long before sleeping; `auto` polls only while every process has a core of its own."),
    TIME("heartbeat", heartbeat_us, "250ms", NULL, "Tell the other side so often that this process lives."),
    TIME("dead-after", dead_us, "3s", NULL, "Take a process for dead after so long without a sign of life."),
    TIME("timeout", timeout_us, "60s", NULL, "Give up on any single reply or on start-up after so long."),

    TEXT("log", NULL, log, "info", "LEVELS", "Output", ALL,
         "error, warn, info, debug or trace, then levels of parts, as in `warn,proto.ucx=debug`."),
    TEXT("config", NULL, config, NULL, "FILE", "Output", ALL, "Read this file of options in place of ./potluck.conf."),
    SWITCH("quiet", quiet, "Output", ALL, "Print no progress and no summary."),
    SWITCH("json", json, "Output", ALL, "Print summaries and reports as JSON."),

    TEXT("input", NULL, input, NULL, "FILE", "Evaluation", EVAL, "Safetensors file with the `input_ids` to trace."),
    TEXT("out", "o", out, NULL, "FILE", "Evaluation", EVAL | POT_CMD_MACHINE,
         "File to write the trace (safetensors) or the machine (INI) to."),
    CHOICE("against", against, NULL, "reference", "WHAT", "Evaluation", EVAL,
           "Also compare with --reference: KL divergence and how often the likeliest token agrees."),
    INTEGER("greedy", NULL, greedy, "0", "TOKENS", "Evaluation", EVAL, 0, 1048576, NULL,
            "Continue the traced input by so many greedy tokens."),
    INTEGER("batch", NULL, batch, "1", "SEQUENCES", "Evaluation", EVAL, 1, 1024, NULL,
            "Compute the input together with its rotations, so many sequences in all."),
    INTEGER("tokens", NULL, tokens, "0", "TOKENS", "Evaluation", EVAL | POT_CMD_LAYERS | POT_CMD_STORE, 0, COUNT, NULL,
            "Evaluate only so many tokens of the text, 0 takes all of them; measure so many, 0 takes 48."),
    INTEGER("window", NULL, window, "512", "TOKENS", "Evaluation", EVAL, 2, 16777216, NULL,
            "Cut the text into windows of so many tokens that do not overlap."),
    SWITCH("decode", decode, "Evaluation", POT_CMD_TOOLS, "Turn token ids into text instead of text into token ids."),
    SWITCH("jsonl", jsonl, "Evaluation", POT_CMD_TOOLS, "Read one JSON value a line and write one a line."),

    SWITCH("quick", quick, "Measurement", BENCH | POT_CMD_MACHINE | POT_CMD_STORE,
           "Measure less and more roughly, within 50 seconds."),
    TEXT("formats", NULL, formats, NULL, "FORMATS", "Measurement", BENCH,
         "Measure only these weight formats, as in `q4g64,mxfp4`."),
    TEXT("rows", NULL, rows, NULL, "NUMBERS", "Measurement", BENCH,
         "Measure only so many tokens at a time, as in `1,16,64`."),
};

const pot_option *pot_settings_table(size_t *n) {
    *n = sizeof table / sizeof table[0];
    return table;
}
