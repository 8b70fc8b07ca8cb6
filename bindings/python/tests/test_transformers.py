"""Tiny models of transformers, made from a config: greedy tokens and logits with Ferroflash are PyTorch's."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ferroflash

SIZES = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"])
LATENT = dict(kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12)
ROUTED = dict(moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1)


def sizes(**others):
    return {name: number for name, number in (SIZES | others).items() if number is not ...}


# The window is shorter than the prompts, so that it shows.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, sliding_window=6, attn_logit_softcapping=5.0, query_pre_attn_scalar=16),
    "gpt_oss": lambda: transformers.GptOssConfig(**SIZES, sliding_window=6, **EXPERTS),
    "qwen2": lambda: transformers.Qwen2Config(**sizes(head_dim=...), use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "phi3": lambda: transformers.Phi3Config(**sizes(head_dim=...), sliding_window=6),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, sliding_window=6, layer_types=EXPERTS["layer_types"], tie_word_embeddings=False
    ),
    # Values of another width than keys.
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**sizes(head_dim=..., num_key_value_heads=4), first_k_dense_replace=1, **LATENT, **ROUTED),
    # Chunks, and positions of no rotation.
    "llama4": lambda: transformers.Llama4TextConfig(
        **SIZES, intermediate_size_mlp=96, num_local_experts=2, attention_chunk_size=8, layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
    # Layers that say they are not causal under a mask that is, as PaliGemma's are.
    "gemma": lambda: transformers.GemmaConfig(**SIZES, use_bidirectional_attention=True, tie_word_embeddings=False),
    # Masks by head, which the model makes itself.
    "doge": lambda: transformers.DogeConfig(**sizes(head_dim=...), keep_window_size=6),
    # Sparse by an index of its own, which works on the mask; values of another width.
    "deepseek_v32": lambda: transformers.DeepseekV32Config(
        **sizes(head_dim=..., num_key_value_heads=4), first_k_dense_replace=1, index_topk=5, index_n_heads=2, index_head_dim=16, **LATENT, **ROUTED
    ),
}
# PyTorch's SDPA has neither softcap nor sinks nor, without padding, such layers' masks: transformers' own plain attention stands beside those.
PEERS = {"gemma2": "eager", "gpt_oss": "eager", "gemma": "eager"}
LENGTHS = (12, 7, 9)


@pytest.fixture(scope="module", autouse=True)
def name_of_ferroflash():
    return ferroflash.register()


def model_of(name):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    # Large weights make scores that differ, so that a wrong mask changes tokens.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4) if parameter.dim() == 2 else None
            parameter.normal_() if parameter.dim() == 1 and "sinks" in str(parameter.shape) else None
    return model


def prompts(side):
    torch.manual_seed(2)
    tokens, mask = torch.zeros(3, 12, dtype=torch.long), torch.zeros(3, 12, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        at = slice(0, length) if side == "right" else slice(12 - length, 12)
        tokens[row, at] = torch.randint(2, 97, (length,))
        mask[row, at] = 1
    return dict(input_ids=tokens, attention_mask=mask)


def generated(model, inputs, side):
    """64 greedy tokens a prompt: by transformers with its cache, which pads on the left, or by a whole pass a token."""
    if side == "left":
        return model.generate(**inputs, max_new_tokens=64, do_sample=False)[:, 12:].tolist()
    tokens, lengths = torch.nn.functional.pad(inputs["input_ids"], (0, 64)), list(LENGTHS)
    for _ in range(64):
        mask = (torch.arange(12 + 64)[None] < torch.tensor(lengths)[:, None]).long()
        logits = model(input_ids=tokens, attention_mask=mask).logits
        for row, length in enumerate(lengths):
            tokens[row, length] = logits[row, length - 1].argmax()
        lengths = [length + 1 for length in lengths]
    return [tokens[row, length : length + 64].tolist() for row, length in enumerate(LENGTHS)]


# Of the other families, right padding is seen in the logits: a whole pass a token takes long.
WHOLE_PASSES = ("llama", "mistral", "gemma2", "gpt_oss")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_tokens_are_those_of_pytorch(name, side):
    model, inputs = model_of(name), prompts(side)
    with_tokens = side == "left" or name in WHOLE_PASSES
    found = {}
    for attention in (PEERS.get(name, "sdpa"), "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            logits = model(**inputs).logits[inputs["attention_mask"].bool()]
            tokens = generated(model, inputs, side) if with_tokens else []
        found[attention] = logits, tokens
    (expected, expected_tokens), (logits, tokens) = found.values()
    assert not with_tokens or [len(row) for row in tokens] == [64] * 3 and len(set(sum(tokens, []))) > 5
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=2e-3)
    assert tokens == expected_tokens


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_step_of_training_has_plain_attentions_gradients(name):
    inputs, found = prompts("right"), {}
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    for attention in ("eager", "ferro"):
        model = model_of(name).train()
        model.set_attn_implementation(attention)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        found[attention] = loss.detach(), {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    (expected_loss, expected), (loss, gradients) = found.values()
    torch.testing.assert_close(loss, expected_loss, atol=1e-4, rtol=1e-4)
    assert gradients.keys() == expected.keys() and any("q_" in name or "qkv" in name for name in gradients)
    assert "gpt_oss" != name or any("sinks" in name for name in gradients)
    largest = max(x.abs().max().item() for x in expected.values())
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[parameter], atol=2e-4 * largest, rtol=2e-3, msg=lambda text: f"{parameter}: {text}")


@pytest.mark.parametrize("options", [dict(cache_implementation="static"), dict(num_beams=3)], ids=["static", "beams"])
def test_caches_of_other_kinds(options):
    model, inputs, found = model_of("mistral"), prompts("left"), []
    for attention in ("eager", "ferro"):
        model.set_attn_implementation(attention)
        found.append(model.generate(**inputs, max_new_tokens=16, do_sample=False, **options).tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_an_exported_model_takes_padding(name):
    model, inputs = model_of(name), prompts("left")
    model.set_attn_implementation("ferro")
    length = torch.export.Dim("length", min=2, max=64)
    forward = lambda inputs: dict(use_cache=False, **inputs)
    shorter = {name: x[:, 2:].contiguous() for name, x in inputs.items()}
    shapes = dict(use_cache=None) | {name: {1: length} for name in inputs}
    program = torch.export.export(model, (), forward(shorter), dynamic_shapes=shapes)
    with torch.no_grad():
        found, expected = (f(**forward(inputs)).logits[inputs["attention_mask"].bool()] for f in (program.module(), model))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_sequences_packed_by_their_positions():
    model, found = model_of("llama"), []
    inputs = dict(input_ids=torch.randint(2, 97, (1, 12)), position_ids=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]]))
    for attention in ("eager", "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found.append(model(**inputs, use_cache=False).logits)
    torch.testing.assert_close(*found, atol=2e-3, rtol=2e-3)


ENCODER = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, pad_token_id=0)
PAIR = dict(
    vocab_size=97, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
    decoder_ffn_dim=96, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
)
SPECIAL = dict(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
BOTH_WAYS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**ENCODER)),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(**ENCODER, local_attention=6, global_attn_every_n_layers=2, **SPECIAL)
    ),
    "bart": lambda: transformers.BartModel(transformers.BartConfig(**PAIR)),
    # Layers that do not say that they are causal, which only the mask knows.
    "nllb_moe": lambda: transformers.NllbMoeModel(transformers.NllbMoeConfig(**PAIR, num_experts=2)),
    "pegasus_x": lambda: transformers.PegasusXModel(transformers.PegasusXConfig(**PAIR, block_size=8, num_global_tokens=4)),
    # Biases by position.
    "t5": lambda: transformers.T5Model(
        transformers.T5Config(vocab_size=97, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=2)
    ),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_models_that_look_both_ways(name, side):
    torch.manual_seed(1)
    model, inputs, found = BOTH_WAYS[name]().eval(), prompts(side), []
    seen = inputs["attention_mask"].bool()
    if model.config.is_encoder_decoder:
        inputs |= dict(decoder_input_ids=prompts("right")["input_ids"][:, :7])
        seen = torch.ones(3, 7, dtype=torch.bool)
    for attention in ("eager", "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found.append(model(**inputs).last_hidden_state[seen])
    torch.testing.assert_close(*found, atol=2e-3, rtol=2e-3)


def test_no_mask_hides_nothing_of_models_that_know_masks_alone():
    sizes = dict(hidden_size=64, num_hidden_layers=2)
    text = dict(vocab_size=97, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64, **sizes)
    config = transformers.BridgeTowerConfig(
        text_config=text, vision_config=dict(image_size=32, patch_size=8, **sizes), num_attention_heads=4, intermediate_size=96, **sizes
    )
    torch.manual_seed(1)
    model, inputs, found = transformers.BridgeTowerModel(config).eval(), prompts("right") | dict(pixel_values=torch.randn(3, 3, 32, 32)), []
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.dim() == 2 else 1)
    for attention in ("eager", "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found.append(model(**inputs).image_features)
    torch.testing.assert_close(*found, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("kind", ["none", "causal", "window", "padding", "ranges", "bool", "bias"])
def test_biases_and_sinks_of_queries_under_every_kind_of_mask(kind):
    from ferroflash.transformers import attention_forward

    torch.manual_seed(3)
    module, (q, k, v) = torch.nn.Module(), (torch.randn(2, 4, length, 16) for length in (5, 7, 7))
    bias, sinks, own = torch.randn(1, 4, 5, 7), torch.randn(2, 4, 5, 1), torch.arange(5)[:, None] + 2
    at, options = torch.arange(7)[None], dict(is_causal=kind in ("causal", "window"))
    seen, mask = torch.ones(2, 1, 5, 7, dtype=torch.bool), None
    if options["is_causal"]:
        seen = (seen & (at <= own)) if kind == "causal" else (seen & (at <= own) & (at > own - 3))
        options |= dict(sliding_window=3) if kind == "window" else {}
    elif kind == "padding":
        mask = torch.ones(2, 7)
        mask[1, :3] = 0
        seen = seen & mask[:, None, None].bool()
    elif kind == "ranges":
        mask = torch.stack([own[None, :, 0] - 2, own[None, :, 0]], -1).int().expand(2, 5, 2)[:, None]
        seen = seen & (at >= own - 2) & (at < own)
    elif kind == "bool":
        mask = seen = torch.rand(2, 4, 5, 7) < 0.6
    elif kind == "bias":
        mask = torch.randn(2, 1, 5, 7)
    hidden = torch.where(seen, 0.0, -torch.inf) if kind != "bias" else mask
    for one, other in ((bias, None), (None, sinks), (bias, sinks)):
        found, _ = attention_forward(module, q, k, v, mask, position_bias=one, sinks=other, **options)
        scores = q @ k.mT / 4 + hidden + (0 if one is None else one)
        scores = torch.cat([scores, torch.full((2, 4, 5, 1), -torch.inf) if other is None else other], -1)
        expected = scores.softmax(-1)[..., :-1].nan_to_num() @ v
        torch.testing.assert_close(found, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_changes_in_place_is_read_again(mode):
    from ferroflash.transformers import attention_forward

    with mode():
        module, (q, k, v) = torch.nn.Module(), (torch.randn(1, 2, 3, 16) for _ in range(3))
        mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
        for _ in range(2):
            for _ in range(2):
                found, _ = attention_forward(module, q, k, v, mask)
                expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                torch.testing.assert_close(found, expected.transpose(1, 2))
            mask[..., 1:, 0] = False


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt_oss"])
def test_padding_between_keys_takes_its_place_in_a_window(name):
    inputs = prompts("right")
    inputs["attention_mask"][0, 3:6] = 0
    inputs["attention_mask"][2, [0, 4]] = 0
    seen = inputs["attention_mask"].bool()
    plain, ferro = model_of(name), model_of(name)
    plain.set_attn_implementation("eager")
    ferro.set_attn_implementation("ferro")
    compiled = torch.compile(ferro, backend="eager") if name == "mistral" else ferro
    with torch.no_grad():
        expected, found = plain(**inputs).logits[seen], compiled(**inputs).logits[seen]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_step_of_training_under_autocast_with_padding(name, side):
    inputs, losses = prompts(side), []
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    for attention in ("eager", "ferro"):
        model = model_of(name)
        model.set_attn_implementation(attention)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs, labels=labels).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


def test_the_mask_matters():
    model, inputs = model_of("llama"), prompts("left")
    model.set_attn_implementation("ferro")
    with torch.no_grad():
        masked = model(**inputs).logits[1, -1]
        unmasked = model(inputs["input_ids"]).logits[1, -1]
    assert (masked - unmasked).abs().max() > 0.1


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="contains"):
        ferroflash.register("my_flash")
    q = torch.zeros(1, 2, 3, 16)
    module = torch.nn.Module()
    from ferroflash.transformers import attention_forward

    with pytest.raises(NotImplementedError, match="3 dimensions"):
        attention_forward(module, q, q, q, torch.zeros(1, 3, 3))
    with pytest.raises(NotImplementedError, match="mask of torch.int64"):
        attention_forward(module, q, q, q, torch.zeros(1, 1, 3, 3, dtype=torch.long))
    with pytest.raises(NotImplementedError, match="room behind"):
        attention_forward(module, q, q, q, torch.ones(1, 2))
    with pytest.raises(ValueError, match="dropout_p"):
        attention_forward(module, q, q, q, None, dropout=1.0)


def test_the_example_runs():
    import pathlib
    import runpy

    program = pathlib.Path(__file__).parents[3] / "examples" / "transformer.py"
    runpy.run_path(str(program), run_name="__main__")
