/* `potluck convert`: a checkpoint becomes a container (container.h), file by file, and can be interrupted at any moment.
 *
 * DST/convert.json is the journal: what is converted, how, and which files are finished; DST/convert.lock keeps a second convert out.  A file is
 * written under a temporary name, synced, renamed, then entered into the journal, so what the journal names is whole.  potluck.json is written last,
 * then both go away: a directory is a finished container when it has the one and not the other, and is never written to again.
 */
#ifndef POT_MODEL_CONVERT_H
#define POT_MODEL_CONVERT_H

#include "model/container.h"

#define POT_CONVERT_JOURNAL "convert.json"
#define POT_CONVERT_LOCK "convert.lock"

typedef struct pot_convert_options {
    const char *source, *destination; /* directory or "random:..."; directory, made if need be */
    pot_format_policy policy;
    int threads;
    uint32_t layer_begin, layer_end; /* write the experts of these layers only; end 0 = of all */
    bool delete_source;              /* remove each shard once all that came from it is written and verified */
    bool unmeasured;                 /* do not decode samples of what was written */
    bool quiet;
} pot_convert_options;

/* Tensors of one role, stored alike and packed alike: of a file, or summed up. */
typedef struct pot_convert_row {
    pot_census_row census;
    uint32_t layer;       /* or POT_CONTAINER_MODEL */
    uint64_t sampled;     /* weights that were decoded from source and file, */
    pot_pack_error sums;  /* and how they differ */
    uint64_t unpacked;    /* quantized tensors whose groups no format has: kept exactly, as f32 */
    uint64_t requantized; /* quantized tensors that were packed to another format */
} pot_convert_row;

enum { POT_CONVERT_WORST = 5 };

typedef struct pot_convert_report {
    bool finished;
    uint32_t files, files_done, files_written; /* in all, finished, in this run */
    uint32_t shards_deleted;                   /* in this run */
    uint64_t bytes_written, bytes_read;        /* in this run; read: of the source as it is stored */
    double seconds, write_seconds, measure_seconds, verify_seconds;
    uint64_t peak_bytes;                      /* resident */
    pot_convert_row *rows;                    /* summed up over all finished files */
    pot_convert_row worst[POT_CONVERT_WORST]; /* roles of one layer that changed most, the worst first */
    uint32_t n_rows, n_worst;
    char missing[256]; /* which layers' experts are still to be converted: "0-2, 7" */
} pot_convert_report;

/* What has been finished before is not done again.  USAGE: the options, the source or the destination are not those of the journal, or cannot be
 * meant; LIMIT: the disk is too small; CANCELLED: stopped by a signal, the same call goes on.  The report is to be freed after success only. */
pot_status pot_convert(pot_convert_report *out, const pot_convert_options *options, pot_err *err);
void pot_convert_report_free(pot_convert_report *report);

typedef struct pot_verify_result {
    uint32_t files, damaged_files, missing_files;
    uint64_t bytes;
    bool finished; /* has a potluck.json; else what the journal lists was checked */
} pot_verify_result;
/* Reads everything that potluck.json (or else the journal) lists and compares all checksums.  Each fault is told as it is found: file, tensor or NULL,
 * chunk or -1, and a sentence where there is no tensor.  OK also when faults were found. */
typedef void pot_verify_fault(void *context, const char *file, const char *tensor, int64_t chunk, const char *text);
pot_status pot_verify(pot_verify_result *out, const char *directory, int threads, bool quiet, pot_verify_fault *fault,
                      void *context, pot_err *err);

#endif
