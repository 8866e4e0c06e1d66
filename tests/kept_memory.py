"""Measures on the CPU what PyTorch's modules allocate in a training step, for tests/test_software_step.c. Arguments:
hidden size h, width of the MLP f, heads, key/value heads, tokens, vocabulary. Prints a line for each figure that the
installed versions can show: its name and its bytes.

    layer-NAME  per token and layer, what a layer has allocated until its backward pass
    logit       per logit, the peak of the backward pass of the loss
    step-NAME   per parameter, the peak of an optimizer's step in addition to its states

Figures are differences of two models, so that everything but one layer or one logit cancels out. Sizes are those that
PyTorch's profiler records for each allocation. Exit status 3: PyTorch or Transformers is missing."""
import gc
import sys

try:
    import torch
    import transformers
    from torch.profiler import ProfilerActivity, profile
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    sys.exit(3)
try:
    import peft
except ImportError:
    peft = None

H, F, HEADS, KV_HEADS, TOKENS, VOCABULARY = map(int, sys.argv[1:7])
MAJOR = int(transformers.__version__.split(".")[0])


def memory(run):
    """Runs a function. Returns the bytes that are allocated at its end and at its peak, in addition to those before."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = run()  # its graph lives until the profile ends
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    del result
    return now, peak


def llama(layers, dtype, attention, vocabulary=256):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=H, intermediate_size=F, num_hidden_layers=layers, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, vocab_size=vocabulary, max_position_embeddings=TOKENS,
                         tie_word_embeddings=False, use_cache=False, attn_implementation=attention)
    return LlamaForCausalLM(config).to(dtype).train()


def kept(layers, autocast, dtype, attention, adapters=None):
    """The bytes that exist after the forward pass of some layers, without those of casts of weights. Adapters have
    rank 1, so that what they keep themselves is nothing; under autocast they are float32, as PEFT makes them."""
    model = llama(layers, dtype, attention)
    weights = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and ".layers." in n)
    if adapters:
        model = peft.get_peft_model(model, peft.LoraConfig(r=1, target_modules=adapters),
                                    autocast_adapter_dtype=autocast)
    ids = torch.arange(TOKENS).remainder(256)[None]

    def forward():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids).loss

    return memory(forward)[0] - (2 * weights if autocast and dtype == torch.float32 else 0)


def layer(name, *variant):
    print(f"layer-{name} {(kept(3, *variant) - kept(1, *variant)) / 2 / TOKENS:.3f}", flush=True)


def loss_peak(vocabulary):
    """The peak of the backward pass; the outputs are dropped before it, as by the Trainer."""
    model = llama(1, torch.bfloat16, "sdpa", vocabulary)
    ids = torch.arange(TOKENS).remainder(256)[None]
    for parameter in model.parameters():  # gradients exist already, and only activations are counted
        parameter.grad = torch.zeros_like(parameter)

    def step():
        model(input_ids=ids, labels=ids).loss.backward()

    return memory(step)[1]


def step(name, **options):
    """The peak of AdamW's second step on two tensors of a million elements."""
    weights = [torch.nn.Parameter(torch.zeros(1 << 20)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, **options)
    optimizer.step()
    print(f"step-{name} {memory(optimizer.step)[1] / (2 << 20):.3f}", flush=True)


BF16, FP32 = torch.bfloat16, torch.float32
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
print("transformers", MAJOR)
layer("sdpa", False, BF16, "sdpa")
layer("autocast", True, FP32, "sdpa")
layer("eager", False, BF16, "eager")
if peft:
    layer("adapters", False, BF16, "sdpa", ALL)
    layer("adapters-autocast", True, BF16, "sdpa", ALL)
    layer("adapters-qv", False, BF16, "sdpa", ["q_proj", "v_proj"])
    layer("adapters-qv-autocast", True, BF16, "sdpa", ["q_proj", "v_proj"])
print(f"logit {(loss_peak(3 * VOCABULARY) - loss_peak(2 * VOCABULARY)) / TOKENS / VOCABULARY:.3f}")
step("foreach", foreach=True)
step("single", foreach=False)
step("fused", fused=True)
