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
# The window is shorter than the prompts, so that it shows.
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, sliding_window=6, attn_logit_softcapping=5.0, query_pre_attn_scalar=16),
    "gpt_oss": lambda: transformers.GptOssConfig(**SIZES, sliding_window=6, **EXPERTS),
}
# PyTorch's SDPA has neither softcap nor sinks, so transformers' own plain attention stands beside those.
PEERS = {"llama": "sdpa", "mistral": "sdpa", "gemma2": "eager", "gpt_oss": "eager"}
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


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_tokens_are_those_of_pytorch(name, side):
    model, inputs = model_of(name), prompts(side)
    found = {}
    for attention in (PEERS[name], "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            logits = model(**inputs).logits[inputs["attention_mask"].bool()]
            tokens = generated(model, inputs, side)
        found[attention] = logits, tokens
    (expected, expected_tokens), (logits, tokens) = found.values()
    assert [len(row) for row in tokens] == [64] * 3 and len(set(sum(tokens, []))) > 5
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=2e-3)
    assert tokens == expected_tokens


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

    with pytest.raises(NotImplementedError, match="4 dimensions"):
        attention_forward(module, q, q, q, torch.zeros(1, 1, 3, 3))
    with pytest.raises(NotImplementedError, match="position_bias"):
        attention_forward(module, q, q, q, None, position_bias=q)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        attention_forward(module, q, q, q, None, dropout=0.1)


def test_the_example_runs():
    import pathlib
    import runpy

    program = pathlib.Path(__file__).parents[3] / "examples" / "transformer.py"
    runpy.run_path(str(program), run_name="__main__")
