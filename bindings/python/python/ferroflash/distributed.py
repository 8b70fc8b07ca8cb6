"""Attention over a sequence that is split among the ranks of a torch.distributed group, under ring-flash-attention's argument names.

A sequence is cut into 2·N chunks, and rank r of N holds chunks r and 2·N − 1 − r, one after the other, so that under a causal mask all ranks
have as much to do: `shard` takes a rank's rows, `unshard` puts them together again. Any length can be cut; where ranks hold unequal numbers
of rows, `length` says how long the whole is. Any backend moves the tensors: NCCL between GPUs, gloo between CPUs.
"""

import torch
import torch.distributed as dist

from . import _merge
from ._tensors import framework_of
from .functional import flash_attn_func, flash_attn_with_kvcache

# Chunks start at multiples of one of these, the first of which a chunk has at least 16: as the Rust library cuts.
GRANULES = (128, 64, 32, 16, 8, 1)


def chunks(length, world):
    """Where each of the 2·world chunks of a sequence starts and ends."""
    granule = next((g for g in GRANULES if length // (2 * world) >= 16 * g), 1)
    starts = [min((length * c // (2 * world) + granule // 2) // granule * granule, length) for c in range(2 * world)]
    return list(zip(starts, [*starts[1:], length]))


def rows_of(length, rank, world):
    """The two ranges of rows that a rank holds."""
    cut = chunks(length, world)
    return [cut[rank], cut[2 * world - 1 - rank]]


def shard(x, dim=1, group=None):
    """This rank's rows of a whole tensor, along `dim`."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    parts = [x.narrow(dim, start, end - start) for start, end in rows_of(x.shape[dim], rank, world)]
    return torch.cat(parts, dim).contiguous()


def unshard(x, length, dim=1, group=None):
    """The whole tensor, from every rank's rows, on every rank."""
    x = x.transpose(dim, 1)
    whole = x.new_empty(x.shape[0], length, *x.shape[2:])
    _gather_rows([(x, whole)], length, group)()
    return whole.transpose(dim, 1)


def allgather_attention(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    group=None,
    *,
    length=None,
):
    """flash_attn_func over all ranks' rows: every rank receives all keys and values, and nothing is merged.

    The mask is full, causal, or a window that shows no key after a query's own.
    """
    options = _options(dropout_p, softmax_scale, softcap, alibi_slopes, deterministic)
    rank, world, length = _place(q, k, v, length, group)
    left, right = window_size
    if causal:
        right = 0
    if right > 0 or (left >= 0 and right != 0):
        raise NotImplementedError(f"window_size={window_size!r}: a split sequence has windows that end at a query's own key")
    if alibi_slopes is not None and right < 0 and world > 1:
        # One call's distances would be those of the last rows, which a rank's are not.
        raise NotImplementedError("alibi_slopes of a split sequence are supported under a causal mask")
    whole = [x.new_empty(x.shape[0], length, *x.shape[2:]) for x in (k, v)]
    _gather_rows(list(zip((k, v), whole)), length, group)()
    if right < 0:
        o, lse, _ = flash_attn_func(q, *whole, causal=False, return_attn_probs=True, **options)
        return (o, lse, None) if return_attn_probs else o
    outputs, first = [], 0
    for start, end in rows_of(length, rank, world):
        part = q.narrow(1, first, end - start)
        first += end - start
        if start < end:
            seen = [x.narrow(1, 0, end) for x in whole]
            window = (left, 0) if left >= 0 else (-1, -1)
            outputs.append(flash_attn_func(part, *seen, causal=True, window_size=window, return_attn_probs=True, **options)[:2])
    return _joined(q, outputs, return_attn_probs)


def ring_attention(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    group=None,
    *,
    length=None,
):
    """flash_attn_func over all ranks' rows: keys and values go round, while those that are here are computed; results are merged once.

    Partial results have Q's type here (float32 in the Rust library); the mask is full or causal.
    """
    options = _options(dropout_p, softmax_scale, softcap, alibi_slopes, deterministic)
    if tuple(window_size) != (-1, -1):
        raise NotImplementedError(f"window_size={window_size!r}: allgather_attention takes windows")
    if alibi_slopes is not None:
        raise NotImplementedError("alibi_slopes: allgather_attention takes scores that depend on positions")
    rank, world, length = _place(q, k, v, length, group)
    own = [end - start for start, end in rows_of(length, rank, world)]
    parts = [(0, own[0]), (own[0], own[0] + own[1])] if causal else [(0, sum(own))]
    parts = [part for part in parts if part[0] < part[1]]
    states = [[] for _ in parts]
    here = [k.contiguous(), v.contiguous()]
    for step in range(world):
        owner = (rank - step) % world
        arrive = None
        if step + 1 < world:
            before = (owner - 1) % world
            rows = sum(end - start for start, end in rows_of(length, before, world))
            following = [x.new_empty(x.shape[0], rows, *x.shape[2:]) for x in here]
            arrive = _exchange([((rank + 1) % world, here)], [((rank - 1) % world, following)], group)
        first = rows_of(length, owner, world)[0]
        for (start, end), found in zip(parts, states):
            seen = _seen(causal, start == 0 and own[0] > 0, owner, rank, first[1] - first[0], here[0].shape[1])
            if seen is not None and seen[0] > 0:
                keys, diagonal = seen
                kv = [x.narrow(1, 0, keys) for x in here]
                part = q.narrow(1, start, end - start)
                found.append(flash_attn_func(part, *kv, causal=diagonal, return_attn_probs=True, **options)[:2])
        if arrive is not None:
            arrive()
            here = following
    outputs = [_merged(found) for found in states]
    return _joined(q, outputs, return_attn_probs)


def ulysses_attention(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    group=None,
    *,
    length=None,
):
    """flash_attn_func over all ranks' rows: ranks exchange heads for rows, compute some heads of the whole, and exchange O back.

    The number of ranks divides the heads of Q, and those of K and V or the other way round.
    """
    options = _options(dropout_p, softmax_scale, softcap, alibi_slopes, deterministic)
    if alibi_slopes is not None:
        raise NotImplementedError("alibi_slopes: allgather_attention takes them")
    rank, world, length = _place(q, k, v, length, group)
    heads, heads_kv = q.shape[2], k.shape[2]
    if heads % world or (heads_kv % world and world % heads_kv):
        raise NotImplementedError(f"{heads} heads of Q and {heads_kv} of K and V do not divide among {world} ranks")

    def heads_of(x, peer):
        count = max(x.shape[2] // world, 1)
        return x.narrow(2, peer * x.shape[2] // world, count).contiguous()

    def rows(peer):
        return sum(end - start for start, end in rows_of(length, peer, world))

    sent = [(peer, [heads_of(x, peer) for x in (q, k, v)]) for peer in range(world)]
    mine = sent[rank][1]
    received = [(peer, [x.new_empty(x.shape[0], rows(peer), *x.shape[2:]) for x in mine]) for peer in range(world)]
    _exchange(sent, received, group)()
    whole = [x.new_empty(x.shape[0], length, *x.shape[2:]) for x in mine]
    for peer, parts in received:
        for x, part in zip(whole, parts):
            _put_rows(x, part, rows_of(length, peer, world))
    o, lse, _ = flash_attn_func(*whole, causal=causal, window_size=window_size, return_attn_probs=True, **options)
    lse = lse.transpose(1, 2).contiguous()
    sent = [(peer, [_take_rows(x, rows_of(length, peer, world)) for x in (o, lse)]) for peer in range(world)]
    received = [(peer, [torch.empty_like(x) for x in sent[rank][1]]) for peer in range(world)]
    _exchange(sent, received, group)()
    o, lse = (torch.cat([parts[at] for _, parts in received], 2) for at in (0, 1))
    return (o, lse.transpose(1, 2).contiguous(), None) if return_attn_probs else o


def split_cache_decode(
    q, k_cache, v_cache, cache_seqlens=None, block_table=None, softmax_scale=None, softcap=0.0, group=None, *, return_softmax_lse=False
):
    """Attention of Q, the same on all ranks, over caches that hold other keys of each sequence on each rank; only O and LSE travel.

    All keys come before all queries, so that every query sees every key of every rank's cache.
    """
    o, lse = flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=cache_seqlens,
        block_table=block_table,
        softmax_scale=softmax_scale,
        softcap=softcap,
        return_softmax_lse=True,
    )
    o, lse = o.contiguous(), lse.contiguous()
    gathered = [[torch.empty_like(x) for _ in range(dist.get_world_size(group))] for x in (o, lse)]
    for own, of_all in zip((o, lse), gathered):
        dist.all_gather(of_all, own, group=group)
    o, lse = _merged(list(zip(*gathered)))
    return (o, lse) if return_softmax_lse else o


def _options(dropout_p, softmax_scale, softcap, alibi_slopes, deterministic):
    if dropout_p:
        raise NotImplementedError(f"dropout_p={dropout_p!r} is not supported: which weights it leaves out depends on positions in whole sequences")
    given = dict(softmax_scale=softmax_scale, softcap=softcap, deterministic=deterministic)
    return given if alibi_slopes is None else dict(given, alibi_slopes=alibi_slopes)


def _place(q, k, v, length, group):
    """This rank, the ranks, and the rows of the whole, of which it holds as many as it must."""
    framework_of(q)[0].check_gradients((q, k, v), "attention over several ranks has")
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    length = q.shape[1] * world if length is None else length
    expected = sum(end - start for start, end in rows_of(length, rank, world))
    for name, x in (("q", q), ("k", k)):
        if x.shape[1] != expected:
            raise ValueError(f"{name} has {x.shape[1]} rows, rank {rank} of {world} holds {expected} of {length}: give length, or shard(x)")
    return rank, world, length


def _seen(causal, is_first, owner, rank, first, both):
    """How many of another rank's rows, from its first on, a part of this rank's queries sees, and whether the diagonal cuts them."""
    if not causal:
        return both, False
    if owner == rank:
        return (first, True) if is_first else (both, True)
    if owner < rank:
        return first, False
    return None if is_first else (both, False)


def _merged(states):
    """O and LSE over all of the states' keys."""
    framework, into = framework_of(states[0][0])
    return tuple(map(framework.result, _merge.compute(framework, [tuple(map(into, state)) for state in states])))


def _joined(q, outputs, return_attn_probs):
    o = torch.cat([o for o, _ in outputs], 1) if outputs else torch.empty_like(q)
    if not return_attn_probs:
        return o
    lse = torch.cat([lse for _, lse in outputs], 2) if outputs else q.new_empty(q.shape[0], q.shape[2], 0, dtype=torch.float32)
    return o, lse, None


def _put_rows(whole, part, ranges):
    first = 0
    for start, end in ranges:
        whole.narrow(1, start, end - start).copy_(part.narrow(1, first, end - start))
        first += end - start


def _take_rows(whole, ranges):
    return torch.cat([whole.narrow(1, start, end - start) for start, end in ranges], 1).contiguous()


def _gather_rows(pairs, length, group):
    """Starts to gather every rank's rows; the result waits, and puts them in their places."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    own = [x.contiguous() for x, _ in pairs]

    def rows(peer):
        return sum(end - start for start, end in rows_of(length, peer, world))

    others = [peer for peer in range(world) if peer != rank]
    received = [(peer, [x.new_empty(x.shape[0], rows(peer), *x.shape[2:]) for x in own]) for peer in others]
    arrive = _exchange([(peer, own) for peer in others], received, group)

    def place():
        arrive()
        for peer, parts in [*received, (rank, own)]:
            for (_, whole), part in zip(pairs, parts):
                _put_rows(whole, part, rows_of(length, peer, world))

    return place


def _exchange(sent, received, group):
    """Starts to send lists of tensors to ranks and to receive such, one message a rank; the result waits for them."""
    rank = dist.get_rank(group)
    of_peer = (lambda peer: peer) if group is None else (lambda peer: dist.get_global_rank(group, peer))
    operations, arriving, kept = [], [], []
    for peer, tensors in sent:
        if peer == rank:
            kept = tensors
        elif sum(x.numel() for x in tensors):
            flat = torch.cat([x.contiguous().view(torch.uint8).flatten() for x in tensors])
            operations.append(dist.P2POp(dist.isend, flat, of_peer(peer), group))
    for peer, tensors in received:
        if peer == rank:
            for x, own in zip(tensors, kept):
                x.copy_(own)
        elif count := sum(x.numel() * x.element_size() for x in tensors):
            flat = torch.empty(count, dtype=torch.uint8, device=tensors[0].device)
            operations.append(dist.P2POp(dist.irecv, flat, of_peer(peer), group))
            arriving.append((flat, tensors))
    works = dist.batch_isend_irecv(operations) if operations else []

    def arrive():
        for work in works:
            work.wait()
        for flat, tensors in arriving:
            first = 0
            for x in tensors:
                size = x.numel() * x.element_size()
                x.view(torch.uint8).view(-1).copy_(flat[first : first + size])
                first += size

    # What is on its way lives until it has arrived.
    arrive.operations = operations
    return arrive
