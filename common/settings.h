/* Every option of potluck, with its value.  The table itself is settings.c; no other file reads the environment. */
#ifndef POT_COMMON_SETTINGS_H
#define POT_COMMON_SETTINGS_H

#include "common/options.h"

/* Which commands take a flag. */
enum {
    POT_CMD_RUN = 1,
    POT_CMD_CHAT = 2,
    POT_CMD_WORKER = 4,
    POT_CMD_EVAL = 8,
    POT_CMD_TOOLS = 16 /* tokenize, template, inspect, config */,
    POT_CMD_BENCH = 32,  /* bench kernels */
    POT_CMD_LAYERS = 64, /* bench layers */
    POT_CMD_STORE = 128, /* bench store */
    POT_CMD_CONVERT = 256,
    POT_CMD_SLICE = 512, /* bench slice */
    POT_CMD_PLAN = 1024,
    POT_CMD_MACHINE = 2048, /* doctor, bench machine */
    POT_CMD_STATUS = 4096,  /* status, verify */
    POT_CMD_ENGINE = POT_CMD_RUN | POT_CMD_CHAT | POT_CMD_WORKER | POT_CMD_EVAL | POT_CMD_LAYERS,
    POT_CMD_ALL = 8191
};

typedef struct pot_settings {
    /* Generation */
    const char *prompt; /* -p */
    bool chat;          /* --chat: apply the template to the prompt */
    const char *system; /* --system TEXT */
    const char *tools;  /* --tools FILE: JSON list of OpenAI tools */
    bool think;         /* --think: the model reasons first (GLM-5.2: enable_thinking) */
    int64_t n_predict;  /* -n */
    bool ignore_eos;
    double temperature, top_p,
        min_p; /* --temp, --top-p, --min-p; NaN = the model's own (generation_config), else 0 = greedy */
    int64_t top_k, seed;
    const char *chat_template; /* glm-5.2 | glm-5.3 | auto */
    /* Model */
    bool reference;
    const char *experts_format, *dense_format, *head_format; /* "auto" or a format's name */
    int64_t ctx;                                             /* tokens */
    const char *kv;                                          /* bf16 | f32; reference implies f32 */
    int64_t prefill_tile;
    /* Machine */
    const char *kernels; /* "auto" or a table's name (kernels/kernels.h) */
    int64_t threads;     /* 0 = choose */
    bool keep_binding;   /* stay on the cores that the launcher chose */
    /* Expert store */
    uint64_t ram, vram;      /* bytes for experts; UINT64_MAX = auto */
    const char *disk_cache;  /* directory for packed chunks; NULL = none */
    const char *cache;       /* policy's name (placement/cache.h) */
    const char *read_path;   /* auto | direct | cached */
    const char *read_engine; /* auto | uring | pool */
    int64_t read_depth;      /* reads in flight; 0 = choose */
    bool prefetch;
    const char *usage; /* file, "auto" or "off" */
    /* Conversion */
    const char *mtp_format; /* "auto" or a format's name */
    const char *layers;     /* "A-B", "A" or NULL = all */
    const char *rounding;   /* auto | search | ocp */
    bool delete_source;
    const char *slice_format; /* bench slice: of the experts */
    /* Cluster */
    const char *cluster; /* --cluster FILE */
    const char *map;     /* contiguous | round-robin | sliced | random:SEED */
    const char *model;   /* --model: worker's own path */
    uint64_t spin_us;    /* --spin; UINT64_MAX = auto */
    uint64_t heartbeat_us, dead_us, timeout_us;
    /* Output */
    const char *log, *config;
    bool quiet, json;
    /* eval, tokenize */
    const char *input, *out, *against;
    int64_t greedy, batch, tokens, window;
    bool decode, jsonl;
    /* bench */
    bool quick;
    const char *formats, *rows; /* lists with commas; NULL = the command's own */
} pot_settings;

const pot_option *pot_settings_table(size_t *n);

#endif
