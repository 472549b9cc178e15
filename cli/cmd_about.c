/* potluck version, config show, config options: what this program is and how it is set. */
#include <jansson.h>
#include <mpi.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "cli/cli.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"

pot_status pot_cmd_config_show(const pot_cli *cli, pot_err *err) {
    pot_buffer text = {0};
    pot_options_show(&text, cli->options, cli->settings->json);
    pot_status status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

pot_status pot_cmd_config_options(const pot_cli *cli, pot_err *err) {
    pot_buffer text = {0};
    pot_options_markdown(&text, cli->options);
    pot_status status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- version ------------------------------------------------------------------------------------------------------ */

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER ", AddressSanitizer"
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER ", ThreadSanitizer"
#else
#define SANITIZER ""
#endif

pot_status pot_cmd_version(const pot_cli *cli, pot_err *err) {
    enum { MAX_TABLES = 16 };
    const pot_kernels *usable[MAX_TABLES], *chosen;
    int n_usable = pot_kernels_list(usable, MAX_TABLES);
    pot_status status = pot_kernels_pick(&chosen, cli->settings->kernels, err);
    if (status) return status;
    pot_buffer text = {0};
    pot_buffer_text(&text, "potluck   " POT_VERSION "\ncompiler  " COMPILER SANITIZER "\nkernels   built");
#define X(name) pot_buffer_text(&text, " " #name);
    POT_KERNEL_TABLES(X)
#undef X
    pot_buffer_text(&text, "; usable here");
    for (int i = 0; i < n_usable; i++) pot_buffer_format(&text, " %s", usable[i]->name);
    pot_buffer_format(&text, "; chosen %s\n", chosen->name);
#ifdef POT_HAVE_CUDA
    pot_buffer_format(&text, "CUDA      built in, devices here: %d\n", pot_cuda_count());
#else
    pot_buffer_text(&text, "CUDA      not built in\n");
#endif
    pot_buffer_format(&text, "UCX       %s\n", ucp_get_version_string());
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(mpi, &length); /* allowed before MPI_Init */
    mpi[strcspn(mpi, ",\n")] = 0;
    pot_buffer_format(&text, "MPI       %s\njansson   %s\n", mpi, jansson_version_str());
    status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}
