/* Inside model/convert*.c: what a conversion knows while it runs.
 *
 *   convert.c          the destination, and the files one after the other
 *   convert_journal.c  convert.json
 *   convert_source.c   the source: which it is, opening it again when parts are gone, removing its shards
 *   convert_report.c   what packing did to the numbers
 *   convert_verify.c   `potluck verify`
 */
#ifndef POT_MODEL_CONVERT_INTERNAL_H
#define POT_MODEL_CONVERT_INTERNAL_H

#include "common/json.h"
#include "common/progress.h"
#include "model/container_layout.h"
#include "model/convert.h"

typedef struct pot_convert_file {
    pot_container_file file;
    bool finished, verified; /* verified: read again and compared, since it was written */
    bool wanted;             /* to be written in this run */
    pot_convert_row *rows;
    uint32_t n_rows;
} pot_convert_file;

typedef struct pot_convert_shard {
    const char *name; /* owned */
    uint64_t bytes;
    pot_hash hash; /* of its tensors, as pot_shards_hash */
    bool deleted;
} pot_convert_shard;

typedef struct pot_convert {
    const pot_convert_options *options;
    char *source_name; /* last part of the path, or the whole "random:..." */
    char *journal_path;
    json_t *journal;      /* as it was found; NULL in a new conversion */
    pot_hash shape;       /* of config and formats alone */
    pot_hash fingerprint; /* of the source, with these formats */
    pot_model *model;
    pot_convert_file *files; /* [n_files], in the order of pot_container_files */
    uint32_t n_files;
    pot_convert_shard *shards; /* with --delete-source, or when the journal has them */
    uint32_t n_shards;
    uint32_t *owners; /* [tensors of the source] the file that a tensor goes into; NOBODY: it is ignored */
    int lock;         /* descriptor, -1 = not held */
    bool made_directory;
    pot_progress progress;
    uint64_t done_bytes;
    pot_convert_report report;
} pot_convert_job;

#define POT_CONVERT_NOBODY UINT32_MAX

/* Names, without sizes. */
pot_status pot_convert_list_files(pot_convert_job *job, uint32_t n_layers, pot_err *err);

/* ---- convert_journal.c ---- */

/* Reads it if it is there, refuses another source's or one of other options; sets fingerprint and shards. */
pot_status pot_journal_read(pot_convert_job *job, pot_err *err);
/* Which files it says are finished, into job->files. */
pot_status pot_journal_take_files(pot_convert_job *job, pot_err *err);
pot_status pot_journal_write(const pot_convert_job *job, pot_err *err);
pot_status pot_journal_parse(json_t **out, const char *path, pot_err *err);
/* One entry of its list of files; `known` are the names that there can be. */
pot_status pot_journal_file(pot_convert_file *known, uint32_t n, const json_t *entry, const char *path, pot_err *err);

/* ---- convert_source.c ---- */

pot_status pot_source_name(char **out, const char *source, pot_err *err);
/* Opens the model and lists the files; a source of which shards were removed before, by the journal. */
pot_status pot_source_open(pot_convert_job *job, pot_err *err);
/* For --delete-source: what shards there are and which files their tensors go into; refuses a source that must not be touched. */
pot_status pot_source_prepare_deletion(pot_convert_job *job, pot_err *err);
/* Removes the shards that are not needed any more. */
pot_status pot_source_delete(pot_convert_job *job, pot_err *err);

/* ---- convert_report.c ---- */

/* Rows of a file that has just been written to `path`. */
pot_status pot_convert_measure(pot_convert_job *job, pot_convert_file *file, const char *path, pot_err *err);
pot_status pot_convert_sum_up(pot_convert_job *job, pot_err *err);

#endif
