"""The call as a PyTorch operator with a gradient: torch.compile takes it as one opaque step without a graph break, and so does autograd."""

from . import _again, _cache, _flops, _gradients
from ._call import Call, compute, numbers, packed
from ._tensors import Torch, torch

# What both passes are given: tensors, then numbers.
_TENSORS = (
    "Tensor q, Tensor k, Tensor v, {} Tensor? alibi_slopes, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k,"
    " Tensor? used_k, Tensor? first_k, Tensor? entry_k, Tensor? block_table, Tensor? intervals, Tensor? tree, Tensor? attn_bias"
)
_NUMBERS = (
    "float? scale, bool causal, int left, int right, SymInt longest_q, SymInt longest_k, int chunk, SymInt tree_keys, float softcap, int num_splits"
)
_BACKWARD = f"Tensor d_o, Tensor? d_lse, {_TENSORS.format('Tensor o, Tensor lse,')}, {_NUMBERS}, bool of_sinks, bool of_bias"
_SCHEMAS = {
    # Without `lse` and without `gradients`, which need it, LSE is empty.
    "forward": f"{_TENSORS.format('')}, {_NUMBERS}, bool lse, bool gradients) -> (Tensor, Tensor)",
    # Without `of_sinks` the fourth is empty, without `of_bias` the fifth.
    "backward": f"{_BACKWARD}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    # The third result, and what its gradient takes, are seed and offset.
    "dropout": f"{_TENSORS.format('')}, {_NUMBERS}, bool lse, bool gradients, float p) -> (Tensor, Tensor, Tensor)",
    "dropout_backward": f"{_BACKWARD}, float p, Tensor seeds) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "append": "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k, Tensor v, Tensor used_k, Tensor? entry_k,"
    " Tensor? block_table, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? rotary_seqlens, Tensor? cu_seqlens_q,"
    " Tensor? cu_seqlens_new, bool interleaved, bool each_query) -> (Tensor, Tensor)",
}


def append(call):
    """Q as it is rotated and the lengths after, through the operator where PyTorch watches, and directly otherwise."""
    if not _again.is_watched(call.q, call.k, call.v, call.rotary_cos, call.rotary_sin):
        for cache in (call.k_cache, call.v_cache):
            # As any operation in place, so that a gradient which needs what the cache held says that it is gone.
            if cache is not None and not cache.is_inference():
                torch.autograd.graph.increment_version(cache)
        return _cache.compute(Torch(torch), call)
    rotated, lengths = torch.ops.ferroflash.append(*[getattr(call, name) for name in _cache.FIELDS])
    return call.q if call.rotary_cos is None else rotated, lengths


def call(framework, call):
    """O and LSE, through the operator where PyTorch watches or gradients are wanted, and directly otherwise."""
    device = call.q.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        # As PyTorch's own function: float64 stays.
        casts = lambda tensor: tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
        call.q, call.k, call.v = map(casts, (call.q, call.k, call.v))
        call.attn_bias = None if call.attn_bias is None else call.attn_bias.to(call.q.dtype)
    framework.check_tangents((call.q, call.k, call.v, call.sinks, call.attn_bias))
    framework.check_gradients((call.alibi_slopes,), "alibi_slopes have")
    gradients = framework.wants_gradients((call.q, call.k, call.v, call.sinks, call.attn_bias))
    if not gradients and not _again.is_watched(call.q, call.k, call.v, call.sinks, call.alibi_slopes, call.attn_bias):
        call.seeds = _drawn(call)
        return compute(framework, call)
    left, right = (-1 if keys is None else keys for keys in call.window)
    dropout = (call.dropout_p,) if call.dropout_p else ()
    o, lse, *_ = _operator("dropout" if dropout else "forward")(
        call.q,
        call.k,
        call.v,
        call.alibi_slopes,
        call.sinks,
        call.cu_seqlens_q,
        call.cu_seqlens_k,
        call.used_k,
        call.first_k,
        call.entry_k,
        call.block_table,
        call.intervals,
        call.tree,
        call.attn_bias,
        call.scale,
        call.causal,
        left,
        right,
        *call.longest,
        call.chunk,
        call.tree_keys,
        call.softcap,
        call.num_splits,
        call.lse,
        gradients,
        *dropout,
    )
    return o, lse if call.lse else None


def _drawn(call):
    """Seed and offset from PyTorch's generator of the device, which goes on; None without dropout."""
    if not call.dropout_p:
        return None
    device = call.q.device
    if device.type != "cuda":
        return int(torch.randint(2**63 - 1, ())), 0
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError(f"dropout_p={call.dropout_p} is not supported in a CUDA graph, each replay of which would leave out the same weights")
    generator = _generator(device)
    seed, offset = generator.initial_seed(), generator.get_offset()
    batch = call.q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1
    generator.set_offset(offset + 32 * batch * call.q.shape[-2])
    return seed, offset


def _generator(device):
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator


def _defined():
    library = torch.library.Library("ferroflash", "DEF")
    functions = {
        "forward": (_forward, _fake),
        "backward": (_backward, _fake_backward),
        "dropout": (_dropout, _fake_dropout),
        "dropout_backward": (_dropout_backward, _fake_dropout_backward),
        "append": (_append, _fake_append),
    }
    for name, (function, fake) in functions.items():
        # Two calls alike are not one.
        tags = (torch.Tag.nondeterministic_seeded,) if name == "dropout" else ()
        library.define(f"{name}({_SCHEMAS[name]}", tags=tags)
        for device in ("CPU", "CUDA"):
            library.impl(name, function, device)
        torch.library.register_fake(f"ferroflash::{name}", fake, lib=library)
        torch.library.register_vmap(f"ferroflash::{name}", _one_by_one(name), lib=library)
    for name, (keep, gradient) in _DIFFERENTIATED.items():
        torch.library.register_autograd(f"ferroflash::{name}", gradient, setup_context=keep, lib=library)
    return library


def _call(*arguments):
    q, k, v, alibi, sinks, cu_q, cu_k, used, first, entry, table, intervals, tree, bias, scale, *rest = arguments
    causal, left, right, *longest, chunk, tree_keys, softcap, num_splits, lse, gradients = rest
    call = Call(q, k, v, scale, causal, (left, right), softcap, alibi, sinks, lse or gradients)
    call.cu_seqlens_q, call.cu_seqlens_k, call.used_k = cu_q, cu_k, used
    call.first_k, call.entry_k, call.block_table, call.longest = first, entry, table, tuple(longest)
    call.intervals, call.tree, call.attn_bias, call.tree_keys, call.chunk = intervals, tree, bias, tree_keys, chunk
    call.gradients, call.num_splits = gradients, num_splits
    return call


def _with_bits(*arguments):
    """A call to compute: with its mask as bits."""
    call = _call(*arguments)
    if call.tree is not None and call.tree.dtype == torch.bool:
        # How many keys it has is its own to say: torch.jit.trace keeps the number that it saw.
        call.tree, call.tree_keys = packed(Torch(torch), call.tree), call.tree.shape[-1]
    return call


def _forward(*arguments):
    call = _with_bits(*arguments)
    found = _again.started(call)
    if found is None:
        if call.gradients:
            _gradients.check(Torch(torch), call)
        found = compute(Torch(torch), call)
    o, lse = found
    return o, lse if lse is not None else o.new_empty(0, dtype=torch.float32)


def _fake(*arguments):
    call = _call(*arguments)
    if call.q.is_meta and not torch._subclasses.fake_tensor.is_fake(call.q):
        # Nobody else looks at these shapes; a trace's are checked when it runs.
        numbers(Torch(torch), _with_bits(*arguments))
    o = torch.empty((*call.q.shape[:-1], call.v.shape[-1]), dtype=call.q.dtype, device=call.q.device)
    if not call.lse:
        shape = (0,)
    elif call.cu_seqlens_q is not None:
        shape = (call.q.shape[1], call.q.shape[0])
    else:
        shape = (call.q.shape[0], call.q.shape[2], call.q.shape[1])
    dtype = torch.float64 if call.lse and o.dtype == torch.float64 else torch.float32
    return o, o.new_empty(shape, dtype=dtype)


def _dropout(*arguments):
    call = _with_bits(*arguments[:-1])
    call.dropout_p = arguments[-1]
    call.seeds = _drawn(call)
    if call.gradients:
        _gradients.check(Torch(torch), call)
    o, lse = compute(Torch(torch), call)
    seeds = [number - 2**64 if number >= 2**63 else number for number in call.seeds]
    return o, lse if lse is not None else o.new_empty(0, dtype=torch.float32), torch.tensor(seeds)


def _fake_dropout(*arguments):
    return *_fake(*arguments[:-1]), torch.empty(2, dtype=torch.int64)


def _keep(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:14])
    ctx.numbers = inputs[14:-2]


def _gradient(ctx, d_o, d_lse):
    q, k, v, o, lse, *operands = ctx.saved_tensors
    if d_o is None:
        d_o = torch.zeros_like(o)
    wanted = _wanted(ctx)
    found = _operator("backward")(d_o, d_lse, q, k, v, o, lse, *operands, *ctx.numbers, *wanted)
    return *_in_places(found, wanted), *[None] * 12


def _wanted(ctx):
    """Whether the sinks and the bias need gradients."""
    return ctx.needs_input_grad[4], ctx.needs_input_grad[13]


def _in_places(found, wanted):
    """Gradients where the tensors were among the inputs."""
    *of_qkv, d_sinks, d_bias = found
    d_sinks, d_bias = (x if is_wanted else None for x, is_wanted in zip((d_sinks, d_bias), wanted))
    return *of_qkv, None, d_sinks, *[None] * 8, d_bias


def _backward(d_o, d_lse, q, k, v, o, lse, *arguments, dropout=(0.0, None)):
    *arguments, of_sinks, of_bias = arguments
    call = _with_bits(q, k, v, *arguments, True, True)
    call.dropout_p, call.seeds = dropout
    *found, d_sinks, d_bias = _gradients.compute(Torch(torch), call, o, lse, d_o, d_lse, of_sinks, of_bias)
    d_sinks = q.new_empty(0, dtype=torch.float32) if d_sinks is None else d_sinks
    return *found, d_sinks, q.new_empty(0) if d_bias is None else d_bias


def _keep_dropout(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    *output, seeds = output
    ctx.mark_non_differentiable(seeds)
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:14], seeds)
    ctx.numbers, ctx.p = inputs[14:-3], inputs[-1]


def _dropout_gradient(ctx, d_o, d_lse, _):
    q, k, v, o, lse, *operands, seeds = ctx.saved_tensors
    if d_o is None:
        d_o = torch.zeros_like(o)
    wanted = _wanted(ctx)
    found = _operator("dropout_backward")(d_o, d_lse, q, k, v, o, lse, *operands, *ctx.numbers, *wanted, ctx.p, seeds)
    return *_in_places(found, wanted), *[None] * 13


def _dropout_backward(*arguments):
    *arguments, p, seeds = arguments
    return _backward(*arguments, dropout=(p, [number % 2**64 for number in seeds.tolist()]))


def _fake_dropout_backward(*arguments):
    return _fake_backward(*arguments[:-2])


def _fake_backward(d_o, d_lse, q, k, v, o, lse, alibi_slopes, sinks, *arguments):
    made = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    *arguments, of_sinks, of_bias = arguments
    bias = _call(q, k, v, alibi_slopes, sinks, *arguments, True, True).attn_bias
    d_sinks = q.new_empty(sinks.shape if of_sinks else 0, dtype=torch.float32)
    return *made, d_sinks, q.new_empty(bias.shape if of_bias else 0)


def _second_gradient(ctx, *gradients):
    raise NotImplementedError("gradients of gradients are not supported: call backward() without create_graph")


def _tangent(ctx, *tangents):
    raise NotImplementedError("a tangent is not supported: there is no forward-mode derivative, only backward()")


def _keep_nothing(ctx, inputs, output):
    pass


def _append(*arguments):
    call = _cache.Append(*arguments)
    rotated, lengths = _cache.compute(Torch(torch), call)
    # An operator's result is none of its inputs.
    return call.q.new_empty(0) if call.rotary_cos is None else rotated, lengths


def _fake_append(*arguments):
    call = _cache.Append(*arguments)
    shape = (0,) if call.rotary_cos is None else call.q.shape
    return call.q.new_empty(shape), torch.empty_like(call.used_k)


def _operator(name):
    """An operator, or under torch.func's transforms, which see no gradients of a library's operator, a function that has them."""
    operator = getattr(torch.ops.ferroflash, name)
    if torch.compiler.is_compiling():
        return operator
    if torch._C._len_torch_dispatch_stack():
        _flops.register()
    if not torch._C._are_functorch_transforms_active():
        return operator
    if name not in _transformed:
        keep, gradient = _DIFFERENTIATED[name]
        members = {"forward": lambda *arguments: operator(*arguments), "setup_context": keep, "backward": gradient, "jvp": _tangent}
        statics = {key: staticmethod(function) for key, function in members.items()}
        _transformed[name] = type(name, (torch.autograd.Function,), {**statics, "generate_vmap_rule": True})
    return _transformed[name].apply


def _one_by_one(name):
    """The operator under torch.vmap: a call for each of what is mapped, stacked; with dropout all draw as vmap's `randomness` says."""

    def mapped(info, dims, *arguments):
        operator = getattr(torch.ops.ferroflash, name)
        generator = _generator(arguments[0].device) if name == "dropout" and info.randomness != "different" else None
        if generator is not None and info.randomness == "error":
            raise RuntimeError("vmap: dropout draws random numbers: give vmap randomness='different', or 'same' for all")
        state = None if generator is None else generator.get_state()
        apart = [x if dim is None else x.unbind(dim) for x, dim in zip(arguments, dims)]
        found = []
        for at in range(info.batch_size):
            if state is not None:
                generator.set_state(state)
            found.append(operator(*(x if dim is None else x[at] for x, dim in zip(apart, dims))))
        return tuple(map(torch.stack, zip(*found))), (0,) * len(found[0])

    return mapped


# What each operator keeps for its gradient, and the gradient.
_DIFFERENTIATED = {
    "forward": (_keep, _gradient),
    "backward": (_keep_nothing, _second_gradient),
    "dropout": (_keep_dropout, _dropout_gradient),
    "dropout_backward": (_keep_nothing, _second_gradient),
}
# Functions by operators' names, made when they are first wanted.
_transformed = {}
# Before any call, as a first call that torch.compile traces cannot define an operator. It lasts as long as the library object.
_library = None if torch is None else _defined()
