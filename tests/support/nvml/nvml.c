/* Replaces NVIDIA's libnvidia-ml.so.1. Each call reads its values from the file $LBCTL_FAKE_NVML, lines of key=value:

   driver.down=1            no driver is loaded (NVML_ERROR_DRIVER_NOT_LOADED)
   driver.init=18           nvmlInit returns this error
   driver.session=2         another value is a restart of the driver: sessions from before it are uninitialized
   driver.old=1             the driver lacks the functions that newer drivers have
   gpu0.uuid=GPU-…          the GPU exists; also name, pci (bus ID)
   gpu0.gone=1              the GPU does not exist: a new session does not list it, and its handles are of a lost GPU
   gpu0.lost=1              the GPU has fallen off the bus
   gpu0.error=999           each call for the GPU returns this error
   gpu0.denied=1            the user may not open the GPU
   gpu0.hang=1              calls for the GPU do not return until the line changes
   gpu0.utilization=97      percent
   gpu0.memory_total, memory_reserved, memory_free       bytes
   gpu0.temperature         degrees Celsius
   gpu0.power               milliwatts
   gpu0.clock, max_clock    MHz
   gpu0.slowdowns=0x40      bits of the reasons for a reduced clock
   gpu0.ecc                 uncorrectable errors
   gpu0.remap_failed=0
   gpu0.xid=79#1            XID error 79; a change of the text is a new event. 79@3#1: in GPU instance 3
   gpu0.events=0            the GPU has no events
   gpu0.mig=1               MIG mode
   gpu0.slice0.uuid, instance, memory_total, memory_reserved, memory_free

   A value without a line is not supported. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, MEMORY = 20
};
enum { MAX_GPUS = 16, MAX_SLICES = 7, TEXT = 96, XID = 8, NO_INSTANCE = -1 };

typedef int Return;
typedef unsigned long long u64;

/* A device: a GPU, or a slice of it. Its name is the beginning of its keys. */
typedef struct { char name[32]; int gpu; int slice; } Device;
typedef struct { Device *gpu; char seen[TEXT]; } EventSet;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct { Device *device; u64 type, data; unsigned gpuInstance, computeInstance; } EventData;

static Device gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];
static int listed[MAX_GPUS], count;
static int sessions;
static char session[TEXT];

/* Copies the value of the key into text and returns 1, or returns 0 with an empty text if the file lacks it. */
static int get(char text[TEXT], const char *format, ...) {
    char key[64], line[256];
    const char *path = getenv("LBCTL_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    va_list arguments;
    int found = 0;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    text[0] = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (!equals) continue;
        *equals = 0;
        if (strcmp(line, key)) continue;
        snprintf(text, TEXT, "%s", equals + 1);
        found = 1;
    }
    if (file) fclose(file);
    return found;
}

static u64 number(const char *name, const char *key) {
    char text[TEXT];
    get(text, "%s.%s", name, key);
    return strtoull(text, NULL, 0);
}

static Return driver(void) {
    char text[TEXT];
    get(text, "driver.session");
    return !sessions || number("driver", "down") || strcmp(text, session) ? UNINITIALIZED : SUCCESS;
}

/* The state of the GPU of a device, whichever value is read. */
static Return usable(const Device *device) {
    const char *name = gpus[device->gpu].name;
    Return result = driver();
    if (result) return result;
    while (number(name, "hang")) usleep(5000);
    if (number(name, "lost") || number(name, "gone")) return GPU_IS_LOST;
    return (Return)number(name, "error");
}

static Return value(const Device *device, const char *key, u64 *result) {
    char text[TEXT];
    Return state = usable(device);
    if (state) return state;
    if (!get(text, "%s.%s", device->name, key)) return device->slice < 0 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *result = strtoull(text, NULL, 0);
    return SUCCESS;
}

static Return unsigned_value(const Device *device, const char *key, unsigned *result) {
    u64 wide = 0;
    Return state = value(device, key, &wide);
    if (!state) *result = (unsigned)wide;
    return state;
}

static Return text_value(const Device *device, const char *key, char *result, unsigned length) {
    char text[TEXT];
    Return state = usable(device);
    if (state) return state;
    if (!get(text, "%s.%s", device->name, key)) return NOT_SUPPORTED;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(result, text);
    return SUCCESS;
}

Return nvmlInitWithFlags(unsigned flags) {
    char text[TEXT];
    Return result = (Return)number("driver", "init");
    (void)flags;
    if (number("driver", "down")) return DRIVER_NOT_LOADED;
    if (result) return result;
    if (sessions++) return SUCCESS;
    get(session, "driver.session");
    count = 0;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        snprintf(gpus[gpu].name, sizeof gpus[gpu].name, "gpu%d", gpu);
        gpus[gpu].gpu = gpu;
        gpus[gpu].slice = -1;
        for (int slice = 0; slice < MAX_SLICES; slice++) {
            Device *device = &slices[gpu][slice];
            snprintf(device->name, sizeof device->name, "gpu%d.slice%d", gpu, slice);
            device->gpu = gpu;
            device->slice = slice;
        }
        if (get(text, "gpu%d.uuid", gpu) && !number(gpus[gpu].name, "gone")) listed[count++] = gpu;
    }
    return SUCCESS;
}

Return nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    return SUCCESS;
}

const char *nvmlErrorString(Return error) {
    (void)error;
    return "an error that the binding does not know";
}

Return nvmlDeviceGetCount_v2(unsigned *result) {
    *result = (unsigned)count;
    return driver();
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **result) {
    Return state = driver();
    if (state) return state;
    if (index >= (unsigned)count) return INVALID_ARGUMENT;
    *result = &gpus[listed[index]];
    if (number((*result)->name, "denied")) return NO_PERMISSION;
    return usable(*result);
}

Return nvmlDeviceGetUUID(Device *device, char *result, unsigned length) {
    return text_value(device, "uuid", result, length);
}

Return nvmlDeviceGetName(Device *device, char *result, unsigned length) {
    return text_value(device, "name", result, length);
}

Return nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *result) {
    memset(result, 0, sizeof *result);
    return text_value(device, "pci", result->busId, sizeof result->busId);
}

Return nvmlDeviceGetUtilizationRates(Device *device, Utilization *result) {
    result->memory = 0;
    return unsigned_value(device, "utilization", &result->gpu);
}

Return nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *result) {
    Return state;
    if (number("driver", "old")) return FUNCTION_NOT_FOUND;
    if (result->version != (sizeof *result | 2 << 24)) return INVALID_ARGUMENT;
    state = value(device, "memory_total", &result->total);
    if (state) return state;
    result->reserved = number(device->name, "memory_reserved");
    result->free = number(device->name, "memory_free");
    result->used = result->total - result->reserved - result->free;
    return SUCCESS;
}

Return nvmlDeviceGetMemoryInfo(Device *device, Memory *result) {
    Return state = value(device, "memory_total", &result->total);
    if (state) return state;
    result->free = number(device->name, "memory_free");
    result->used = result->total - result->free;
    return SUCCESS;
}

Return nvmlDeviceGetTemperatureV(Device *device, Temperature *result) {
    if (number("driver", "old")) return FUNCTION_NOT_FOUND;
    if (result->version != (sizeof *result | 1 << 24)) return INVALID_ARGUMENT;
    return unsigned_value(device, "temperature", (unsigned *)&result->temperature);
}

Return nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *result) {
    (void)sensor;
    return unsigned_value(device, "temperature", result);
}

Return nvmlDeviceGetPowerUsage(Device *device, unsigned *result) { return unsigned_value(device, "power", result); }

Return nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *result) {
    return type == 1 ? unsigned_value(device, "clock", result) : INVALID_ARGUMENT;
}

Return nvmlDeviceGetMaxClockInfo(Device *device, unsigned type, unsigned *result) {
    return type == 1 ? unsigned_value(device, "max_clock", result) : INVALID_ARGUMENT;
}

Return nvmlDeviceGetCurrentClocksEventReasons(Device *device, u64 *result) {
    return number("driver", "old") ? FUNCTION_NOT_FOUND : value(device, "slowdowns", result);
}

Return nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, u64 *result) {
    return value(device, "slowdowns", result);
}

Return nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, u64 *result) {
    return type == 1 && counter == 0 ? value(device, "ecc", result) : INVALID_ARGUMENT;
}

Return nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failed) {
    *corrected = *uncorrected = *pending = 0;
    return unsigned_value(device, "remap_failed", failed);
}

Return nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    Return state = unsigned_value(device, "mig", current);
    *pending = *current;
    return state;
}

Return nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *result) {
    *result = MAX_SLICES;
    return usable(device);
}

Return nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **result) {
    char text[TEXT];
    Return state = usable(device);
    if (state) return state;
    if (index >= MAX_SLICES || !get(text, "%s.slice%u.uuid", device->name, index)) return NOT_FOUND;
    *result = &slices[device->gpu][index];
    return SUCCESS;
}

Return nvmlDeviceGetGpuInstanceId(Device *device, unsigned *result) {
    return unsigned_value(device, "instance", result);
}

Return nvmlEventSetCreate(EventSet **result) {
    Return state = driver();
    if (state) return state;
    *result = calloc(1, sizeof **result);
    return *result ? SUCCESS : MEMORY;
}

Return nvmlDeviceRegisterEvents(Device *device, u64 types, EventSet *set) {
    char text[TEXT];
    Return state = usable(device);
    if (state) return state;
    if ((get(text, "%s.events", device->name) && text[0] == '0') || types != XID) return NOT_SUPPORTED;
    set->gpu = device;
    get(set->seen, "%s.xid", device->name);
    return SUCCESS;
}

Return nvmlEventSetWait_v2(EventSet *set, EventData *result, unsigned milliseconds) {
    char text[TEXT], *instance;
    Return state = driver();
    (void)milliseconds;
    if (state) return state;
    get(text, "%s.xid", set->gpu->name);
    if (!text[0] || !strcmp(text, set->seen)) return TIMEOUT;
    strcpy(set->seen, text);
    instance = strchr(text, '@');
    result->device = set->gpu;
    result->type = XID;
    result->data = strtoull(text, NULL, 10);
    result->gpuInstance = instance ? (unsigned)atoi(instance + 1) : (unsigned)NO_INSTANCE;
    result->computeInstance = (unsigned)NO_INSTANCE;
    return SUCCESS;
}

Return nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}
