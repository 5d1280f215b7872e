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
#define MIB (1024ULL * 1024ULL)
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFULL
#define NO_INSTANCE 0xFFFFFFFFU
#define EVERY_GPU (-1)
#define MEMORY_V2 0x02000028U
#define FABRIC_V2 0x02000024U
#define FABRIC_V3 0x03000028U
#define RECOVERY_ACTION 230

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
typedef struct {
    int index;
    char uuid[96], name[96], serial[32];
    unsigned domain, bus, device;
    unsigned long long total, reserved;             /* MiB */
    int memory_v1, memory_v2;                       /* whether each call is supported */
    int numa_node, memory_numa_node;                /* the host's node; the GPU's own node or -1 */
    int persistence, mig, ecc;                      /* -1: not supported */
    unsigned remapped[4], recovery_action;
    unsigned fabric_state;
    int steps; step timeline[MAX_STEPS];            /* used MiB without a process, over time */
} gpu;
typedef struct { char function[96]; int gpu; int code; double hang, from, until; } rule;
typedef struct { int gpu; unsigned pid; unsigned long long mib; char type; double from, until; } scripted;
typedef struct { int gpu; unsigned pid; unsigned long long mib; char type; int listed; } occupant;

static struct {
    char driver[64], nvml[64];
    int cuda;
    double epoch;
    int count; gpu gpus[MAX_GPUS];
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
    else if (!strcmp(key, "mig")) one->mig = atoi(value);
    else if (!strcmp(key, "ecc")) one->ecc = atoi(value);
    else if (!strcmp(key, "remapped")) sscanf(value, "%u %u %u %u", &one->remapped[0], &one->remapped[1], &one->remapped[2], &one->remapped[3]);
    else if (!strcmp(key, "recovery")) one->recovery_action = (unsigned)atoi(value);
    else if (!strcmp(key, "fabric")) one->fabric_state = (unsigned)atoi(value);
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

static gpu *device(void *handle) {
    for (int i = 0; i < state.count; i++) if (handle == &state.gpus[i]) return &state.gpus[i];
    return NULL;
}

#define ENTER_SYSTEM() do { nvmlReturn_t r_ = enter(__func__, EVERY_GPU); if (r_) return r_; } while (0)
#define ENTER_DEVICE(one) \
    gpu *one = device(handle); \
    do { nvmlReturn_t r_ = enter(__func__, one ? one->index : EVERY_GPU); if (r_) return r_; if (!one) return INVALID_ARGUMENT; } while (0)

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
EXPORT nvmlReturn_t nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) { ENTER_DEVICE(one); return give_text(one->uuid, uuid, length); }
EXPORT nvmlReturn_t nvmlDeviceGetName(void *handle, char *name, unsigned length) { ENTER_DEVICE(one); return give_text(one->name, name, length); }
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
    *level = one == two ? 0 : one->numa_node == two->numa_node ? 30 : 50;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(void *handle, void *other, unsigned index, unsigned *status) {
    ENTER_DEVICE(one);
    if (!device(other) || index > 4) return INVALID_ARGUMENT;
    *status = index == 2 ? 5 : 0;
    return SUCCESS;
}

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
    *current = *pending = (unsigned)one->mig;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { ENTER_DEVICE(one); *count = one->mig > 0 ? 4 : 0; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **mig) { ENTER_DEVICE(one); (void)index; (void)mig; return NOT_FOUND; }
EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_mig) { ENTER_DEVICE(one); *is_mig = 0; return SUCCESS; }

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

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count, unsigned long long *pages) {
    ENTER_DEVICE(one);
    (void)cause; (void)count; (void)pages;
    return NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { ENTER_DEVICE(one); *milliwatts = 35000; return SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *degrees) { ENTER_DEVICE(one); (void)sensor; *degrees = 34; return SUCCESS; }

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ENTER_DEVICE(one);
    *major = 12;
    *minor = 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v3 *info) {
    ENTER_DEVICE(one);
    if (info->version != FABRIC_V2 && info->version != FABRIC_V3) return VERSION_MISMATCH;
    info->status = SUCCESS;
    info->clique = 0;
    info->state = (unsigned char)one->fabric_state;
    info->health_mask = 0;
    if (info->version == FABRIC_V3) info->health_summary = one->fabric_state == 3;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    ENTER_DEVICE(one);
    for (int i = 0; i < count; i++) {
        values[i].result = values[i].field == RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
        values[i].value_type = 1;
        values[i].value.u = one->recovery_action;
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
