"""What PyTorch's FlopCounterMode counts of the operators, as of its own attention: products of whole sequences, whatever a mask hides."""

from ._tensors import torch


def register():
    """Gives the formulas to PyTorch's registry, and to the modes that count now: each has copied the registry when it was made. Not by an import,
    which would take half a second that few programs want."""
    counter = getattr(torch.utils, "flop_counter", None)
    if counter is None:
        return
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    counters = [getattr(mode, "counter", None) for mode in modes]
    for registry in (counter.flop_registry, *(found.flop_registry for found in counters if hasattr(found, "flop_registry"))):
        registry.update({getattr(torch.ops.ferroflash, name): formula for name, formula in _FORMULAS.items()})


def _forward(q, k, v, *arguments, **_):
    return 2 * _pairs(q, k, arguments[2:]) * (q.shape[-1] + v.shape[-1])


def _backward(d_o, d_lse, q, k, v, o, lse, *arguments, **_):
    # S, dQ and dK; dP and dV.
    return 2 * _pairs(q, k, arguments[2:]) * (3 * q.shape[-1] + 2 * v.shape[-1])


def _pairs(q, k, operands):
    """How many pairs of a query and a key there are, over all heads. Of tensors without contents all sequences are as long as the longest."""
    cu_seqlens_q, cu_seqlens_k, used_k, _, _, block_table, _, _, _, _, _, _, _, longest_q, longest_k, *_ = operands
    is_known = not (q.is_meta or torch._subclasses.fake_tensor.is_fake(q))
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    queries, keys = q.shape[-3], k.shape[-3] * (1 if block_table is None else block_table.shape[-1])
    if cu_seqlens_q is not None:
        queries = cu_seqlens_q.diff().long() if is_known else longest_q
    if used_k is not None and is_known:
        keys = used_k
    elif cu_seqlens_k is not None:
        keys = cu_seqlens_k.diff().long() if is_known else longest_k
    pairs = queries * keys
    return q.shape[-2] * (int(pairs.sum()) if isinstance(pairs, torch.Tensor) else batch * pairs)


_FORMULAS = {"forward": _forward, "dropout": _forward, "backward": _backward, "dropout_backward": _backward}
