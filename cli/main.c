/* potluck COMMAND [arguments] [options]: finds the command, reads its options (files, environment, flags), runs it, words its error
 * once.  Under mpirun the same line runs on every rank; commands that need no cluster do their work on rank 0 and let the
 * other ranks end at once, so that any command may stand behind mpirun. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"

typedef struct pot_command {
    const char *name; /* one or two words */
    unsigned bit;     /* whose flags it takes */
    pot_status (*function)(const pot_cli *cli, pot_err *err);
    const char *arguments; /* "MODEL TEXT [MORE]": one word an argument, needed unless it is in brackets */
    bool every_rank;       /* works on all ranks of a launch, not on rank 0 alone */
    const char *help;      /* one line */
} pot_command;

static const pot_command commands[] = {
    {"run", POT_CMD_RUN, pot_cmd_run, "MODEL", true, "continue a text, or answer a prompt with --chat"},
    {"chat", POT_CMD_CHAT, pot_cmd_chat, "MODEL", true, "talk with the model, turn by turn"},
    {"worker", POT_CMD_WORKER, pot_cmd_worker, "", true,
     "hold experts for the coordinator (ranks above 0 of an mpirun)"},
    {"eval ppl", POT_CMD_EVAL, pot_cmd_eval_ppl, "MODEL TEXT", true,
     "perplexity of a text, and the distance to --against reference"},
    {"eval trace", POT_CMD_EVAL, pot_cmd_eval_trace, "MODEL", true,
     "every number the model computes for --input, into --out"},
    {"tokenize", POT_CMD_TOOLS, pot_cmd_tokenize, "MODEL", false, "text to token ids, or back with --decode"},
    {"template", POT_CMD_TOOLS, pot_cmd_template, "MODEL", false, "messages to the prompt that the model sees"},
    {"inspect", POT_CMD_TOOLS, pot_cmd_inspect, "MODEL", false,
     "what a model directory holds, and the memory it needs"},
    {"plan", POT_CMD_PLAN, pot_cmd_plan, "MODEL", false,
     "what would lie where, and how fast that would be, before anything is loaded"},
    {"status", POT_CMD_STATUS, pot_cmd_status, "", false, "what the potluck processes on this machine are doing"},
    {"doctor", POT_CMD_MACHINE, pot_cmd_doctor, "[MODEL]", false,
     "whether this machine is set up well, and what to do where it is not"},
    {"convert", POT_CMD_CONVERT, pot_cmd_convert, "SRC DST", false,
     "pack a checkpoint once, so that it need not fit into memory"},
    {"verify", POT_CMD_STATUS, pot_cmd_verify, "DIR", false, "compare every checksum of a converted model"},
    {"bench slice", POT_CMD_SLICE, pot_cmd_bench_slice, "DIR", false,
     "write a converted model with GLM-5.2's dimensions, few layers and random weights"},
    {"bench kernels", POT_CMD_BENCH, pot_cmd_bench_kernels, "", false,
     "how fast this machine multiplies, against what its memory and cores can do"},
    {"bench machine", POT_CMD_MACHINE, pot_cmd_bench_machine, "[PATH]", true,
     "how fast memory, disk, GPU and links are, for a cluster file"},
    {"bench layers", POT_CMD_LAYERS, pot_cmd_bench_layers, "MODEL", true,
     "how fast a token passes the layers of a model, such as random:glm-5.2"},
    {"bench store", POT_CMD_STORE, pot_cmd_bench_store, "MODEL", false,
     "how fast experts come from memory and disk, by budget, policy and way of reading"},
    {"config show", POT_CMD_ALL, pot_cmd_config_show, "", false, "every option, its value and where it came from"},
    {"config options", POT_CMD_TOOLS, pot_cmd_config_options, "", false, "every option as Markdown (docs/options.md)"},
    {"version", POT_CMD_TOOLS, pot_cmd_version, "", false, "version, kernels, transports and compiler"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* ---- finding the command ------------------------------------------------------------------------------------------ */

static pot_status find_command(const pot_command **out, int *words, int argc, char **argv, pot_err *err) {
    const char *nearest = NULL;
    size_t nearest_distance = 3; /* further than two edits is no guess */
    char typed[128], nearest_typed[128] = "";
    for (int i = 0; i < N_COMMANDS; i++) {
        const char *name = commands[i].name;
        bool two = strchr(name, ' ') != NULL;
        snprintf(typed, sizeof typed, "%s%s%s", argv[1], two && argc > 2 ? " " : "", two && argc > 2 ? argv[2] : "");
        if (!strcmp(name, typed)) {
            *out = &commands[i];
            *words = two ? 2 : 1;
            return POT_OK;
        }
        size_t d = pot_edit_distance(typed, name);
        if (d < nearest_distance) {
            nearest_distance = d;
            nearest = name;
            memcpy(nearest_typed, typed, sizeof typed);
        }
    }
    pot_buffer list = {0}; /* `eval` alone: say what can follow */
    size_t length = strlen(argv[1]);
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!strncmp(commands[i].name, argv[1], length) && commands[i].name[length] == ' ') {
            pot_buffer_format(&list, "%s`potluck %s`", list.bytes ? " or " : "", commands[i].name);
        }
    }
    if (nearest) {
        pot_fail(err, POT_USAGE, "unknown command `%s`; did you mean `%s`?", nearest_typed, nearest);
    } else if (list.bytes && !list.failed) {
        pot_fail(err, POT_USAGE, "`%s` needs a second word: %s", argv[1], list.data);
    } else {
        pot_fail(err, POT_USAGE, "unknown command `%s`; `potluck help` lists the commands", argv[1]);
    }
    pot_buffer_free(&list);
    return POT_USAGE;
}

/* ---- help --------------------------------------------------------------------------------------------------------- */

static void overview(pot_buffer *out) {
    pot_buffer_text(
        out,
        "potluck " POT_VERSION ": GLM-5 mixture-of-experts models on the machines that you have\n\n"
        "usage: potluck COMMAND [arguments] [options]\n"
        "       mpirun -n 4 potluck COMMAND ...    rank 0 coordinates, every rank holds a share of the experts\n\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        char synopsis[64];
        snprintf(synopsis, sizeof synopsis, "%s %s", commands[i].name, commands[i].arguments);
        pot_buffer_format(out, "  %-22s %s\n", synopsis, commands[i].help);
    }
    pot_buffer_text(
        out, "\n`potluck COMMAND --help` lists the options of one command, `potluck config show` their values.\n");
}

static void command_help(pot_buffer *out, const pot_command *command, const pot_options *options) {
    pot_buffer_format(out, "usage: potluck %s%s%s [options]\n\n%s\n", command->name, *command->arguments ? " " : "",
                      command->arguments, command->help);
    pot_options_help(out, options, command->bit);
}

/* --help and --version count only before a "--"; what follows it is not an option. */
static bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strcmp(argv[i], flag)) return true;
    }
    return false;
}

/* ---- options ------------------------------------------------------------------------------------------------------ */

static pot_status check_arguments(const pot_command *command, const pot_cli *cli, pot_err *err) {
    int expected = *command->arguments != 0, optional = 0;
    for (const char *c = command->arguments; *c; c++) {
        expected += *c == ' ';
        optional += *c == '[';
    }
    if (cli->n_arguments >= expected - optional && cli->n_arguments <= expected) return POT_OK;
    if (cli->n_arguments > expected) {
        return pot_fail(err, POT_USAGE, "%s: unexpected argument `%s` (usage: potluck %s %s [options])", command->name,
                        cli->arguments[expected], command->name, command->arguments);
    }
    const char *missing = command->arguments;
    for (int i = 0; i < cli->n_arguments; i++) missing = strchr(missing, ' ') + 1;
    return pot_fail(err, POT_USAGE, "%s: %.*s is missing (usage: potluck %s %s [options])", command->name,
                    (int)strcspn(missing, " "), missing, command->name, command->arguments);
}

static pot_status read_file_if_there(pot_options *options, const char *path, pot_err *err) {
    return pot_file_exists(path) ? pot_options_file(options, path, err) : POT_OK;
}

/* Files, environment, flags, in this order; --config FILE stands for ./potluck.conf. */
static pot_status read_sources(pot_options *options, const char *config, pot_err *err) {
    pot_status status = read_file_if_there(options, "/etc/potluck/potluck.conf", err);
    const char *home = getenv("HOME");
    if (!status && home && *home) {
        char *path = pot_path_join(home, ".config/potluck/potluck.conf");
        status = path ? read_file_if_there(options, path, err)
                      : pot_fail(err, POT_NO_MEMORY, "not enough memory for options");
        pot_free(path);
    }
    if (status) return status;
    return config ? pot_options_file(options, config, err) : read_file_if_there(options, "potluck.conf", err);
}

static pot_status read_flags(pot_options *options, const pot_command *command, int argc, char **argv, pot_cli *cli,
                             pot_err *err) {
    pot_status status = pot_options_environment(options, (const char *const *)environ, err);
    if (status) return status;
    status = pot_options_arguments(options, argc, argv, command->bit, cli->arguments, POT_CLI_MAX_ARGUMENTS,
                                   &cli->n_arguments, err);
    return status ? pot_at(err, "%s", command->name) : POT_OK;
}

/* ---- main --------------------------------------------------------------------------------------------------------- */

static pot_status run_command(const pot_command *command, int argc, char **argv, pot_cli *cli, pot_err *err) {
    size_t n;
    const pot_option *table = pot_settings_table(&n);
    pot_settings settings = {0}, first = {0};
    pot_options *options = NULL, *first_options = NULL;
    /* --config may itself be a flag or a variable, so these are read twice: once to find the file, then on top of it. */
    pot_status status = pot_options_create(&first_options, table, n, &first, err);
    if (!status) status = read_flags(first_options, command, argc, argv, cli, err);
    if (!status) status = pot_options_create(&options, table, n, &settings, err);
    if (!status) status = read_sources(options, first.config, err);
    if (!status) status = read_flags(options, command, argc, argv, cli, err);
    if (!status) {
        bool unsaid = pot_options_origin(options, "log", NULL) == POT_ORIGIN_DEFAULT;
        status = pot_log_configure(settings.quiet && unsaid ? "warn" : settings.log, err);
    }
    if (!status) status = check_arguments(command, cli, err);
    if (!status && (command->every_rank || cli->launch.rank == 0)) {
        pot_cli call = *cli; /* settings and options live no longer than this call */
        call.settings = &settings;
        call.options = options;
        status = command->function(&call, err);
    }
    pot_options_free(first_options);
    pot_options_free(options);
    return status;
}

static pot_status print_help(const pot_command *command, pot_cli *cli, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = POT_OK;
    if (command) {
        size_t n;
        const pot_option *table = pot_settings_table(&n);
        pot_settings settings = {0};
        pot_options *options = NULL;
        status = pot_options_create(&options, table, n, &settings, err);
        if (!status) command_help(&text, command, options);
        pot_options_free(options);
    } else {
        overview(&text);
    }
    if (!status && cli->launch.rank == 0) status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

static pot_status dispatch(int argc, char **argv, pot_cli *cli, pot_err *err) {
    if (argc < 2) return pot_fail(err, POT_USAGE, "no command given; `potluck help` lists the commands");
    bool help = false;
    if (!strcmp(argv[1], "--version")) {
        const char text[] = "potluck " POT_VERSION "\n";
        return cli->launch.rank == 0 ? pot_out_write(cli->out, text, sizeof text - 1, err) : POT_OK;
    }
    if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        if (argc == 2) return print_help(NULL, cli, err);
        help = true; /* `help run` is `run --help` */
        argv++;
        argc--;
    }
    const pot_command *command;
    int words;
    pot_status status = find_command(&command, &words, argc, argv, err);
    if (status) return status;
    if (help || has_flag(argc, argv, "--help") || has_flag(argc, argv, "-h")) return print_help(command, cli, err);
    return run_command(command, argc - words, argv + words, cli, err);
}

/* A descriptor that the caller closed would be given to the next file or socket, and text would end up there.  Standard input
 * and output become /dev/null opened for reading: the one is empty, writing to the other fails as it should. */
static void keep_standard_descriptors(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv) {
    keep_standard_descriptors();
    pot_err err = {0};
    pot_out out = {0};
    pot_cli cli = {.out = &out};
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow: write() says so */
    signal(SIGPIPE, SIG_IGN); /* write() reports a closed pipe, and an orderly end follows */
    pot_stop_install();
    pot_launch_detect(&cli.launch);
    if (cli.launch.size > 1) pot_log_rank(cli.launch.rank);

    pot_status status = dispatch(argc, argv, &cli, &err);
    if (status && cli.launch.size > 1) {
        fprintf(stderr, "potluck: rank %d: %s\n", cli.launch.rank, err.text);
    } else if (status) {
        fprintf(stderr, "potluck: %s\n", err.text);
    }
    return pot_status_exit_code(status);
}
