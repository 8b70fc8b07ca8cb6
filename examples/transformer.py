"""Ferroflash in a model of Hugging Face transformers: three prompts, padded on the left, with PyTorch's attention and with Ferroflash's.

The model is tiny and made from a config, so nothing is downloaded; a model of from_pretrained takes attn_implementation="ferro" the same way.
Needs PyTorch and transformers. Runs on a GPU where there is one, else on the CPU."""

import torch
import transformers

import ferroflash


def main():
    ferroflash.register()
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.to("cuda" if on_gpu else "cpu", torch.float16 if on_gpu else torch.float32)
    prompts = torch.tensor([[5, 17, 40, 9, 63], [0, 0, 8, 71, 22], [0, 90, 3, 55, 12]], device=model.device)
    inputs = dict(input_ids=prompts, attention_mask=(prompts != 0).long())
    logits = {}
    for attention in ("sdpa", "ferro"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            logits[attention] = model(**inputs).logits[inputs["attention_mask"].bool()]
            tokens = model.generate(**inputs, max_new_tokens=16, do_sample=False)[:, 5:]
        print(f"{attention:6s}", tokens.tolist())
    torch.testing.assert_close(logits["ferro"], logits["sdpa"], atol=2e-2 if on_gpu else 1e-4, rtol=2e-2 if on_gpu else 1e-4)


if __name__ == "__main__":
    main()
