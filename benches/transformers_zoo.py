#!/usr/bin/env python3
"""Makes a tiny model of every architecture of transformers that its config makes one of, and compares Ferroflash with plain attention.

Needs torch, transformers and the package ferroflash, no GPU and no download. A model may compute the same, compute something else, end with
an error, or refuse by name; "not used" is one whose layers never ask for an attention function, and "not made" one that no tiny config was
found for. Ends with 1 if any model computes something else or ends with an error.

    transformers_zoo.py                 all, about ten minutes on two cores
    transformers_zoo.py causal t5       of causal language models and all whose name has t5 in it
"""

import collections
import json
import logging
import signal
import sys
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

import ferroflash

SECONDS = 60
PARAMETERS_MAX = 80_000_000
LENGTHS = (20, 13, 17)
# What configs call their sizes; each gets those that it has.
TINY = dict.fromkeys("hidden_size d_model n_embd dim word_embed_proj_dim".split(), 64)
TINY |= dict.fromkeys("intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner d_ff ffn_hidden_size".split(), 96)
TINY |= dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers".split(), 2)
TINY |= dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads mamba_n_heads".split(), 4)
TINY |= dict.fromkeys("max_position_embeddings n_positions max_seq_len".split(), 128)
TINY |= dict.fromkeys("num_local_experts num_experts n_routed_experts".split(), 4)
TINY |= dict(
    vocab_size=97, moe_intermediate_size=32, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, sliding_window=6, num_experts_per_tok=2, n_group=1,
    topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, embedding_size=32,
    image_size=32, patch_size=8, num_channels=3, mamba_d_state=8, d_kv=16, local_attention=8, attention_chunk_size=8, index_topk=5,
)


def tiny(kind):
    usual = kind()
    given = {name: value for name, value in TINY.items() if isinstance(getattr(usual, name, None), int)}
    if hasattr(usual, "eos_token_id"):
        given["eos_token_id"] = None
    if getattr(usual, "head_dim", None) is not None:
        given["head_dim"] = 16
    if getattr(usual, "layer_types", None) is not None:
        given["layer_types"] = (list(dict.fromkeys(usual.layer_types)) * 2)[:2]
    if "sliding_window" in given and hasattr(usual, "use_sliding_window"):
        given["use_sliding_window"] = True
    if "num_key_value_heads" in given and usual.num_key_value_heads == getattr(usual, "num_attention_heads", None):
        given["num_key_value_heads"] = 4
    return kind(**given)


def tokens(side, of_decoder=False):
    def made(config):
        ids, mask = torch.randint(2, 90, (3, 20)), torch.ones(3, 20, dtype=torch.long)
        for row, length in enumerate(LENGTHS):
            hidden = slice(length, 20) if side == "right" else slice(0, 20 - length)
            ids[row, hidden] = mask[row, hidden] = 0
        return dict(input_ids=ids, attention_mask=mask) | (dict(decoder_input_ids=torch.randint(2, 90, (3, 11))) if of_decoder else {})

    return made


def pixels(config):
    size = config.image_size if isinstance(getattr(config, "image_size", None), int) else 32
    return dict(pixel_values=torch.randn(2, getattr(config, "num_channels", 3), size, size))


KINDS = {
    "causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING, tokens("left")),
    "masked": (auto.MODEL_FOR_MASKED_LM_MAPPING, tokens("right")),
    "pair": (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, tokens("right", of_decoder=True)),
    "image": (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, pixels),
    "sound": (auto.MODEL_FOR_CTC_MAPPING, lambda config: dict(input_values=torch.randn(2, 4000))),
}


def result(output):
    names = ("logits", "last_hidden_state", "prediction_logits")
    return next(x for name, x in output.items() if name in names and isinstance(x, torch.Tensor))


@torch.no_grad()
def verdict(kind, config_kind, make):
    """What became of a model, and what is to be said of it."""
    found = {}
    try:
        torch.manual_seed(1)
        config = tiny(config_kind)
        model = kind(config).eval().float()
        if sum(x.numel() for x in model.parameters()) > PARAMETERS_MAX:
            return "not made", "it is large whatever its config says"
        for parameter in model.parameters():
            # Scores that differ, so that a wrong mask shows.
            parameter.mul_(3) if parameter.dim() == 2 else None
        inputs = make(config)
        for attention in ("eager", "ferro"):
            model.set_attn_implementation(attention)
            configs = [module.config for module in model.modules() if hasattr(module, "config")]
            if attention == "ferro" and "ferro" not in {getattr(config, "_attn_implementation", None) for config in configs}:
                return "not used", ""
            torch.manual_seed(0)
            found[attention] = result(model(**inputs))
    except Exception as error:
        said = f"{type(error).__name__}: {error}".split("\n")[0][:120]
        if not found:
            return "not made", said
        return ("refused" if isinstance(error, NotImplementedError) else "error"), said
    expected, computed = found.values()
    mask = inputs.get("attention_mask")
    if mask is not None and mask.shape == expected.shape[:2]:
        # What stands for padding is nobody's.
        expected, computed = expected[mask.bool()], computed[mask.bool()]
    error, largest = (expected - computed).abs().max().item(), expected.abs().max().item()
    return ("same" if error <= 2e-3 * (1 + largest) else "something else"), f"{error:.1e} of {largest:.1e}"


def main(wanted):
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    ferroflash.register()

    def late(*_):
        raise TimeoutError(f"{SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    verdicts = collections.defaultdict(dict)
    for label, (mapping, make) in KINDS.items():
        for config_kind, kind in mapping.items():
            name = f"{label}: {config_kind.model_type}"
            if wanted and label not in wanted and not any(word in config_kind.model_type for word in wanted):
                continue
            signal.alarm(SECONDS)
            what, said = verdict(kind[0] if isinstance(kind, tuple) else kind, config_kind, make)
            signal.alarm(0)
            verdicts[what][name] = said
            print(f"{name:40} {what:15} {said}", flush=True)
    print(json.dumps({what: len(models) for what, models in verdicts.items()}))
    return int(bool(verdicts["something else"] or verdicts["error"]))


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    sys.exit(main(sys.argv[1:]))
