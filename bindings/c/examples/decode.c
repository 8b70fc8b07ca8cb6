/* Decoding with a cache in pages, a token of two sequences at a time, on GPU 0, or where there is none on the CPU:
 * cc decode.c -lferroflash_c -lm -ldl && ./a.out
 * The CUDA driver is opened by hand, so that nothing of CUDA is needed to compile this; a program with the CUDA runtime has cudaMalloc. */
#include "ferroflash.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 2, HEADS = 4, HEAD_DIM = 64, PAGE = 16, PAGES = 6, ENTRIES = 2, ROW = HEADS * HEAD_DIM, STEPS = 20 };

/* Memory of the device: the driver's functions, or all NULL on the CPU. */
static int (*mem_alloc)(unsigned long long *, size_t);
static int (*to_device)(unsigned long long, const void *, size_t);
static int (*to_host)(void *, unsigned long long, size_t);

static int driver_is_there(void)
{
    const char *name = getenv("FERROFLASH_LIBCUDA");
    void *driver = dlopen(name ? name : "libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set_current)(void *), device;
    if (!driver)
        return 0;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&get = dlsym(driver, "cuDeviceGet");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&mem_alloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&to_device = dlsym(driver, "cuMemcpyHtoD_v2");
    *(void **)&to_host = dlsym(driver, "cuMemcpyDtoH_v2");
    return !init(0) && !get(&device, 0) && !retain(&context, device) && !set_current(context);
}

static void failed(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *device_copy(const void *from, size_t bytes, int on_gpu)
{
    unsigned long long address;
    void *memory = on_gpu ? NULL : malloc(bytes);
    if (!on_gpu)
        return memcpy(memory, from, bytes);
    if (mem_alloc(&address, bytes) || to_device(address, from, bytes))
        failed("device memory", "the driver refused");
    memcpy(&memory, &address, sizeof memory);
    return memory;
}

static void copy(void *to, const void *from, size_t bytes, int on_gpu, int back)
{
    unsigned long long address = 0;
    memcpy(&address, back ? (const void *)&from : (const void *)&to, sizeof from);
    if (!on_gpu)
        memcpy(to, from, bytes);
    else if (back ? to_host(to, address, bytes) : to_device(address, from, bytes))
        failed("copy", "the driver refused");
}

/* bfloat16 is the upper half of float. */
static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float wide(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static void fill(uint16_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = bf16((float)rand() / RAND_MAX - 0.5f);
}

int main(void)
{
    static uint16_t q[SEQUENCES * ROW], o[SEQUENCES * ROW], k[STEPS][SEQUENCES * ROW], v[STEPS][SEQUENCES * ROW], pool[PAGES * PAGE * ROW];
    int32_t table[SEQUENCES * ENTRIES] = {4, 1, 2, 5};
    uint32_t lengths[SEQUENCES] = {0, 0};
    int on_gpu = driver_is_there();
    ferroflash_device *device;
    ferroflash_append_args append = {0};
    ferroflash_forward_args args = {0};
    double worst = 0;

    if (ferroflash_open(on_gpu ? FERROFLASH_CUDA : FERROFLASH_CPU, 0, NULL, &device))
        failed("open", ferroflash_last_error());
    append.size = sizeof append;
    append.dtype = FERROFLASH_BF16;
    append.layout = FERROFLASH_BSHD;
    append.batch = SEQUENCES;
    append.heads_kv = HEADS;
    append.head_dim = HEAD_DIM;
    append.tokens = 1;
    append.new_k.data = device_copy(k[0], sizeof k[0], on_gpu);
    append.new_v.data = device_copy(v[0], sizeof v[0], on_gpu);
    append.k.data = device_copy(pool, sizeof pool, on_gpu);
    append.v.data = device_copy(pool, sizeof pool, on_gpu);
    append.seqlens_k = device_copy(lengths, sizeof lengths, on_gpu);
    append.seqlens_after = device_copy(lengths, sizeof lengths, on_gpu);
    append.block_table = device_copy(table, sizeof table, on_gpu);
    append.table_entries = ENTRIES;
    append.page_size = PAGE;
    append.page_count = PAGES;

    args.size = sizeof args;
    args.dtype = FERROFLASH_BF16;
    args.layout = FERROFLASH_BSHD;
    args.batch = SEQUENCES;
    args.heads_q = args.heads_kv = HEADS;
    args.seqlen_q = 1;
    args.head_dim = HEAD_DIM;
    args.q.data = device_copy(q, sizeof q, on_gpu);
    args.o.data = device_copy(o, sizeof o, on_gpu);
    args.k = append.k;
    args.v = append.v;
    args.block_table = append.block_table;
    args.table_entries = ENTRIES;
    args.page_size = PAGE;
    args.page_count = PAGES;

    for (int step = 0; step < STEPS; step++) {
        fill(q, SEQUENCES * ROW);
        fill(k[step], SEQUENCES * ROW);
        fill(v[step], SEQUENCES * ROW);
        copy(args.q.data, q, sizeof q, on_gpu, 0);
        copy(append.new_k.data, k[step], sizeof k[step], on_gpu, 0);
        copy(append.new_v.data, v[step], sizeof v[step], on_gpu, 0);
        if (ferroflash_append(device, &append, NULL))
            failed("append", ferroflash_last_error());
        args.seqlens_k = append.seqlens_after;
        if (ferroflash_forward(device, &args, NULL))
            failed("forward", ferroflash_last_error());
        /* The lengths after are those before the next token. */
        args.seqlens_k = append.seqlens_k;
        append.seqlens_k = append.seqlens_after;
        append.seqlens_after = (uint32_t *)args.seqlens_k;
        copy(o, args.o.data, sizeof o, on_gpu, 1);

        for (int row = 0; row < SEQUENCES * HEADS; row++) {
            double weights[STEPS], sum = 0;
            for (int key = 0; key <= step; key++) {
                double score = 0;
                for (int i = 0; i < HEAD_DIM; i++)
                    score += (double)wide(q[row * HEAD_DIM + i]) * wide(k[key][row * HEAD_DIM + i]);
                sum += weights[key] = exp(score / sqrt(HEAD_DIM));
            }
            for (int i = 0; i < HEAD_DIM; i++) {
                double expected = 0;
                for (int key = 0; key <= step; key++)
                    expected += weights[key] / sum * wide(v[key][row * HEAD_DIM + i]);
                worst = fmax(worst, fabs(expected - wide(o[row * HEAD_DIM + i])));
            }
        }
    }
    printf("%d tokens of %d sequences on %s: O is off by at most %.4f\n", STEPS, SEQUENCES, on_gpu ? "a GPU" : "the CPU", worst);
    ferroflash_close(device);
    return worst < 0.01 ? 0 : 1;
}
