/* Copyright (c) 2026, The gpufleet.vllm contributors
 * GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A libnvidia-ml.so.1 whose GPUs are a few text files: $FAKE_NVML_DIR, by default /run/fake-nvml.
 * README.md beside this file says what the files mean; fake_nvml.py writes them.
 *
 * Nothing is cached over a change: every call looks whether `gpus` was replaced, and reads `holders/` anew, so that all
 * processes of a machine see the same memory at the same time. A call that is not here makes nvidia-ml-py raise
 * FunctionNotFound, as an old driver does.
 */
/* Not _GNU_SOURCE: with it a newer glibc binds scanf and strtoull to symbols that Debian 12 lacks. */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_STEPS 64
#define MAX_RULES 64
#define MAX_PROCESSES 256
#define MAX_NVLINKS 36
#define MAX_MIG_DEVICES 56
#define MIB (1024ULL * 1024ULL)
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFULL
#define NO_INSTANCE 0xFFFFFFFFU
#define EVERY_GPU (-1)
#define MEMORY_V2 0x02000028U
#define FABRIC_V2 0x02000024U
#define FABRIC_V3 0x03000028U
#define MEMORY_TEMPERATURE 82
#define RECOVERY_ACTION 230
#define SWITCH 2
#define P2P_OK 0
#define P2P_NOT_SUPPORTED 5
#define DEFAULT_LEVEL (-1)

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    VERSION_MISMATCH = 25,
};

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_v3;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem_id; char id[32]; } pci_v3;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned value_type; nvmlReturn_t result;
    union { unsigned u; unsigned long long ull; double d; } value;
} field_value;
typedef struct { unsigned version; unsigned char cluster[16]; nvmlReturn_t status; unsigned clique; unsigned char state;
                 unsigned health_mask; unsigned char health_summary; } fabric_v3;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_data;

_Static_assert(sizeof(memory_v2) == 40, "memory v2");
_Static_assert(sizeof(process_v3) == 24, "process record v3");
_Static_assert(sizeof(pci_v3) == 68, "pci info v3");
_Static_assert(sizeof(field_value) == 40, "field value");
_Static_assert(sizeof(fabric_v3) == 40, "fabric info v3");

typedef struct { double at; unsigned long long mib; } step;
typedef struct { int active, type; unsigned domain, bus, device; } nvlink;
typedef struct {
    int index;
    char uuid[96], name[96], serial[32];
    unsigned domain, bus, device;
    unsigned long long total, reserved;             /* MiB */
    int memory_v1, memory_v2;                       /* whether each call is supported */
    int numa_node, memory_numa_node;                /* the host's node; the GPU's own node or -1 */
    int persistence, mig, mig_pending, ecc;         /* -1: not supported */
    unsigned remapped[4], recovery_action;
    unsigned fabric_state, fabric_status, fabric_health;
    int capability[2], compute_mode;
    unsigned long long ecc_errors[4], throttle;     /* volatile corrected, uncorrected; aggregate corrected, uncorrected */
    int retired[3];                                 /* single bit, double bit, pending; -1: not supported */
    int pcie[5];                                    /* generation now and at most, width now and at most, replays */
    int power[6];                                   /* W: usage, limit, enforced limit, default, least, most */
    int temperature[6];                             /* C: GPU, memory; limits shutdown, slowdown, memory, GPU */
    int clocks[6];                                  /* MHz: graphics, SM, memory; the same at most */
    int nvlinks; nvlink links[MAX_NVLINKS];
    int level[MAX_GPUS], p2p[MAX_GPUS][5];          /* to each other GPU; the level may be DEFAULT_LEVEL */
    int steps; step timeline[MAX_STEPS];            /* used MiB without a process, over time */
} gpu;
typedef struct { int gpu, index; unsigned gpu_instance, compute_instance; unsigned long long total, used; char uuid[96], name[96]; } mig_device;
typedef struct { char function[96]; int gpu; int code; double hang, from, until; } rule;
typedef struct { int gpu; unsigned pid; unsigned long long mib; char type; double from, until; } scripted;
typedef struct { int gpu; unsigned pid; unsigned long long mib; char type; int listed; } occupant;

static struct {
    char driver[64], nvml[64];
    int cuda;
    double epoch;
    int count; gpu gpus[MAX_GPUS];
    int mig_devices; mig_device mig[MAX_MIG_DEVICES];
    int rules; rule rule[MAX_RULES];
    int scripted_count; scripted process[MAX_PROCESSES];
} state;
static int initialised;

/* ---- where and when ------------------------------------------------------------------------------------------------ */

static const char *state_dir(void) {
    const char *dir = getenv("FAKE_NVML_DIR");
    return dir && *dir ? dir : "/run/fake-nvml";
}

static double seconds(struct timespec at) { return (double)at.tv_sec + (double)at.tv_nsec / 1e9; }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return seconds(at);
}

/* Seconds since the state was written: separate processes agree on it. */
static double elapsed(void) { return now() - state.epoch; }

static void sleep_for(double duration) {
    double end = now() + duration, left;
    while ((left = end - now()) > 0) {
        struct timespec wait = { (time_t)left, (long)((left - (double)(time_t)left) * 1e9) };
        nanosleep(&wait, NULL);
    }
}

/* ---- the file `gpus` ----------------------------------------------------------------------------------------------- */

#define COPY(target, source) memcpy(target, source, sizeof target)

static void default_gpu(gpu *one, int index) {
    static const unsigned buses[8] = { 0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1 };
    memset(one, 0, sizeof *one);
    one->index = index;
    snprintf(one->uuid, sizeof one->uuid, "GPU-f00d%04x-6b1c-4e5d-9a77-%012x", index, 0xb1ac0000 + index);
    snprintf(one->name, sizeof one->name, "NVIDIA RTX PRO 6000 Blackwell Server Edition");
    snprintf(one->serial, sizeof one->serial, "17%011d", index);
    one->domain = (unsigned)index / 8;
    one->bus = buses[index % 8];
    one->total = 97887;
    one->reserved = 637;
    one->memory_v1 = one->memory_v2 = 1;
    one->numa_node = index % 8 < 4 ? 0 : 1;
    one->memory_numa_node = -1;
    one->persistence = 1;
    one->mig = 0;
    one->ecc = 1;
    one->fabric_health = 1;
    COPY(one->capability, ((int[]){ 12, 0 }));
    COPY(one->retired, ((int[]){ -1, -1, -1 }));
    COPY(one->pcie, ((int[]){ 5, 5, 16, 16, 0 }));
    COPY(one->power, ((int[]){ 35, 600, 600, 600, 300, 600 }));
    COPY(one->temperature, ((int[]){ 34, -1, 95, 92, -1, 90 }));
    COPY(one->clocks, ((int[]){ 180, 180, 405, 2430, 2430, 12481 }));
    one->throttle = 1;
    for (int other = 0; other < MAX_GPUS; other++) {
        one->level[other] = DEFAULT_LEVEL;
        one->p2p[other][2] = P2P_NOT_SUPPORTED;
    }
}

static void default_state(void) {
    memset(&state, 0, sizeof state);
    snprintf(state.driver, sizeof state.driver, "580.159.04");
    snprintf(state.nvml, sizeof state.nvml, "13.580.159.04");
    state.cuda = 13000;
    state.count = 8;
    for (int i = 0; i < MAX_GPUS; i++) default_gpu(&state.gpus[i], i);
}

static void read_timeline(gpu *one, const char *text) {
    int read;
    for (one->steps = 0; one->steps < MAX_STEPS; text += read) {
        step *next = &one->timeline[one->steps];
        if (sscanf(text, " %lf:%llu%n", &next->at, &next->mib, &read) != 2) break;
        one->steps++;
    }
}

static void read_numbers(const char *text, int *numbers, int count) {
    for (int read; count-- && sscanf(text, " %d%n", numbers, &read) == 1; numbers++) text += read;
}

/* `COUNT gpu PCI`, `COUNT switch` or `COUNT down`: that many more links. */
static void read_nvlinks(gpu *one, const char *text) {
    char what[16] = "";
    nvlink link = { 0 };
    int more = 0;
    if (sscanf(text, "%d %15s %x:%x:%x", &more, what, &link.domain, &link.bus, &link.device) < 2) return;
    link.active = strcmp(what, "down") != 0;
    link.type = strcmp(what, "switch") ? 0 : SWITCH;
    while (more-- > 0 && one->nvlinks < MAX_NVLINKS) one->links[one->nvlinks++] = link;
}

static void read_mig_device(int parent, const char *text) {
    if (state.mig_devices >= MAX_MIG_DEVICES) return;
    mig_device *next = &state.mig[state.mig_devices];
    next->gpu = parent;
    if (sscanf(text, "%d %u %u %llu %llu %95s %95[^\n]", &next->index, &next->gpu_instance, &next->compute_instance, &next->total, &next->used, next->uuid, next->name) == 7)
        state.mig_devices++;
}

/* Both ways, because a path has no direction. */
static void read_pair(const char *rest, int reads_p2p) {
    int one = -1, two = -1, read = 0;
    if (sscanf(rest, "%d %d %n", &one, &two, &read) < 2 || one < 0 || two < 0 || one >= MAX_GPUS || two >= MAX_GPUS) return;
    for (int turn = 0; turn < 2; turn++) {
        gpu *from = &state.gpus[turn ? two : one];
        int to = turn ? one : two;
        read_numbers(rest + read, reads_p2p ? from->p2p[to] : &from->level[to], reads_p2p ? 5 : 1);
    }
}

static void read_gpu_line(int index, const char *key, const char *value) {
    if (index < 0 || index >= MAX_GPUS) return;
    gpu *one = &state.gpus[index];
    if (!strcmp(key, "uuid")) snprintf(one->uuid, sizeof one->uuid, "%s", value);
    else if (!strcmp(key, "name")) snprintf(one->name, sizeof one->name, "%s", value);
    else if (!strcmp(key, "pci")) sscanf(value, "%x:%x:%x", &one->domain, &one->bus, &one->device);
    else if (!strcmp(key, "total")) one->total = strtoull(value, NULL, 10);
    else if (!strcmp(key, "reserved")) one->reserved = strtoull(value, NULL, 10);
    else if (!strcmp(key, "memory")) { one->memory_v1 = !!strstr(value, "v1"); one->memory_v2 = !!strstr(value, "v2"); }
    else if (!strcmp(key, "numa")) one->numa_node = atoi(value);
    else if (!strcmp(key, "memory_numa")) one->memory_numa_node = atoi(value);
    else if (!strcmp(key, "persistence")) one->persistence = atoi(value);
    else if (!strcmp(key, "mig")) one->mig = one->mig_pending = atoi(value);
    else if (!strcmp(key, "mig_pending")) one->mig_pending = atoi(value);
    else if (!strcmp(key, "mig_device")) read_mig_device(index, value);
    else if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &one->capability[0], &one->capability[1]);
    else if (!strcmp(key, "compute_mode")) one->compute_mode = atoi(value);
    else if (!strcmp(key, "ecc_errors")) sscanf(value, "%llu %llu %llu %llu", &one->ecc_errors[0], &one->ecc_errors[1], &one->ecc_errors[2], &one->ecc_errors[3]);
    else if (!strcmp(key, "retired")) read_numbers(value, one->retired, 3);
    else if (!strcmp(key, "pcie")) read_numbers(value, one->pcie, 5);
    else if (!strcmp(key, "power")) read_numbers(value, one->power, 6);
    else if (!strcmp(key, "temperature")) read_numbers(value, one->temperature, 6);
    else if (!strcmp(key, "clocks")) read_numbers(value, one->clocks, 6);
    else if (!strcmp(key, "throttle")) one->throttle = strtoull(value, NULL, 0);
    else if (!strcmp(key, "nvlinks")) read_nvlinks(one, value);
    else if (!strcmp(key, "ecc")) one->ecc = atoi(value);
    else if (!strcmp(key, "remapped")) sscanf(value, "%u %u %u %u", &one->remapped[0], &one->remapped[1], &one->remapped[2], &one->remapped[3]);
    else if (!strcmp(key, "recovery")) one->recovery_action = (unsigned)atoi(value);
    else if (!strcmp(key, "fabric")) sscanf(value, "%u %u %u", &one->fabric_state, &one->fabric_status, &one->fabric_health);
    else if (!strcmp(key, "timeline")) read_timeline(one, value);
}

static int read_gpu_number(const char *text) { return strcmp(text, "*") ? atoi(text) : EVERY_GPU; }

static void read_rule(const char *rest, int hangs) {
    if (state.rules >= MAX_RULES) return;
    rule *next = &state.rule[state.rules];
    char where[16] = "*";
    double what = 0;
    memset(next, 0, sizeof *next);
    next->until = INFINITY;
    if (sscanf(rest, "%95s %15s %lf %lf %lf", next->function, where, &what, &next->from, &next->until) < 3) return;
    next->gpu = read_gpu_number(where);
    if (hangs) next->hang = what; else next->code = (int)what;
    state.rules++;
}

static void read_process(const char *rest) {
    if (state.scripted_count >= MAX_PROCESSES) return;
    scripted *next = &state.process[state.scripted_count];
    char mib[32];
    next->from = 0;
    next->until = INFINITY;
    if (sscanf(rest, "%d %u %31s %c %lf %lf", &next->gpu, &next->pid, mib, &next->type, &next->from, &next->until) < 4) return;
    next->mib = strcmp(mib, "NA") ? strtoull(mib, NULL, 10) : NOT_AVAILABLE;
    state.scripted_count++;
}

static void read_state_line(char *line) {
    char word[32], key[32];
    int index, rest = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%31s %n", word, &rest) < 1 || word[0] == '#' || !rest) return;
    const char *value = line + rest;
    if (!strcmp(word, "driver")) snprintf(state.driver, sizeof state.driver, "%s", value);
    else if (!strcmp(word, "nvml")) snprintf(state.nvml, sizeof state.nvml, "%s", value);
    else if (!strcmp(word, "cuda")) state.cuda = atoi(value);
    else if (!strcmp(word, "epoch")) state.epoch = strtod(value, NULL);
    else if (!strcmp(word, "count")) state.count = atoi(value) > MAX_GPUS ? MAX_GPUS : atoi(value);
    else if (!strcmp(word, "error")) read_rule(value, 0);
    else if (!strcmp(word, "hang")) read_rule(value, 1);
    else if (!strcmp(word, "process")) read_process(value);
    else if (!strcmp(word, "level")) read_pair(value, 0);
    else if (!strcmp(word, "p2p")) read_pair(value, 1);
    else if (!strcmp(word, "gpu") && sscanf(value, "%d %31s %n", &index, key, &rest) == 2) read_gpu_line(index, key, value + rest);
}

static void refresh(void) {
    static struct stat seen;
    static int loaded;
    char path[PATH_MAX], line[1024];
    struct stat found = { 0 };
    snprintf(path, sizeof path, "%s/gpus", state_dir());
    int present = stat(path, &found) == 0;
    if (loaded && found.st_ino == seen.st_ino && found.st_size == seen.st_size && !memcmp(&found.st_mtim, &seen.st_mtim, sizeof seen.st_mtim)) return;
    FILE *file = present ? fopen(path, "re") : NULL;
    default_state();
    if (file) {
        fstat(fileno(file), &found);
        state.epoch = seconds(found.st_mtim);
        while (fgets(line, sizeof line, file)) read_state_line(line);
        fclose(file);
    }
    seen = found;
    loaded = 1;
}

/* ---- who holds memory ---------------------------------------------------------------------------------------------- */

/* Whether the process that wrote the record still lives. `kill` tells the truth also where /proc is hidden (ProtectProc=):
 * a hidden process counts as alive. A zombie has given its GPU memory back. */
static int lives(unsigned pid, unsigned long long started) {
    char path[64], text[1024];
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 1;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *rest = strrchr(text, ')');
    char process_state = 0;
    unsigned long long start = 0;
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &process_state, &start) != 2) return 1;
    return process_state != 'Z' && process_state != 'X' && (!started || start == started);
}

/* When the death of a process was first seen, by whichever process asked first: that one leaves an empty file. */
static double death_of(unsigned pid, unsigned long long started) {
    char path[PATH_MAX];
    struct stat found;
    snprintf(path, sizeof path, "%s/holders/.dead-%u-%llu", state_dir(), pid, started);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file >= 0) close(file);
    return stat(path, &found) == 0 ? seconds(found.st_mtim) : now();
}

static int read_holder(const char *path, occupant *list, int count) {
    char line[256], mib[32], type;
    double linger;
    FILE *file = fopen(path, "re");
    if (!file) return count;
    while (count < MAX_PROCESSES && fgets(line, sizeof line, file)) {
        occupant one = { 0 };
        unsigned long long started = 0;
        if (sscanf(line, "%d %31s %u %c %lf %llu", &one.gpu, mib, &one.pid, &type, &linger, &started) < 5) continue;
        one.mib = strcmp(mib, "NA") ? strtoull(mib, NULL, 10) : NOT_AVAILABLE;
        one.type = type;
        one.listed = lives(one.pid, started);
        if (one.listed || (linger > 0 && now() < death_of(one.pid, started) + linger)) list[count++] = one;
    }
    fclose(file);
    return count;
}

static int occupants(occupant *list) {
    char folder[PATH_MAX], path[PATH_MAX + 256];
    int count = 0;
    double at = elapsed();
    for (int i = 0; i < state.scripted_count; i++) {
        scripted *one = &state.process[i];
        if (at >= one->from && at < one->until) list[count++] = (occupant){ one->gpu, one->pid, one->mib, one->type, 1 };
    }
    snprintf(folder, sizeof folder, "%s/holders", state_dir());
    DIR *dir = opendir(folder);
    if (!dir) return count;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count = read_holder(path, list, count);
    }
    closedir(dir);
    return count;
}

static unsigned long long used_mib(const gpu *one) {
    occupant list[MAX_PROCESSES];
    int count = occupants(list);
    unsigned long long used = 0, most = one->total - one->reserved;
    double at = elapsed();
    for (int i = 0; i < one->steps && one->timeline[i].at <= at; i++) used = one->timeline[i].mib;
    for (int i = 0; i < count; i++)
        if (list[i].gpu == one->index && list[i].mib != NOT_AVAILABLE) used += list[i].mib;
    return used > most ? most : used;
}

/* ---- the door every call goes through ------------------------------------------------------------------------------ */

static int matches(const char *pattern, const char *function) {
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*') return !strncmp(pattern, function, length - 1);
    return !strcmp(pattern, function);
}

/* The scripted result of this call, after the scripted hang. A rule for one GPU never concerns the system's calls. */
static nvmlReturn_t scripted_result(const char *function, int index) {
    refresh();
    double at = elapsed();
    nvmlReturn_t result = SUCCESS;
    for (int i = 0; i < state.rules; i++) {
        rule *one = &state.rule[i];
        if (at < one->from || at >= one->until || !matches(one->function, function)) continue;
        if (one->gpu != EVERY_GPU && one->gpu != index) continue;
        if (one->hang > 0) sleep_for(one->hang);
        else if (!result) result = one->code;
    }
    return result;
}

static nvmlReturn_t enter(const char *function, int index) {
    nvmlReturn_t result = scripted_result(function, index);
    return !initialised ? UNINITIALIZED : result;
}

static mig_device *mig_of(void *handle) {
    for (int i = 0; i < state.mig_devices; i++) if (handle == &state.mig[i]) return &state.mig[i];
    return NULL;
}

static gpu *device(void *handle) {
    for (int i = 0; i < state.count; i++) if (handle == &state.gpus[i]) return &state.gpus[i];
    return NULL;
}

#define ENTER_SYSTEM() do { nvmlReturn_t r_ = enter(__func__, EVERY_GPU); if (r_) return r_; } while (0)
#define ENTER_DEVICE(one) \
    gpu *one = device(handle); \
    do { nvmlReturn_t r_ = enter(__func__, one ? one->index : EVERY_GPU); if (r_) return r_; if (!one) return INVALID_ARGUMENT; } while (0)

/* Where a MIG device may stand for a GPU: go through the same door, then answer for it. */
#define IF_MIG_DEVICE(part) \
    mig_device *part = mig_of(handle); \
    if (part) { nvmlReturn_t r_ = enter(__func__, part->gpu); if (r_) return r_; } \
    if (part)

static nvmlReturn_t give(int number, unsigned *result) {
    if (number < 0) return NOT_SUPPORTED;
    *result = (unsigned)number;
    return SUCCESS;
}

static nvmlReturn_t give_text(const char *text, char *buffer, unsigned size) {
    if (!buffer) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

/* ---- the library --------------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    nvmlReturn_t result = scripted_result(__func__, EVERY_GPU);
    if (!result) initialised++;
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    static __thread char text[48];
    snprintf(text, sizeof text, "NVML error %d of the fake library", code);
    return text;
}

/* Also answers before init: nvidia-smi prints it beside "Driver/library version mismatch". */
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    nvmlReturn_t result = scripted_result(__func__, EVERY_GPU);
    return result ? result : give_text(state.nvml, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER_SYSTEM();
    return give_text(state.driver, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { ENTER_SYSTEM(); *version = state.cuda; return SUCCESS; }
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER_SYSTEM(); *version = state.cuda; return SUCCESS; }

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    char path[64], text[256];
    ENTER_SYSTEM();
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NOT_FOUND;
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    snprintf(name, length, "%s", text);
    return SUCCESS;
}

/* ---- devices ------------------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { ENTER_SYSTEM(); *count = (unsigned)state.count; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    nvmlReturn_t result = enter(__func__, (int)index);
    if (result) return result;
    if (index >= (unsigned)state.count) return INVALID_ARGUMENT;
    *handle = &state.gpus[index];
    return SUCCESS;
}

static nvmlReturn_t give_handle(const char *function, int index, void **handle) {
    nvmlReturn_t result = enter(function, index);
    if (result) return result;
    if (index < 0) return NOT_FOUND;
    *handle = &state.gpus[index];
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index = -1;
    refresh();
    for (int i = 0; i < state.count; i++) if (!strcasecmp(uuid, state.gpus[i].uuid)) index = i;
    return give_handle(__func__, index, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    unsigned domain = 0, bus = 0, slot = 0;
    int index = -1;
    refresh();
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(id, "%x:%x", &bus, &slot) != 2) return INVALID_ARGUMENT;
    }
    for (int i = 0; i < state.count; i++) {
        gpu *one = &state.gpus[i];
        if (one->domain == domain && one->bus == bus && one->device == slot) index = i;
    }
    return give_handle(__func__, index, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(void *handle, unsigned *index) { ENTER_DEVICE(one); *index = (unsigned)one->index; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { ENTER_DEVICE(one); *minor = (unsigned)one->index; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    IF_MIG_DEVICE(part) return give_text(part->uuid, uuid, length);
    ENTER_DEVICE(one);
    return give_text(one->uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    IF_MIG_DEVICE(part) return give_text(part->name, name, length);
    ENTER_DEVICE(one);
    return give_text(one->name, name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(void *handle, char *serial, unsigned length) { ENTER_DEVICE(one); return give_text(one->serial, serial, length); }

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *handle, pci_v3 *info) {
    ENTER_DEVICE(one);
    memset(info, 0, sizeof *info);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", one->domain & 0xFFFF, one->bus & 0xFF, one->device & 0xFF);
    snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.0", one->domain, one->bus, one->device);
    info->domain = one->domain;
    info->bus = one->bus;
    info->device = one->device;
    info->pci_id = 0x2BB510DE;
    return SUCCESS;
}

/* v1 counts the driver's reserve as used; v2 shows it apart. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    ENTER_DEVICE(one);
    if (!one->memory_v1) return NOT_SUPPORTED;
    memory->total = one->total * MIB;
    memory->used = (used_mib(one) + one->reserved) * MIB;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    IF_MIG_DEVICE(part) {
        if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
        *memory = (memory_v2){ MEMORY_V2, part->total * MIB, 0, (part->total - part->used) * MIB, part->used * MIB };
        return SUCCESS;
    }
    ENTER_DEVICE(one);
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    if (!one->memory_v2) return NOT_SUPPORTED;
    memory->total = one->total * MIB;
    memory->reserved = one->reserved * MIB;
    memory->used = used_mib(one) * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

/* The two-call protocol: too small an array, also none at all, answers INSUFFICIENT_SIZE and the count. */
static nvmlReturn_t give_processes(const gpu *one, char type, unsigned *count, process_v3 *infos) {
    occupant list[MAX_PROCESSES];
    int all = occupants(list);
    unsigned found = 0, room = *count;
    for (int i = 0; i < all; i++) {
        if (list[i].gpu != one->index || list[i].type != type || !list[i].listed) continue;
        if (infos && found < room) infos[found] = (process_v3){ list[i].pid, list[i].mib == NOT_AVAILABLE ? NOT_AVAILABLE : list[i].mib * MIB, NO_INSTANCE, NO_INSTANCE };
        found++;
    }
    *count = found;
    return found && (!infos || found > room) ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_v3 *infos) {
    ENTER_DEVICE(one);
    return give_processes(one, 'C', count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process_v3 *infos) {
    ENTER_DEVICE(one);
    return give_processes(one, 'G', count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, process_v3 *infos) {
    ENTER_DEVICE(one);
    return give_processes(one, 'M', count, infos);
}

/* ---- placement ----------------------------------------------------------------------------------------------------- */

/* Only where the GPU itself is a NUMA node; the node of an ordinary card's socket is told by the memory affinity. */
EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(void *handle, unsigned *node) {
    ENTER_DEVICE(one);
    if (one->memory_numa_node < 0) return NOT_SUPPORTED;
    *node = (unsigned)one->memory_numa_node;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *nodes, unsigned scope) {
    ENTER_DEVICE(one);
    (void)scope;
    if (!size || !nodes) return INVALID_ARGUMENT;
    if (one->numa_node < 0) return NOT_SUPPORTED;
    memset(nodes, 0, size * sizeof *nodes);
    if ((unsigned)one->numa_node < size * 64) nodes[one->numa_node / 64] = 1UL << (one->numa_node % 64);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long *cpus) {
    ENTER_DEVICE(one);
    if (!size || !cpus) return INVALID_ARGUMENT;
    memset(cpus, 0, size * sizeof *cpus);
    if (one->numa_node >= 0 && (unsigned)one->numa_node < size) cpus[one->numa_node] = ~0UL;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, unsigned *level) {
    ENTER_DEVICE(one);
    gpu *two = device(other);
    if (!two) return INVALID_ARGUMENT;
    int told = one->level[two->index];
    *level = one == two ? 0 : told != DEFAULT_LEVEL ? (unsigned)told : one->numa_node == two->numa_node ? 30 : 50;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(void *handle, void *other, unsigned index, unsigned *status) {
    ENTER_DEVICE(one);
    gpu *two = device(other);
    if (!two || index > 4) return INVALID_ARGUMENT;
    *status = (unsigned)one->p2p[two->index][index];
    return SUCCESS;
}

/* A part without NVLink has none of these calls; a number beyond its links is a wrong argument. */
static nvmlReturn_t find_nvlink(const gpu *one, unsigned number, const nvlink **link) {
    if (!one->nvlinks) return NOT_SUPPORTED;
    if (number >= (unsigned)one->nvlinks) return INVALID_ARGUMENT;
    *link = &one->links[number];
    return SUCCESS;
}

#define ENTER_NVLINK(link) \
    const nvlink *link = NULL; \
    ENTER_DEVICE(one); \
    do { nvmlReturn_t r_ = find_nvlink(one, number, &link); if (r_) return r_; } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(void *handle, unsigned number, unsigned *active) { ENTER_NVLINK(link); *active = (unsigned)link->active; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(void *handle, unsigned number, unsigned *version) { ENTER_NVLINK(link); (void)link; *version = 4; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned number, unsigned *type) { ENTER_NVLINK(link); *type = (unsigned)link->type; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned number, pci_v3 *info) {
    ENTER_NVLINK(link);
    if (!link->active) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.0", link->domain, link->bus, link->device);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) { ENTER_DEVICE(one); return give(one->pcie[0], value); }
EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) { ENTER_DEVICE(one); return give(one->pcie[1], value); }
EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { ENTER_DEVICE(one); return give(one->pcie[2], value); }
EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value) { ENTER_DEVICE(one); return give(one->pcie[3], value); }
EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(void *handle, unsigned *value) { ENTER_DEVICE(one); return give(one->pcie[4], value); }

/* ---- modes and health ---------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) {
    ENTER_DEVICE(one);
    if (one->persistence < 0) return NOT_SUPPORTED;
    *mode = (unsigned)one->persistence;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(one);
    if (one->mig < 0) return NOT_SUPPORTED;
    *current = (unsigned)one->mig;
    *pending = (unsigned)one->mig_pending;
    return SUCCESS;
}

/* Up to seven devices a GPU, with holes where none is: those are NOT_FOUND. */
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { ENTER_DEVICE(one); *count = one->mig > 0 ? 7 : 0; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **mig) {
    ENTER_DEVICE(one);
    if (one->mig <= 0) return NOT_SUPPORTED;
    for (int i = 0; i < state.mig_devices; i++)
        if (state.mig[i].gpu == one->index && state.mig[i].index == (int)index) { *mig = &state.mig[i]; return SUCCESS; }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_mig) {
    IF_MIG_DEVICE(part) { *is_mig = 1; return SUCCESS; }
    ENTER_DEVICE(one);
    *is_mig = 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) {
    IF_MIG_DEVICE(part) { *id = part->gpu_instance; return SUCCESS; }
    ENTER_DEVICE(one);
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) {
    IF_MIG_DEVICE(part) { *id = part->compute_instance; return SUCCESS; }
    ENTER_DEVICE(one);
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { ENTER_DEVICE(one); return give(one->compute_mode, mode); }

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(one);
    if (one->ecc < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)one->ecc;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure) {
    ENTER_DEVICE(one);
    if (one->mig > 0) return NOT_SUPPORTED;
    *correctable = one->remapped[0];
    *uncorrectable = one->remapped[1];
    *pending = one->remapped[2];
    *failure = one->remapped[3];
    return SUCCESS;
}

/* Type 0 is corrected, 1 uncorrected; counter 0 is volatile (since the driver was loaded), 1 aggregate (for life). */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, unsigned long long *count) {
    ENTER_DEVICE(one);
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    if (one->ecc < 1) return NOT_SUPPORTED;
    *count = one->ecc_errors[2 * counter + type];
    return SUCCESS;
}

/* The older mechanism: parts that remap rows do not have it. */
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count, unsigned long long *pages) {
    ENTER_DEVICE(one);
    if (cause > 1) return INVALID_ARGUMENT;
    if (one->retired[cause] < 0) return NOT_SUPPORTED;
    unsigned found = (unsigned)one->retired[cause], room = *count;
    *count = found;
    if (found && (!pages || found > room)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) pages[i] = 0x1000ULL * (i + 1);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) { ENTER_DEVICE(one); return give(one->retired[2], pending); }

/* ---- power, heat, clocks ------------------------------------------------------------------------------------------- */

static nvmlReturn_t give_milliwatts(int watts, unsigned *result) {
    nvmlReturn_t code = give(watts, result);
    if (!code) *result *= 1000;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(void *handle, unsigned *value) { ENTER_DEVICE(one); return give_milliwatts(one->power[0], value); }
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *value) { ENTER_DEVICE(one); return give_milliwatts(one->power[1], value); }
EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *value) { ENTER_DEVICE(one); return give_milliwatts(one->power[2], value); }
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *value) { ENTER_DEVICE(one); return give_milliwatts(one->power[3], value); }

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *least, unsigned *most) {
    ENTER_DEVICE(one);
    nvmlReturn_t code = give_milliwatts(one->power[4], least);
    return code ? code : give_milliwatts(one->power[5], most);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *degrees) {
    ENTER_DEVICE(one);
    return sensor ? INVALID_ARGUMENT : give(one->temperature[0], degrees);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(void *handle, unsigned threshold, unsigned *degrees) {
    ENTER_DEVICE(one);
    return threshold > 3 ? INVALID_ARGUMENT : give(one->temperature[2 + threshold], degrees);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *mhz) {
    ENTER_DEVICE(one);
    return type > 2 ? INVALID_ARGUMENT : give(one->clocks[type], mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(void *handle, unsigned type, unsigned *mhz) {
    ENTER_DEVICE(one);
    return type > 2 ? INVALID_ARGUMENT : give(one->clocks[3 + type], mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) { ENTER_DEVICE(one); *reasons = one->throttle; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) { ENTER_DEVICE(one); *reasons = one->throttle; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ENTER_DEVICE(one);
    *major = one->capability[0];
    *minor = one->capability[1];
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v3 *info) {
    ENTER_DEVICE(one);
    if (info->version != FABRIC_V2 && info->version != FABRIC_V3) return VERSION_MISMATCH;
    info->status = (nvmlReturn_t)one->fabric_status;
    info->clique = 0;
    info->state = (unsigned char)one->fabric_state;
    info->health_mask = 0;
    if (info->version == FABRIC_V3) info->health_summary = one->fabric_state == 3 ? (unsigned char)one->fabric_health : 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    ENTER_DEVICE(one);
    for (int i = 0; i < count; i++) {
        values[i].value_type = 1;
        if (values[i].field == RECOVERY_ACTION) values[i].result = give((int)one->recovery_action, &values[i].value.u);
        else if (values[i].field == MEMORY_TEMPERATURE) values[i].result = give(one->temperature[1], &values[i].value.u);
        else values[i].result = NOT_SUPPORTED;
    }
    return SUCCESS;
}

/* ---- events: a set can be made and waited on, and nothing ever happens ---------------------------------------------- */

EXPORT nvmlReturn_t nvmlEventSetCreate(void **set) { ENTER_SYSTEM(); *set = malloc(1); return SUCCESS; }
EXPORT nvmlReturn_t nvmlEventSetFree(void *set) { ENTER_SYSTEM(); free(set); return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) { ENTER_DEVICE(one); *types = 0x8; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { ENTER_DEVICE(one); (void)types; (void)set; return SUCCESS; }

EXPORT nvmlReturn_t nvmlEventSetWait_v2(void *set, event_data *data, unsigned milliseconds) {
    ENTER_SYSTEM();
    (void)set;
    memset(data, 0, sizeof *data);
    sleep_for(milliseconds / 1000.0);
    return TIMEOUT;
}
