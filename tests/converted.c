/* Files one after the other, then potluck.json and config.json. */
#include "tests/converted.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/mem.h"
#include "model/container.h"

enum { MOST_FILES = 64, THREADS = 2 };

static pot_status write_files(pot_container_file *files, uint32_t n, const char *directory, const pot_model *model,
                              pot_err *err) {
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < n && s == POT_OK; i++) {
        char *path = pot_path_join(directory, files[i].name);
        s = pot_container_write(&files[i], path, model, THREADS, NULL, NULL, err);
        pot_free(path);
    }
    return s;
}

static pot_status write_text(const char *directory, const char *name, const pot_buffer *text, pot_err *err) {
    char *path = pot_path_join(directory, name);
    pot_status s = pot_file_write(path, text->data, text->bytes, err);
    pot_free(path);
    return s;
}

pot_status pot_converted_make(const char *directory, const char *source, const pot_format_policy *policy,
                              pot_err *err) {
    pot_model *model = NULL;
    pot_container_file files[MOST_FILES];
    pot_buffer manifest = {0}, config = {0};
    pot_status s = pot_model_open(&model, source, policy, err);
    if (s != POT_OK) return s;
    uint32_t n = pot_container_files(files, MOST_FILES, model);
    if (n > MOST_FILES) s = pot_fail(err, POT_LIMIT, "%s has %u files", source, n);
    if (s == POT_OK && mkdir(directory, 0700)) s = pot_fail(err, POT_IO, "%s: %s", directory, strerror(errno));
    if (s == POT_OK) s = write_files(files, n, directory, model, err);
    if (s == POT_OK) s = pot_container_manifest(&manifest, model, "test", files, n, err);
    char *path = pot_path_join(source, "config.json");
    if (s == POT_OK) s = pot_file_read(&config, path, 1 << 20, err);
    pot_free(path);
    if (s == POT_OK) s = write_text(directory, "config.json", &config, err);
    if (s == POT_OK) s = write_text(directory, POT_CONTAINER_MANIFEST, &manifest, err);
    pot_buffer_free(&manifest);
    pot_buffer_free(&config);
    pot_model_close(model);
    return s;
}

void pot_converted_remove(const char *directory) {
    DIR *d = opendir(directory);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char *path = pot_path_join(directory, e->d_name);
        if (path && strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlink(path);
        pot_free(path);
    }
    closedir(d);
    rmdir(directory);
}
