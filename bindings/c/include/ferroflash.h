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

/* Dimensions of a bias that are 1, as all have the same: to be added up. */
#define FERROFLASH_SHARED_BATCH 1
#define FERROFLASH_SHARED_HEADS 2
#define FERROFLASH_SHARED_QUERIES 4

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
    /* Sequences behind one another: the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] of Q are sequence i's, [batch + 1]. seqlen_q is then
     * the rows of all, strides of batches are not read, and max_seqlen_q is the most that a sequence has (0: not known). So of K. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    uint32_t max_seqlen_q;
    uint32_t max_seqlen_k;
    /* K and V in pages [page_count, page_size rows]: page j of sequence i is block_table[i * table_entries + j]. seqlen_k is not read;
     * stride_batch goes from page to page. NULL: no pages; page_size is then 0. */
    const int32_t *block_table;
    uint32_t table_entries;
    uint32_t page_size;
    uint32_t page_count;
    uint32_t attention_chunk;  /* keys of a chunk, outside of which no query sees a key; 0: none */
    const float *alibi_slopes; /* [heads_q], or with alibi_by_batch [batch, heads_q]; NULL: none */
    uint32_t alibi_by_batch;
    uint32_t tree_keys;        /* of so many last keys a query sees those whose bit it has */
    const uint32_t *tree_bits; /* [batch, seqlen_q, (tree_keys + 31) / 32]; NULL, and tree_keys 0: no tree */
    const uint32_t *intervals; /* the first key that each query sees and the one past its last, [batch, seqlen_q, 2]; NULL: none */
    /* What is added to each score after the scale, of type dtype: contiguous [batch, heads_q, seqlen_q, seqlen_k], of which the
     * dimensions that bias_shared names are 1. NULL: nothing. */
    const void *bias;
    uint32_t bias_shared;
    uint32_t head_dim_v; /* of V and O; 0: head_dim */
    /* Dropout: a weight of the softmax is left out with probability dropout_p, the others are multiplied with 1 / (1 - dropout_p). Which ones
     * follows from seed and offset alone, as in FlashAttention-2: calls of a seed whose offsets are batch * heads_q * 32 apart have no random
     * numbers in common. LSE is that of all weights. A graph leaves out the same at every replay. 0: none. */
    float dropout_p;
    uint32_t reserved2; /* 0 */
    uint64_t dropout_seed;
    uint64_t dropout_offset;
} ferroflash_forward_args;

/* The gradients of a call, from its O and LSE. Set `size` to sizeof(ferroflash_backward_args). */
typedef struct ferroflash_backward_args {
    size_t size;
    const ferroflash_forward_args *forward; /* as it was computed: o and lse are read, and lse must be there */
    ferroflash_tensor d_o;                  /* the gradient of O */
    ferroflash_tensor d_q;                  /* written, shaped as Q, K and V */
    ferroflash_tensor d_k;
    ferroflash_tensor d_v;
    const float *d_lse; /* the gradient of LSE, as LSE lies; NULL: 0 */
    float *d_sinks;     /* the gradient of the sinks, [heads_q]; NULL: not wanted */
    /* Bytes of dS that kernels may keep in their workspace: 1 for none of it, which is slower; 0: 2.25 GiB. */
    uint64_t ds_bytes_max;
    void *d_bias; /* the gradient of the bias, of type dtype, as the bias lies; NULL: not wanted */
} ferroflash_backward_args;

/* New keys and values into a cache, and rotations (RoPE) of them and of Q. `size` is sizeof(ferroflash_append_args). */
typedef struct ferroflash_append_args {
    size_t size;
    int32_t dtype;
    int32_t layout;
    uint32_t batch;
    uint32_t heads_q; /* read where q is given */
    uint32_t heads_kv;
    uint32_t seqlen_q; /* read where q is given */
    uint32_t seqlen_k; /* rows of the cache that a sequence has; not read with pages */
    uint32_t head_dim;
    uint32_t tokens; /* new ones of each sequence; with cu_seqlens_new, of all */
    uint32_t reserved;
    ferroflash_tensor new_k; /* [batch, tokens, heads_kv, head_dim], in `layout` */
    ferroflash_tensor new_v;
    ferroflash_tensor k; /* the cache */
    ferroflash_tensor v;
    ferroflash_tensor q;         /* rotated into rotated_q; data NULL: no Q */
    ferroflash_tensor rotated_q; /* apart from q */
    const uint32_t *seqlens_k;   /* keys of each sequence before, [batch] */
    uint32_t *seqlens_after;     /* after, [batch], apart from seqlens_k; NULL: not wanted */
    const int32_t *cu_seqlens_new;
    const int32_t *block_table; /* as in ferroflash_forward_args */
    uint32_t table_entries;
    uint32_t page_size;
    uint32_t page_count;
    uint32_t rotary_dim; /* elements that are rotated, the first ones: a multiple of 16; 0: none */
    const void *rotary_cos; /* [rotary_positions, rotary_dim / 2], of type dtype */
    const void *rotary_sin;
    uint32_t rotary_positions;
    uint32_t rotary_interleaved;   /* 1: elements 2i and 2i + 1 belong together; 0: i and i + rotary_dim / 2 */
    uint32_t rotary_each_query;    /* 1: query i is rotated by the position i after the first new key's; 0: all by that */
    uint32_t reserved2;            /* 0 */
    const uint32_t *rotary_starts; /* position of each sequence's first new key, [batch]; NULL: seqlens_k */
} ferroflash_append_args;

/* O and LSE of `states` calls over disjoint keys, to be those of one call. `size` is sizeof(ferroflash_merge_args). */
typedef struct ferroflash_merge_args {
    size_t size;
    int32_t partial_dtype; /* of the states' O */
    int32_t dtype;         /* of O: the same, or any where partial_dtype is FERROFLASH_F32 */
    int32_t layout;
    uint32_t states;
    uint32_t batch;
    uint32_t heads;
    uint32_t seqlen;
    uint32_t head_dim;
    ferroflash_tensor partial_o; /* of the first state */
    const void *next_o;          /* of the second; each further one is as far behind the one before it */
    const float *partial_lse;    /* [batch, heads, seqlen] of the first state */
    const float *next_lse;
    ferroflash_tensor o;
    float *lse; /* [batch, heads, seqlen]; NULL: not wanted */
} ferroflash_merge_args;

/* Opens a device. `ordinal` counts GPUs from 0. `folder` holds compiled kernels; NULL: those inside the library, or found as the
 * environment says. The device is closed by ferroflash_close. */
int32_t ferroflash_open(int32_t kind, uint32_t ordinal, const char *folder, ferroflash_device **device);

/* Closes a device once its work is done. NULL is ignored. */
void ferroflash_close(ferroflash_device *device);

/* Computes one call. On a GPU it is enqueued on `stream` (a CUstream or cudaStream_t; NULL: the default stream) and not waited for;
 * tensors must stay as they are until its work is done. The first call of a kind loads a kernel, and the first on a stream may allocate a
 * workspace. */
int32_t ferroflash_forward(ferroflash_device *device, const ferroflash_forward_args *args, void *stream);

/* Computes dQ, dK and dV of one call, as ferroflash_forward on a GPU: enqueued. The same bits on every run. */
int32_t ferroflash_backward(ferroflash_device *device, const ferroflash_backward_args *args, void *stream);

/* Writes new keys and values into a cache behind those that it has, rotated, and Q rotated, as ferroflash_forward on a GPU: enqueued. */
int32_t ferroflash_append(ferroflash_device *device, const ferroflash_append_args *args, void *stream);

/* Merges O and LSE of several calls over disjoint keys, as ferroflash_forward on a GPU: enqueued. States that saw no key (LSE of minus
 * infinity) leave no trace. */
int32_t ferroflash_merge(ferroflash_device *device, const ferroflash_merge_args *args, void *stream);

/* Loads the kernels of a call and says how many bytes of workspace it lacks on this stream. After ferroflash_give_workspace with as
 * many, the call allocates nothing and can be captured into a CUDA graph. Data addresses may be NULL. */
int32_t ferroflash_missing_workspace(ferroflash_device *device, const ferroflash_forward_args *args, void *stream,
                                     uint64_t *bytes);

/* The same of ferroflash_backward, whose kernels are loaded by its first call. */
int32_t ferroflash_missing_backward_workspace(ferroflash_device *device, const ferroflash_backward_args *args, void *stream,
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
