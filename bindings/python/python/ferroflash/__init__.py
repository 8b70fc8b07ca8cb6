"""Flash attention on NVIDIA GPUs, and on the CPU for tests, under flash-attn's names and arguments.

Tensors are PyTorch's, NumPy's, or any that speak DLPack; results are of the kind that Q is. CPU tensors are computed on the CPU. What is not
supported is refused by name with NotImplementedError; no argument is ignored.
"""

from ._devices import use_cpu_device, use_ds_bytes_max, use_kernels
from ._native import __version__
from .functional import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    merge_states,
    plan,
)
from .sdpa import scaled_dot_product_attention

__all__ = [
    "__version__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "merge_states",
    "plan",
    "register",
    "scaled_dot_product_attention",
    "use_cpu_device",
    "use_ds_bytes_max",
    "use_kernels",
]


def register(name="ferro"):
    """Adds an attention implementation to Hugging Face transformers; see ferroflash.transformers.register."""
    from .transformers import register as register_name

    return register_name(name)
