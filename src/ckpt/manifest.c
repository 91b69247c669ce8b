/* training/manifest.json: size and checksum of every other file of a checkpoint, except adapter_config.json.
 * The last member of the JSON is the XXH3-64 of all text before it, so that damage of the manifest is found
 * too. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 1, SEAL_SIZE = 64 };

ax_status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash)
{
    enum { CHUNK = 1 << 20 };
    *bytes = 0;
    *hash = 0;
    int fd;
    AX_TRY(ax_file_open(path, &fd));
    char *chunk = NULL;
    XXH3_state_t *state = XXH3_createState();
    ax_status status = ax_calloc(CHUNK, 1, &chunk);
    if (status == AX_OK && !state)
        status = ax_fail(AX_ERR_MEMORY, "not enough memory while the checksum of %s was computed", path);
    if (status == AX_OK)
        XXH3_64bits_reset(state);
    while (status == AX_OK) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = ax_fail(AX_ERR_DATA, "cannot read %s: %s", path, strerror(errno));
        if (n <= 0)
            break;
        XXH3_64bits_update(state, chunk, (size_t)n);
        *bytes += n;
    }
    if (status == AX_OK)
        *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(chunk);
    close(fd);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static json_t *hex(uint64_t value)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return json_string(text);
}

static json_t *to_json(const manifest *m)
{
    json_t *files = json_object();
    for (int i = 0; i < m->n; i++)
        json_object_set_new(
            files, m->file[i].name,
            json_pack("{s:I, s:o}", "bytes", (json_int_t)m->file[i].bytes, "xxh3", hex(m->file[i].xxh3)));
    return json_pack("{s:i, s:s, s:I, s:I, s:f, s:o, s:O}", "version", VERSION, "writer", ax_version(),
                     "step", (json_int_t)m->step, "serial", (json_int_t)m->serial, "time", m->time, "files",
                     files, "params", m->params);
}

/* Prints the last member of the JSON: the checksum of `text`, which is all the text before that member. */
static void print_seal(const void *text, size_t size, char out[SEAL_SIZE])
{
    snprintf(out, SEAL_SIZE, ",\n  \"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, size));
}

ax_status manifest_write(const char *dir, const manifest *m)
{
    json_t *root = to_json(m);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory to write %s/" MANIFEST, dir);
    size_t body = strlen(text) - 2; /* without "\n}" */
    char end[SEAL_SIZE], *path = NULL;
    print_seal(text, body, end);
    ax_buf whole = {0};
    ax_status status = ax_buf_add(&whole, text, body);
    if (status == AX_OK)
        status = ax_buf_add(&whole, end, strlen(end));
    if (status == AX_OK)
        status = ckpt_path(&path, "%s/" MANIFEST, dir);
    if (status == AX_OK)
        status = ax_file_write_atomic(path, whole.data, whole.size);
    ax_buf_fini(&whole);
    free(path);
    free(text);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------- */

void manifest_fini(manifest *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->file[i].name);
    free(m->file);
    json_decref(m->params);
    memset(m, 0, sizeof *m);
}

static bool parse_hex(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    char *end;
    if (!text || strlen(text) != 16)
        return false;
    *out = strtoull(text, &end, 16);
    return !*end;
}

/* Returns true if `name` is a relative path that stays inside the checkpoint's directory. */
static bool is_inside(const char *name)
{
    if (!*name || *name == '/')
        return false;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (!strncmp(part, "..", 2) && (part[2] == '/' || !part[2]))
            return false;
    }
    return true;
}

static ax_status from_json(const json_t *root, const char *path, manifest *out)
{
    json_t *files, *params;
    json_int_t version, step, serial;
    AX_CHECK(!json_unpack((json_t *)root, "{s:I, s:I, s:I, s:f, s:o, s:o}", "version", &version, "step",
                          &step, "serial", &serial, "time", &out->time, "files", &files, "params", &params) &&
                 json_is_object(files) && json_is_object(params),
             AX_ERR_DATA,
             "%s is damaged: version, step, serial, time, files or params is missing or of the wrong type; "
             "use another checkpoint",
             path);
    AX_CHECK(
        version == VERSION, AX_ERR_DATA,
        "%s has version %lld, but this program reads version %d: use the axonn that wrote the checkpoint",
        path, (long long)version, VERSION);
    AX_CHECK(step >= 0 && serial >= 0 && serial < INT64_MAX, AX_ERR_DATA,
             "%s is damaged: its step (%lld) must be at least 0, and its serial (the number of the save, "
             "%lld) from 0 to 9223372036854775806; use another checkpoint",
             path, (long long)step, (long long)serial);
    out->step = step;
    out->serial = serial;
    out->params = json_incref(params);
    AX_TRY(ax_calloc(json_object_size(files), sizeof *out->file, &out->file));
    const char *name;
    json_t *entry;
    json_object_foreach(files, name, entry)
    {
        manifest_file *f = &out->file[out->n];
        AX_CHECK(is_inside(name), AX_ERR_DATA,
                 "%s is damaged: it lists the file \"%s\", which is not inside the checkpoint's directory; "
                 "use another checkpoint",
                 path, name);
        f->bytes = json_integer_value(json_object_get(entry, "bytes"));
        AX_CHECK(f->bytes >= 0 && !__builtin_add_overflow(out->bytes, f->bytes, &out->bytes), AX_ERR_DATA,
                 "%s is damaged: it says that %s has %lld bytes, but sizes must be at least 0, and their sum "
                 "below 2^63; use another checkpoint",
                 path, name, (long long)f->bytes);
        AX_CHECK(parse_hex(json_object_get(entry, "xxh3"), &f->xxh3), AX_ERR_DATA,
                 "%s is damaged: it has no checksum (\"xxh3\", 16 hexadecimal digits) of %s; use another "
                 "checkpoint",
                 path, name);
        AX_TRY(ax_strdup(name, &f->name));
        out->n++;
    }
    return AX_OK;
}

static ax_status parse(const char *text, size_t size, const char *path, manifest *out)
{
    char end[SEAL_SIZE];
    print_seal("", 0, end); /* only the length of the seal is used, to find where the checksummed text ends */
    size_t tail = strlen(end);
    AX_CHECK(size > tail, AX_ERR_DATA,
             "%s is truncated: it is too short to hold its own checksum; use another checkpoint", path);
    print_seal(text, size - tail, end);
    AX_CHECK(!memcmp(text + size - tail, end, tail), AX_ERR_DATA,
             "%s was changed or is damaged: its text does not match the checksum at its end; use another "
             "checkpoint",
             path);
    json_t *root;
    AX_TRY(ax_json_parse(path, text, size, JSON_REJECT_DUPLICATES, &root));
    ax_status status = from_json(root, path, out);
    json_decref(root);
    return status;
}

ax_status manifest_read(const char *dir, manifest *out)
{
    memset(out, 0, sizeof *out);
    char *path, *text = NULL;
    size_t size = 0;
    AX_TRY(ckpt_path(&path, "%s/" MANIFEST, dir));
    ax_status status = ax_file_read(path, &text, &size);
    if (status == AX_OK)
        status = parse(text, size, path, out);
    if (status != AX_OK)
        manifest_fini(out);
    free(text);
    free(path);
    return status;
}

ax_status manifest_check_file(const char *dir, const manifest_file *f)
{
    char *path;
    int64_t bytes = -1;
    uint64_t hash = 0;
    struct stat info;
    AX_TRY(ckpt_path(&path, "%s/%s", dir, f->name));
    ax_status status = AX_OK;
    if (stat(path, &info))
        status =
            ax_fail(AX_ERR_DATA, "cannot find %s, which training/manifest.json of its checkpoint lists: %s",
                    path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = ax_fail(
            AX_ERR_DATA,
            "%s must be a regular file, because training/manifest.json of its checkpoint lists it", path);
    else if (info.st_size != f->bytes) /* a wrong size is found without reading the file */
        status = ax_fail(AX_ERR_DATA,
                         "%s was changed or is damaged: it has %lld bytes, but training/manifest.json says "
                         "%lld; copy it again, or use another checkpoint",
                         path, (long long)info.st_size, (long long)f->bytes);
    else
        status = manifest_hash_file(path, &bytes, &hash);
    if (status == AX_OK && (bytes != f->bytes || hash != f->xxh3))
        status = ax_fail(AX_ERR_DATA,
                         "%s was changed or is damaged: its checksum is not the one in "
                         "training/manifest.json; copy it again, or use another checkpoint",
                         path);
    free(path);
    return status;
}
