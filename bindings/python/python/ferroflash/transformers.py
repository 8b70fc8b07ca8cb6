"""Ferroflash as an attention implementation of Hugging Face transformers."""

import functools
import sys
import weakref

from ._call import Call
from .functional import _computed, as_bias, flash_attn_func, flash_attn_varlen_func, under_a_mask


def register(name="ferro"):
    """Registers the attention function and its mask function under a name, for `attn_implementation=` and `set_attn_implementation`.

    The name must not contain "flash": transformers takes such names for packages or kernels that it loads by itself. Returns the name.
    """
    if "flash" in name:
        raise ValueError(f'name {name!r} contains "flash", which transformers takes for a package of its own: choose another, as "ferro"')
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    # Without a mask function the model would get no mask, and attend to padding.
    AttentionMaskInterface.register(name, attention_mask)
    return name


def attention_mask(**given):
    """The mask of a model's layers, by the arguments of transformers' mask functions.

    A causal mask, a causal window or none, with padding at most, is the padding [batch, keys], or None where there is none: the rest is
    for `attention_forward`'s `is_causal` and `sliding_window` to say. Any other mask (chunks, packed sequences, blocks of images, caches
    with room behind the keys, a model's own) is the range of keys of each query, int32 [batch, 1, queries, 2], or bool
    [batch, 1, queries, keys] where a query sees no range, or where the question would break a compiled graph. Models that work on their
    masks themselves get what they know: bool, or 0 and the least number.
    """
    import torch
    from transformers.masking_utils import eager_mask, flash_attention_mask, sdpa_mask

    leaves_it, takes_bool = _supported(type(given.get("config")))
    # An exported program cannot ask whether there is padding.
    is_exporting = getattr(torch.compiler, "is_exporting", bool)()
    if leaves_it and _is_plain(**given) and not (is_exporting and given.get("attention_mask") is not None):
        return flash_attention_mask(**given)
    whole = {**given, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if not leaves_it and not takes_bool:
        return eager_mask(**whole)
    seen = sdpa_mask(**whole)
    ranges = _ranges(seen) if leaves_it and not torch.compiler.is_compiling() else None
    return seen if ranges is None else ranges


def _ranges(seen):
    """The range of keys of each query, int32 [..., queries, 2], of a bool mask; None where a query sees no range."""
    import torch

    count, keys, octets = seen.sum(-1), seen.shape[-1], seen.to(torch.uint8)
    begin = octets.argmax(-1)
    end = torch.where(count == 0, begin, keys - octets.flip(-1).argmax(-1))
    return torch.stack([begin, end], -1).int() if bool((end - begin == count).all()) else None


@functools.cache
def _supported(config):
    """Whether the models of a class of configs leave masks to the attention function, as flash-attn's needs it, which takes padding and words
    like "causal" instead; and whether they take bool, as PyTorch's does. Who says the first without the second or that other functions than
    transformers' own may stand there has layers that do not know that they are causal."""
    from transformers import PreTrainedModel

    for kind in config.__mro__:
        module = sys.modules.get(kind.__module__.replace("configuration_", "modeling_"))
        models = [x for x in vars(module).values() if isinstance(x, type) and issubclass(x, PreTrainedModel)] if module else []
        models = [model for model in models if model.__module__ == module.__name__]
        if models:
            by_flash, by_sdpa, by_others = (
                all(getattr(model, f"_supports_{what}", False) for model in models) for what in ("flash_attn", "sdpa", "attention_backend")
            )
            return by_flash and (by_sdpa or by_others), by_sdpa
    return False, True


def _is_plain(
    mask_function=None, q_length=None, kv_length=0, q_offset=0, kv_offset=0, attention_mask=None, config=None, **others
):
    """Whether a mask is what `attention_forward` makes of padding alone, the last query being at the last key."""
    from transformers import masking_utils

    if q_length is None or not isinstance(q_offset, int) or not isinstance(kv_offset, int):
        return False
    if attention_mask is not None and attention_mask.shape[-1] != kv_offset + kv_length:
        return False
    if mask_function is masking_utils.bidirectional_mask_function:
        return True
    if getattr(config, "use_bidirectional_attention", None):
        # Its layers say that they are not causal whatever the model's mask is (PaliGemma's is causal behind its prompt).
        return False
    if q_offset + q_length != kv_offset + kv_length:
        return False
    # A causal window is made of these two, the first with its size; nothing else tells it from other masks.
    parts = [cell.cell_contents for cell in getattr(mask_function, "__closure__", None) or ()]
    window = masking_utils.sliding_window_causal_mask_function(1)
    if mask_function.__code__ is window.__code__ and len(parts) == 1 and len(parts[0]) == 2:
        overlay, mask_function = parts[0]
        if overlay.__code__ is not masking_utils.sliding_window_overlay(1).__code__:
            return False
    return mask_function is masking_utils.causal_mask_function


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    sinks=None,
    position_bias=None,
    indices=None,
    block_indices=None,
    output_attentions=False,
    cu_seq_lens_q=None,
    cu_seq_lens_k=None,
    max_length_q=None,
    max_length_k=None,
    **kwargs,
):
    """Q, K and V are [batch, heads, seqlen, head_dim]; O is [batch, seqlen, heads, head_dim]. `attention_mask` is what the function of
    that name returns, or of the caller's: padding [batch, keys], or [batch, heads or 1, queries, keys], bool or a bias."""
    if output_attentions:
        raise NotImplementedError("output_attentions is not supported: the probabilities are never stored")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    config = getattr(module, "config", None)
    if getattr(config, "is_causal", None) is False:
        causal = False
    if attention_mask is None and is_causal is None and config is not None and _supported(type(config)) == (False, False):
        # Of models that know masks alone, no mask hides nothing (BridgeTower's layers over images say that they are causal).
        causal = False
    # transformers' sliding window counts the query's own key; where it has two sides it does not.
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0) if causal else (sliding_window, sliding_window)
    options = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": causal,
        "window_size": window,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float().contiguous(),
    }
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        rows = (tensor.flatten(0, 1) for tensor in (q, k, v))
        lengths = cu_seq_lens_q.int(), cu_seq_lens_k.int(), max_length_q or q.shape[1], max_length_k or k.shape[1]
        return flash_attn_varlen_func(*rows, *lengths, **options).unflatten(0, q.shape[:2]), None
    if indices is not None or block_indices is not None:
        chosen, attention_mask = _chosen(module, q, k, indices, block_indices), _whole(q, k, attention_mask, options)
        is_bias = attention_mask.is_floating_point()
        attention_mask = attention_mask + as_bias(chosen, attention_mask) if is_bias else attention_mask & chosen
    if position_bias is not None or sinks is not None:
        return _biased(q, k, v, position_bias, sinks, attention_mask, options), None
    if attention_mask is None:
        return flash_attn_func(q, k, v, **options), None
    if attention_mask.dim() == 4:
        return _under_a_model_mask(q, k, v, attention_mask, options), None
    if attention_mask.dim() != 2:
        raise NotImplementedError(f"attention_mask of {attention_mask.dim()} dimensions is not supported: [batch, keys] and 4 are")
    return _without_padding(q, k, v, attention_mask.bool(), options), None


def _under_a_model_mask(q, k, v, mask, options):
    """Attention where a mask says for each query and key, or by a range for each query, what is seen, and nothing else does."""
    import torch

    options = options | dict(causal=False, window_size=(-1, -1))
    mask = _read(mask, k.shape[1])
    if mask.dtype == torch.int32:
        scale, softcap, sinks = (options[name] for name in ("softmax_scale", "softcap", "sinks"))
        call = Call(q, k, v, scale, softcap=softcap, sinks=sinks)
        call.dropout_p = float(options["dropout_p"])
        call.intervals = mask[:, 0].expand(q.shape[0], q.shape[1], -1).contiguous()
        return _computed(call)[0]
    return under_a_mask(q, k, v, mask, **options)


def _read(mask, keys):
    """What a mask of these keys is: ranges [..., queries, 2] in int32, bool, or a bias. Asked once of one that all layers share, as the answer
    waits for the GPU; a graph, which cannot wait, takes it for what its type says."""
    import torch

    if mask.dtype == torch.int32 and mask.shape[1] == 1 and mask.shape[3] == 2:
        return mask
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise NotImplementedError(f"attention_mask of {mask.dtype} is not supported: bool is, and biases are")
    if torch.compiler.is_compiling():
        return mask[..., :keys]
    # What was made in inference mode does not say whether it was changed since.
    state = None if mask.is_inference() else (mask._version, keys)
    known, before, found = _last[0]
    if known() is mask and before == state is not None:
        return found
    found = mask[..., :keys]
    if found.dtype != torch.bool:
        hidden = found <= torch.finfo(found.dtype).min / 2
        found = ~hidden if bool((hidden | (found == 0)).all()) else found
    if found.dtype == torch.bool and found.shape[1] == 1:
        ranges = _ranges(found)
        found = found if ranges is None else ranges
    _last[0] = weakref.ref(mask), state, found
    return found


# A mask, its version and keys, and what it is.
_last = [(lambda: None, None, None)]


def _biased(q, k, v, bias, sinks, mask, options):
    """Attention with a bias, [batch, heads, queries, keys] or 1, and a sink for each query, [batch, heads, queries, 1], under a mask of any
    kind. A sink is the bias of one more key, which is 0, as its value is."""
    import torch

    queries, keys = q.shape[1], k.shape[1]
    bias = q.new_zeros(1, 1, 1, keys) if bias is None else bias[..., -keys:]
    mask = _whole(q, k, mask, options)
    bias = bias + (mask if mask.is_floating_point() else as_bias(mask, bias))
    if sinks is not None:
        bias = torch.cat([bias.expand(q.shape[0], q.shape[2], queries, keys), sinks.to(bias.dtype)], -1)
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k, v))
    return flash_attn_func(q, k, v, attn_bias=bias, **options | dict(causal=False, window_size=(-1, -1)))


def _whole(q, k, mask, options):
    """A mask of any kind, with what the options hide where it is none of four dimensions, as bool or a bias [batch, heads, queries, keys] or 1."""
    import torch

    queries, keys = q.shape[1], k.shape[1]
    at = torch.arange(keys, device=q.device)
    if mask is not None and mask.dim() == 4:
        return (mask[..., :1] <= at) & (at < mask[..., 1:]) if mask.dtype == torch.int32 else mask[..., :keys]
    distance = at - torch.arange(keys - queries, keys, device=q.device)[:, None]
    left, right = options["window_size"]
    right = 0 if options["causal"] else right
    seen = (distance >= (-left if left >= 0 else -keys)) & (distance <= (right if right >= 0 else keys))
    return seen[None, None] if mask is None else seen & mask[:, None, None, -keys:].bool()


def _chosen(module, q, k, indices, block_indices):
    """Which keys a model's index chose for each query, bool [batch, heads or 1, queries, keys]; negative numbers choose none."""
    keys, size = k.shape[1], 1
    if indices is None:
        indices, size = block_indices, getattr(getattr(module, "indexer", None), "block_size", None)
        if size is None:
            raise NotImplementedError("block_indices are supported where the layer's indexer has a block_size")
    else:
        indices = indices.unsqueeze(1)
    blocks = -(-keys // size)
    indices = indices.long().masked_fill(indices < 0, blocks)
    chosen = indices.new_zeros((*indices.shape[:-1], blocks + 1)).scatter(-1, indices, 1)[..., :blocks].bool()
    chosen = chosen.repeat_interleave(size, -1)[..., :keys]
    return chosen if chosen.shape[1] == 1 else chosen.repeat_interleave(q.shape[2] // chosen.shape[1], 1)


def _without_padding(q, k, v, mask, options):
    """Attention of the rows that are no padding, put back in their places; rows of padding are 0. The queries are the last of the keys, or
    where no query has a place of its own, all of them. A window counts the keys that lie between: where padding may be among them, rows stay
    in their places and a mask says the rest."""
    import torch

    keys = mask[:, -k.shape[1] :]
    if keys.shape[1] != k.shape[1]:
        raise NotImplementedError(f"attention_mask has {keys.shape[1]} keys, K {k.shape[1]}: a cache with room behind its keys needs 4 dimensions")
    has_window = options["window_size"] != (-1, -1)
    if has_window and (torch.compiler.is_compiling() or _has_gaps(mask)):
        return _under_a_model_mask(q, k, v, _whole(q, k, keys, options), options)
    has_places = options["causal"] or has_window
    queries = mask[:, -q.shape[1] :] if has_places else mask.new_ones(q.shape[:2])

    def ends(rows):
        lengths = rows.sum(1)
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()

    rows = flash_attn_varlen_func(q[queries], k[keys], v[keys], ends(queries), ends(keys), q.shape[1], k.shape[1], **options)
    # Of O's type, which under autocast is not Q's.
    o = rows.new_zeros((*q.shape[:-1], v.shape[-1]))
    o[queries] = rows
    return o


def _has_gaps(mask):
    """Whether padding [batch, keys] lies between keys. Asked once of a mask that all layers share, as the answer waits for the GPU."""
    state = None if mask.is_inference() else mask._version
    known, before, found = _last_padding[0]
    if known() is mask and before == state is not None:
        return found
    found = bool((mask[:, 1:] & ~mask[:, :-1]).sum(1).add(mask[:, 0]).gt(1).any())
    _last_padding[0] = weakref.ref(mask), state, found
    return found


# A mask of padding, its version, and whether it has gaps.
_last_padding = [(lambda: None, None, None)]
