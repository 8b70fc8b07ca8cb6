/* Attention of one query over two keys, on the GPU's stand-in, the CPU: cc attention.c -lferroflash_c -lm && ./a.out */
#include "ferroflash.h"

#include <math.h>
#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ferroflash_last_error());
    return 1;
}

int main(void)
{
    /* [batch 1, heads 1, seqlen, head_dim 4]. The query looks along the first key. */
    float q[4] = {2, 0, 0, 0};
    float k[8] = {1, 0, 0, 0, 0, 1, 0, 0};
    float v[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float o[4], lse;
    ferroflash_device *device = NULL;
    ferroflash_forward_args args = {0};

    /* FERROFLASH_CUDA with device addresses and FERROFLASH_F16 or FERROFLASH_BF16 is all that changes on a GPU. */
    if (ferroflash_open(FERROFLASH_CPU, 0, NULL, &device) != FERROFLASH_OK)
        return failed("open");

    args.size = sizeof args;
    args.dtype = FERROFLASH_F32;
    args.batch = args.heads_q = args.heads_kv = args.seqlen_q = 1;
    args.seqlen_k = 2;
    args.head_dim = 4;
    args.q.data = q;
    args.k.data = k;
    args.v.data = v;
    args.o.data = o;
    args.lse = &lse;
    if (ferroflash_forward(device, &args, NULL) != FERROFLASH_OK)
        return failed("forward");

    /* The scores are 2 * 1 / sqrt(4) = 1 and 0. */
    double first = exp(1) / (exp(1) + 1);
    for (int i = 0; i < 4; i++) {
        double expected = first * v[i] + (1 - first) * v[4 + i];
        printf("O[%d] = %.6f, expected %.6f\n", i, o[i], expected);
        if (fabs(o[i] - expected) > 1e-5)
            return 1;
    }
    printf("LSE = %.6f, expected %.6f\n", lse, log(exp(1) + 1));
    if (fabs(lse - log(exp(1) + 1)) > 1e-5)
        return 1;

    /* What is wrong is said, with its values. */
    args.heads_q = 3;
    args.heads_kv = 2;
    if (ferroflash_forward(device, &args, NULL) != FERROFLASH_INVALID)
        return 1;
    printf("refused: %s\n", ferroflash_last_error());
    ferroflash_close(device);
    return 0;
}
