/* Ferroflash from C: attention, O = softmax(scale * Q * K^T) * V, on an NVIDIA GPU or on the CPU.
 *
 * Functions that can fail return a code, 0 where they succeeded; ferroflash_last_error says the rest in words. Every function may be
 * called from any thread; a device may be shared by any number of threads. docs/guides/from-c.md in the project explains more.
 */
#ifndef FERROFLASH_H
#define FERROFLASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Codes. */
#define FERROFLASH_OK 0
#define FERROFLASH_INVALID 1       /* the arguments are wrong, whatever the device */
#define FERROFLASH_UNSUPPORTED 2   /* the arguments are right, and no kernel computes them */
#define FERROFLASH_NO_DEVICE 3     /* no driver, no device, or no kernels for it */
#define FERROFLASH_OUT_OF_MEMORY 4 /* device memory ran out */
#define FERROFLASH_FAILED 5        /* the driver, the simulator or a file failed */

/* Devices. */
#define FERROFLASH_CPU 0       /* float32 loops; addresses are of host memory */
#define FERROFLASH_CUDA 1      /* addresses are of the device's memory, in its primary context (the CUDA runtime's) */
#define FERROFLASH_SIMULATOR 2 /* the kernels on a simulated GPU, slow; addresses are of host memory; not in every build */

/* Types of the elements of Q, K, V and O. */
#define FERROFLASH_F16 0
#define FERROFLASH_BF16 1
#define FERROFLASH_F32 2 /* on the CPU alone */

/* Orders of the dimensions of contiguous tensors. */
#define FERROFLASH_BHSD 0 /* [batch, heads, seqlen, head_dim] */
#define FERROFLASH_BSHD 1 /* [batch, seqlen, heads, head_dim] */

/* Masks. Query i of n sees key i + seqlen_k - n as its own. */
#define FERROFLASH_FULL 0
#define FERROFLASH_CAUSAL 1 /* no key after its own */
#define FERROFLASH_WINDOW 2 /* window_left keys before its own and window_right after it; -1: all */

/* A device that was opened. */
typedef struct ferroflash_device ferroflash_device;

/* A tensor. Strides are in elements; all three 0: contiguous in the order of `layout`. The last dimension is contiguous. */
typedef struct ferroflash_tensor {
    void *data;
    int64_t stride_batch;
    int64_t stride_head;
    int64_t stride_row;
} ferroflash_tensor;

/* One call. Set `size` to sizeof(ferroflash_forward_args) and everything unused to 0: later versions add fields at the end. */
typedef struct ferroflash_forward_args {
    size_t size;
    int32_t dtype;
    int32_t layout;
    int32_t mask;
    uint32_t batch;
    uint32_t heads_q; /* a multiple of heads_kv */
    uint32_t heads_kv;
    uint32_t seqlen_q;
    uint32_t seqlen_k;
    uint32_t head_dim;
    float scale; /* 0: 1 / sqrt(head_dim) */
    ferroflash_tensor q;
    ferroflash_tensor k;
    ferroflash_tensor v;
    ferroflash_tensor o;
    float *lse;                /* log-sum-exp of each row, [batch, heads_q, seqlen_q]; NULL: not wanted */
    const uint32_t *seqlens_k; /* keys of each sequence, [batch]; NULL: seqlen_k each */
    int64_t window_left;       /* read where mask is FERROFLASH_WINDOW */
    int64_t window_right;
    float softcap;      /* 0: none */
    uint32_t reserved;  /* 0 */
    const float *sinks; /* a logit a query head that takes part in the softmax without a value, [heads_q]; NULL: none */
} ferroflash_forward_args;

/* Opens a device. `ordinal` counts GPUs from 0. `folder` holds compiled kernels; NULL: those inside the library, or found as the
 * environment says. The device is closed by ferroflash_close. */
int32_t ferroflash_open(int32_t kind, uint32_t ordinal, const char *folder, ferroflash_device **device);

/* Closes a device once its work is done. NULL is ignored. */
void ferroflash_close(ferroflash_device *device);

/* Computes one call. On a GPU it is enqueued on `stream` (a CUstream or cudaStream_t; NULL: the default stream) and not waited for;
 * tensors must stay as they are until its work is done. The first call of a kind loads a kernel, and the first on a stream may allocate a
 * workspace. */
int32_t ferroflash_forward(ferroflash_device *device, const ferroflash_forward_args *args, void *stream);

/* Loads the kernels of a call and says how many bytes of workspace it lacks on this stream. After ferroflash_give_workspace with as
 * many, the call allocates nothing and can be captured into a CUDA graph. Data addresses may be NULL. */
int32_t ferroflash_missing_workspace(ferroflash_device *device, const ferroflash_forward_args *args, void *stream,
                                     uint64_t *bytes);

/* Gives a stream device memory to work in, at a multiple of 256 bytes, until the device is closed or the stream is given other memory. */
int32_t ferroflash_give_workspace(ferroflash_device *device, void *stream, void *memory, uint64_t bytes);

/* What would be launched for a call, and why, in words: as much as fits in `length` bytes, ended by NUL. */
int32_t ferroflash_explain(ferroflash_device *device, const ferroflash_forward_args *args, char *text, size_t length);

/* What went wrong in this thread's last call that failed; "" before any did. Valid until its next call. */
const char *ferroflash_last_error(void);

/* The library's version, "0.1.0". */
const char *ferroflash_version(void);

#ifdef __cplusplus
}
#endif

#endif
