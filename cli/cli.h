/* What the commands of the one program share: their arguments, checked standard output, and line input.
 *
 * A command is a function and a row of the table in main.c.  It prints results on standard output only through pot_out, everything
 * else on standard error, and returns a status; main.c words the error once.  One thread.
 */
#ifndef POT_CLI_CLI_H
#define POT_CLI_CLI_H

#include "common/buffer.h"
#include "common/settings.h"
#include "common/status.h"
#include "model/chat.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "proto/bootstrap.h"

enum { POT_CLI_MAX_ARGUMENTS = 8 };

/* Standard output, unbuffered.  A reader that has gone away (`| head`) is no fault: `closed` is set, later writes do nothing, and
 * whoever generates stops. */
typedef struct pot_out {
    bool closed;
} pot_out;
pot_status pot_out_write(pot_out *out, const void *data, size_t bytes, pot_err *err);
/* Writes and empties a buffer; NO_MEMORY when the buffer could not grow. */
pot_status pot_out_buffer(pot_out *out, pot_buffer *buffer, pot_err *err);

typedef struct pot_cli {
    const pot_settings *settings;
    const pot_options *options;
    const char *arguments[POT_CLI_MAX_ARGUMENTS]; /* after the command's name */
    int n_arguments;
    pot_launch launch;
    pot_out *out;
} pot_cli;

/* Lines of a file descriptor, without a limit on how many but with one on the length of each. */
typedef struct pot_lines {
    int fd;
    bool at_end;
    pot_buffer pending; /* read and not yet given out begins at `begin` */
    size_t begin, scanned;
    pot_status (*tend)(void *context, pot_err *err); /* called now and then while waiting; may be NULL */
    void *context;
} pot_lines;
enum { POT_LINES_MAX_BYTES = 64 * 1024 * 1024 };
/* *line (borrowed until the next call, NUL-terminated, without its newline) or NULL at the end.  CANCELLED when a stop signal
 * came while waiting. */
pot_status pot_lines_next(pot_lines *lines, const char **line, size_t *bytes, pot_err *err);
/* Everything up to the end, appended to `all`. */
pot_status pot_lines_rest(pot_lines *lines, pot_buffer *all, pot_err *err);
void pot_lines_close(pot_lines *lines); /* the descriptor stays open */

/* The chat template that --chat-template names, or the model's own. */
pot_status pot_template_choose(pot_chat_template *out, const pot_cli *cli, pot_err *err);

pot_status pot_cmd_run(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_chat(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_worker(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_eval_ppl(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_eval_trace(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_tokenize(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_template(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_bench_kernels(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_bench_layers(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_bench_store(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_plan(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_status(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_doctor(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_bench_machine(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_inspect(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_convert(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_verify(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_bench_slice(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_config_show(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_config_options(const pot_cli *cli, pot_err *err);
pot_status pot_cmd_version(const pot_cli *cli, pot_err *err);

#endif
