"""Tiny jobs of every technique, each trained (or generating) on the host and on the device and compared. A row of `JOBS` is a
job; a group of rows is a stage of a run. Emulated, all of them run with every build (tests/test_emulated*.c); the rows here are
those whose kernels, libraries or copies a real device may still treat differently."""
import concurrent.futures
import json
import math
import os
import shlex

from program import BUILD
from runner import Failed

# Ranks that share the one GPU: NCCL takes them for ranks of different hosts, over loopback sockets. Their times mean nothing.
SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
SAME_BITS = {"TWINSPEED_CUDA_DETERMINISTIC": "1"}

# ---- models ----

LLAMA = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64}
BERT = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64}
TINY = {
    "gpt": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": {**LLAMA, "model_type": "llama", "intermediate_size": 160, "rms_norm_eps": 1e-5, "rope_theta": 10000},
    "mixtral": {**LLAMA, "model_type": "mixtral", "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {**LLAMA, "model_type": "qwen3", "intermediate_size": 96, "head_dim": 16},
    "qwen3-moe": {**LLAMA, "model_type": "qwen3_moe", "intermediate_size": 96, "head_dim": 16, "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "gemma2": {**LLAMA, "model_type": "gemma2", "intermediate_size": 96, "head_dim": 16, "sliding_window": 16},
    "bloom": {"model_type": "bloom", "vocab_size": 256, "hidden_size": 64, "n_layer": 2, "n_head": 4, "seq_length": 64},
    "bert": {**BERT, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "deberta": {**BERT, "model_type": "deberta-v2", "architectures": ["DebertaV2ForMaskedLM"], "relative_attention": True,
                "pos_att_type": "c2p|p2c", "type_vocab_size": 0},
    "t5": {"model_type": "t5", "vocab_size": 259, "num_layers": 2, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_heads": 4,
           "feed_forward_proj": "gated-gelu"},
    "deepseek": {**LLAMA, "model_type": "deepseek_v2", "intermediate_size": 96, "num_key_value_heads": 4, "kv_lora_rank": 32,
                 "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
                 "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
                 "n_group": 1, "topk_group": 1},
    "deepseek-3": {**LLAMA, "model_type": "deepseek_v3", "intermediate_size": 96, "num_key_value_heads": 4, "kv_lora_rank": 32,
                   "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
                   "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
                   "n_group": 1, "topk_group": 1},
    "padded": {"model_type": "gpt2", "vocab_size": 50304, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "padded-xl": {"model_type": "gpt2", "vocab_size": 50304, "n_positions": 1024, "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "qwen3-0.6b": {"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
                   "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                   "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True},
    # 0.42 x 10^9 parameters for a token, 2.2 x 10^9 in all
    "experts-2b": {"model_type": "qwen3_moe", "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 64,
                   "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 32,
                   "num_experts_per_tok": 4, "moe_intermediate_size": 1024, "max_position_embeddings": 4096},
    "llama-3b": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192,
                 "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
                 "max_position_embeddings": 8192, "rope_theta": 500000, "tie_word_embeddings": True},
    "learner": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 8}}


def pictures_network(modules, loss=None):
    """A network file for pictures of 32 x 32 in three colours and ten classes; modules: its text without quotes."""
    network = {"model_type": "network", "input": {"pictures": {"side": 32, "channels": 3}}, "classes": 10}
    if loss:
        network["loss"] = loss
    parsed = []
    for words in (line.split() for line in modules.strip().split("\n")):
        module = {"type": words[0]}
        for key, value in (word.split("=") for word in words[1:]):
            module[key] = json.loads(value) if value in ("true", "false") or value[0].isdigit() else value
        parsed.append(module)
    return dict(network, modules=parsed)


DECODER = """convolution out=8 side=4 stride=2 padding=1
leaky_relu slope=0.2
convolution out=12 side=4 stride=2 padding=1
leaky_relu slope=0.2
transposed_convolution out=6 side=4 stride=2 padding=1
tanh
flatten
linear out=16
sigmoid
linear out=10"""
CONVOLUTIONS = """convolution out=6 side=5
relu
max_pool side=2
convolution out=16 side=5
relu
max_pool side=2
flatten
linear out=120
relu
linear out=84
relu
"""
TINY.update({
    "cifar10": pictures_network(CONVOLUTIONS + "linear out=10"),
    "binary": pictures_network(DECODER, "binary_cross_entropy"),
    "squares": pictures_network(DECODER, "mean_squared_error"),
    "network-experts": pictures_network(
        CONVOLUTIONS + "experts experts=4 min_capacity=0 residual=true selection=first top_k=2 inner=24\nlinear out=10"),
    "tied": dict(pictures_network("flatten"), modules=[
        {"type": "convolution", "out": 4, "side": 8, "stride": 8}, {"type": "flatten"},
        {"name": "first", "type": "linear", "out": 64}, {"type": "tanh"},
        {"repeat": 2, "name": "again", "modules": [{"type": "linear", "out": 64, "tied": "first"}, {"type": "tanh"}]},
        {"type": "linear", "out": 10}])})
NETWORKS = ("cifar10", "binary", "squares", "network-experts", "tied")

# ---- jobs ----

Z, P = "--set zero_optimization.", "--set optimizer.params."
HOST = Z + "offload_optimizer.device=cpu "
LORA = "--set twinspeed.lora.r=4 --set twinspeed.lora.target_modules=\"all-linear\" "
CODES = LORA + "--set twinspeed.frozen_quantization.block_size=32 --set twinspeed.frozen_quantization.type="
DISK = Z + "offload_optimizer.device=nvme " + Z + "offload_optimizer.nvme_path=DISK "


def optimizer(name, more=""):
    return "--set optimizer.type=%s %s" % (name, more)


# Of a group: name, model, flags, where they differ from 1 and 2e-4 the ranks and the limit of the largest relative difference of
# a loss, and a variable of the environment that is set to 1. DISK stands for a folder, TEXT for a file. Those that never ran on a
# device come first.
JOBS = {
    "families": [
        ("mixtral", "mixtral", ""), ("bert", "bert", ""), ("t5", "t5", ""), ("deepseek", "deepseek", ""),
        ("deberta", "deberta", ""), ("qwen3", "qwen3", ""), ("gemma2", "gemma2", ""), ("bloom", "bloom", "")],
    "routing": [
        ("dropless", "mixtral", "--set twinspeed.expert_dropless=true"),
        ("every-slot", "qwen3-moe", "--set twinspeed.expert_capacity_factor=0"),
        ("biases", "deepseek-3", "--set twinspeed.expert_bias_rate=0.001"),
        ("bf16", "mixtral", "--dtype bf16", 1, 3e-2)],
    "optimizers": [
        ("adagrad", "gpt", optimizer("Adagrad", P + "lr=0.01")), ("lion", "gpt", optimizer("Lion", P + "lr=0.0003")),
        ("lamb", "gpt", optimizer("Lamb")), ("sgd", "gpt", optimizer("SGD", P + "momentum=0.9 " + P + "nesterov=true")),
        ("muon", "llama", optimizer("Muon")), ("adafactor", "llama", optimizer("Adafactor", P + "lr=0.01")),
        ("codes", "llama", optimizer("AdamW8bit")), ("codes-paged", "gpt", optimizer("PagedAdamW8bit")),
        ("halves", "llama", "--dtype bf16 --set twinspeed.split_master_weights=true", 1, 3e-2),
        ("bf16-states", "gpt", "--dtype bf16 --stage 1 --set bf16.bf16_master_weights_and_grads=true "
                               "--set bf16.bf16_optimizer_states=true", 1, 3e-2)],
    "adapters": [
        ("lora", "llama", LORA), ("lora-int8", "llama", CODES + "int8"), ("lora-nf4", "llama", CODES + "nf4"),
        ("lora-nf4-twice", "llama", CODES + "nf4 --set twinspeed.frozen_quantization.scale_block_size=16"),
        ("frozen", "gpt", "--set 'twinspeed.frozen_parameters=[\"*\",\"!*h.1.*\"]'")],
    "networks": [(name, name, "--micro-batch 8 --accumulation 2") for name in NETWORKS],
    "pieces": [
        ("chunks", "gpt", "--recompute selective --set twinspeed.attention_chunks=2"),
        ("chunks-recomputed", "llama", "--recompute full --set twinspeed.attention_chunks=4"),
        ("tiles", "llama", "--set twinspeed.loss_tiles=4 --set twinspeed.mlp_tiles=2"),
        ("fp8", "llama", "--dtype bf16 --set twinspeed.matmul_dtype=fp8", 1, 3e-2),
        ("fp8-delayed", "llama", "--dtype bf16 --set twinspeed.matmul_dtype=fp8 --set twinspeed.fp8_recipe=delayed", 1, 3e-2),
        ("evaluations", "gpt", "--eval-data TEXT --eval-every 2 --eval-steps 2"),
        ("fp8-biases", "gpt", "--dtype bf16 --set twinspeed.matmul_dtype=fp8 --set twinspeed.fp8_recipe=delayed", 1, 3e-2)],
    "ranks": [
        ("experts-two", "mixtral", "--ep 2", 2), ("latent-two", "deepseek", "--ep 2", 2),
        ("network-experts-two", "network-experts", "--ep 2 --micro-batch 4", 2),
        ("sparse", "llama", "--set sparse_gradients=true", 2),
        ("signs-adam", "gpt", optimizer("OneBitAdam", P + "freeze_step=5 " + P + "lr=0.0001"), 2, 5e-3),
        ("signs-lamb", "gpt", optimizer("OneBitLamb", P + "freeze_step=5 " + P + "lr=0.001"), 2, 5e-3),
        ("signs-intervals", "gpt", optimizer("ZeroOneAdam", P + "var_freeze_step=4 " + P + "local_step_scaler=2 " + P + "lr=0.0001"), 2, 5e-3),
        ("ring", "llama", "--sp 2 --set twinspeed.sequence_algorithm=ring", 2),
        ("codes-two", "gpt", "--stage 3 " + optimizer("AdamW8bit"), 2), ("muon-two", "llama", "--stage 2 " + optimizer("Muon"), 2),
        ("quantized", "gpt", "--stage 3 %szero_quantized_weights=true %szero_quantized_gradients=true" % (Z, Z), 2, 1e-2),
        ("registered", "gpt", "--stage 3", 2, 2e-4, "TWINSPEED_NCCL_REGISTER"),
        ("blocking", "gpt", "--tp 2", 2, 2e-4, "TWINSPEED_NCCL_BLOCKING"),
        ("symmetric", "gpt", "--stage 2", 2, 2e-4, "TWINSPEED_NCCL_SYMMETRIC")],
    # Each also recorded against eager, to the last bit.
    "offload": [
        ("optimizer", "llama", "--stage 2 --accumulation 2 " + HOST),
        ("parameters", "llama", "--stage 3 " + HOST + Z + "offload_param.device=cpu"),
        ("checkpoints", "llama", "--stage 1 --recompute full --set activation_checkpointing.cpu_checkpointing=true " + HOST),
        ("experts", "mixtral", "--stage 2 " + HOST),
        ("part", "gpt", "--stage 3 " + HOST + Z + "offload_optimizer.ratio=0.5 " + Z + "sub_group_size=20000"),
        ("delayed", "llama", "--stage 2 --set twinspeed.delayed_update=true " + HOST),
        ("columns", "llama", "--stage 2 " + HOST + Z + "zenflow.topk_ratio=0.1 " + Z + "zenflow.update_interval=2 " + Z +
         "zenflow.select_interval=4 " + Z + "zenflow.select_strategy=step " + Z + "zenflow.overlap_step=false"),
        ("columns-late", "llama", "--stage 2 " + HOST + Z + "zenflow.topk_ratio=0.1 " + Z + "zenflow.update_interval=2 " + Z +
         "zenflow.select_interval=4 " + Z + "zenflow.select_strategy=step " + Z + "zenflow.overlap_step=true"),
        ("columns-measured", "llama", "--stage 2 " + HOST + Z + "zenflow.topk_ratio=0.1 " + Z + "zenflow.update_interval=auto " + Z +
         "zenflow.overlap_step=true"),
        ("disk", "llama", "--stage 3 " + DISK + Z + "offload_param.device=nvme " + Z + "offload_param.nvme_path=DISK"),
        ("chunks-away", "llama", "--stage 2 --recompute full --set activation_checkpointing.cpu_checkpointing=true "
                                 "--set twinspeed.attention_chunks=4 " + HOST),
        ("adapters-away", "llama", "--stage 3 " + LORA + HOST + Z + "offload_param.device=cpu"),
        ("pageable", "gpt", "--stage 2 " + HOST + Z + "offload_optimizer.pin_memory=false"),
        ("lion-away", "gpt", "--stage 2 " + optimizer("Lion", P + "lr=0.0003 ") + HOST),
        ("two-ranks", "llama", "--stage 2 %soverlap_comm=true %s" % (Z, HOST), 2)]}
EAGER = {"TWINSPEED_CUDA_EAGER": "1"}
# Where steps are not recorded, as documented: copies of pageable memory.
NOT_RECORDED = ("pageable",)


def pictures(run):
    """Sixteen pictures: class i mod 10, pixels by a formula."""
    path = run.path("pictures.bin")
    with run.lock:
        if not os.path.exists(path):
            with open(path, "wb") as file:
                for i in range(16):
                    file.write(bytes([i % 10]) + bytes((k * 7919 + i * 104729 + k * k * 31) // 7 % 256 for k in range(32 * 32 * 3)))
    return path


def job(run, group, name, model, flags, ranks=1, limit=2e-4, variable=None):
    """One row: the device's losses are the host's, and for offloading an eager run has a recorded one's bits."""
    disk = run.path("disk")
    os.makedirs(disk, exist_ok=True)
    flags = shlex.split(flags.replace("DISK", disk).replace("TEXT", run.text()))
    few = run.dry and group not in ("offload", "ranks")  # whose later steps are others than the first
    for flag, value in (("--dtype", "fp32"), ("--micro-batch", 2), ("--steps", 3 if few else 8)):
        flags += [] if flag in flags else [flag, value]
    flags += ["-m", run.tiny(model), "-n", ranks] + ([] if model in NETWORKS else ["--seq", 32])
    data, name = pictures(run) if model in NETWORKS else run.text(), "%s-%s" % (group, name)
    device = dict(SAME_BITS, **(SHARED if ranks > 1 else {}), **({variable: "1"} if variable else {}))
    pageable = name.endswith(NOT_RECORDED)
    found = run.train(name + "-gpu", flags, ranks=ranks, env=dict(device, **(EAGER if pageable else {})), data=data)
    host, losses = run.train(name + "-host", flags, ranks=0, data=data), found["losses"]
    run.compare("%s, host against GPU" % name, host["losses"], losses, limit)
    if "evaluations" in host:
        evaluated = [[one["loss"] for one in result["evaluations"]] for result in (host, found)]
        run.compare("%s, evaluations of host against GPU" % name, *evaluated, limit)
    if group == "offload" and not pageable:
        eager = run.train(name + "-eager", flags, ranks=ranks, env=dict(device, **EAGER), data=data)["losses"]
        run.compare("%s, recorded against eager" % name, eager, losses, 0)


def several(run, items, one, at_once):
    """one(item) for each, some at once; those that fail do not end the others, and are told together."""
    limit, log, bad = run.limit, run.log, []

    def guarded(item):
        run.enter(limit, log)
        try:
            one(item)
        except (Failed, OSError, ValueError, KeyError, TypeError, IndexError) as reason:
            bad.append("%s: %s" % (item[0], reason))
            run.note(bad[-1])

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(guarded, items))
    if bad:
        raise Failed("%d of %d: %s" % (len(bad), len(items), "; ".join(sorted(bad))))


def group(run, name, at_once=2):
    """A stage: all jobs of a group."""
    several(run, JOBS[name], lambda row: job(run, name, *row), 1 if run.dry else at_once)


# ---- generating ----

# Model, options, limit of a log probability's difference.
TEXTS = [
    ("gpt", "--tokens 12", 1e-4), ("llama", "--tokens 12", 1e-4), ("llama", "--tokens 8 --dtype bf16", 5e-2),
    ("gpt", "--tokens 8 --cache-block 4", 1e-4), ("deepseek", "--tokens 6", 1e-4), ("deepseek", "--tokens 4 --cache fp8", 1e-2),
    ("llama", "--tokens 8 --cache fp8", 1e-2), ("t5", "--tokens 6 --cache-block 4", 1e-4),
    ("gpt", "--tokens 8 --weights int4", 1e-4), ("gpt", "--tokens 8 --weights int8", 1e-4), ("gpt", "--tokens 3 --no-cache", 1e-4)]


def learned(run, model):
    """A folder with a checkpoint of a few steps on the host, and a file of its weights."""
    folder, weights = run.path("learned-" + model), run.path("learned-%s.safetensors" % model)
    with run.lock:
        if not os.path.exists(weights):
            run.train("learned-" + model, ["-m", run.tiny(model), "--dtype", "fp32", "--seq", 32, "--micro-batch", 2, "--steps", 8,
                                           "--save", folder], ranks=0)
            run.command([BUILD + "/twinspeed", "convert", "checkpoint", "--quiet", "--force", folder, weights])
    return folder, weights


def generates(run):
    """Greedy tokens of two prompts are the host's, and their log probabilities; the cache has the predicted bytes. Where two
    tokens are equally probable within the limit, either may follow, and what follows is not compared."""
    prompts = run.path("prompts.jsonl")
    with open(prompts, "w", encoding="ascii") as file:
        file.write('"sea ship"\n"over the white night"\n')

    def texts(model, options, device):
        folder, weights = learned(run, model)
        command = [BUILD + "/twinspeed", "generate", "--quiet", "--json", "--temperature", 0, "-m", run.tiny(model), "--prompts",
                   prompts, "--seq", 32] + shlex.split(options)
        command += ["--init-from", weights] if "--weights" in options else ["--resume", folder]
        return json.loads(run.command(command + (run.on_device(1) if device else [])))

    def one(item):
        model, options, limit = item
        host, device = texts(model, options, False), texts(model, options, True)
        if device["allocated_bytes"] != device["predicted_bytes"] or device["cache_bytes"] != host["cache_bytes"]:
            raise Failed("bytes of the cache or of the arenas")
        for a, b in zip(host["texts"], device["texts"]):
            for i, (x, y) in enumerate(zip(a["log_probabilities"], b["log_probabilities"])):
                if not math.isfinite(y) or abs(x - y) > limit:
                    raise Failed("%s: token %d: %g, not %g" % (options, i, y, x))
                if a["tokens"][i] != b["tokens"][i]:
                    break
        run.say("%s %s: the host's texts" % (model, options))

    for model in sorted({item[0] for item in TEXTS}):
        learned(run, model)
    several(run, TEXTS, one, 1 if run.dry else 3)
