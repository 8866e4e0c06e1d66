#include "models/hardware/runtime.h"

#include <stdio.h>
#include <string.h>
#include "models/hardware/profile_internal.h"

/* Sources and fits (docs/accuracy.md; fits on half of each group of published runs):
 *   host_op_s   The seconds of one of the operations that launches.def counts, and where they come from, are there.
 *   accumulates DeepSpeed's bf16 optimizer (bf16_optimizer.py, update_hp_grads): 16-bit gradients of a micro-batch are
 *               cast to float32 (6 bytes per parameter) and added to those of the step (12). They are written anew in
 *               each micro-batch (2 bytes), whereas a plan that accumulates in 16 bits reads and writes 4 bytes; so the
 *               software moves 16 bytes per parameter more than the plan.
 *   float_gradients Megatron's default; NeMo's and Megatron-Bridge's performance recipes have gradients in 16 bits
 *               (grad_sync_dtype bf16; grad_reduce_in_fp32 off in perf_recipes/_common.py).
 *   logit_bytes of megatron-deepspeed: its loss (gpt_model.py and core/sequence_parallel/cross_entropy.py of 4efb479)
 *               makes logits float32; softmax and its logarithm are tensors of their own: 4 bytes a logit each.
 *   hand_over_s Waiting between the streams of kernels and of NCCL and for the last rank takes 60 us, by the same runs.
 *   recomputes  torch.utils.checkpoint of the reentrant kind, Megatron's and DeepSpeed's own run a layer again whole.
 *   part_s      DeepSpeed before 0.6 and PyTorch before 1.10 gather into lists, and reduce from lists, of one tensor
 *               per rank (partition_parameters.py, stage3.py; ProcessGroupNCCL.cpp copies each tensor): 10 us per
 *               tensor, for a slice in Python and the launch of a copy.
 *   launch_s    Launching a kernel takes 6 us in eager software and 1.6 us in newer software; with CUDA_LAUNCH_BLOCKING
 *               it takes 72 us for each kernel of a plan.
 *   flash       FlashAttention in Triton, 2022: 0.38 of an A100's peak, 0.21 of an H100's; FlashAttention 2, cuDNN:
 *               0.44 and 0.375, Blackwell 0.58; FlashAttention 3 is 1.5 to 2 times the second forward on Hopper, 1.5
 *               to 1.75 backward (Shah et al., 2024): 0.62.
 *               cuDNN 9 (Transformer Engine since autumn 2024): 0.50 on Hopper, fitted with the factors below; on
 *               Blackwell 0.48 in software of early 2025 and in Megatron-Core's own runs, fitted with them, too.
 *   factors     The profile's share of the peak is multiplied by these. Hopper since autumn 2024: 1.09 in 16 bits, 0.9
 *               in 8 (0.87 and 0.72 of the peak on H100 SXM; large products of serving frameworks reach 0.75 and 0.55,
 *               the best ones 0.97), fitted to 19 runs of seven groups of the half for fitting. Blackwell before its
 *               libraries were tuned: 0.86, fitted to 14 runs of four groups. Grouped products of experts gain nothing
 *               in 16 bits. twinspeed on Hopper: cuDNN 9.19's 0.72, and 0.90 of products, which all steps of
 *               traces/2026-11-26-nvidia-h100-80gb-hbm3 follow within 3.3 %.
 *   score_bytes These are the bytes that Megatron-LM's kernels move (docs/accuracy.md); eager PyTorch runs mask,
 *               scaling and casts as separate kernels.
 *   context     The figure is nvidia-smi's memory less that of PyTorch's allocator: 4.5 GiB for CUDA, NCCL and cuBLAS
 *               with three communicators a rank, 1.5 GiB without any communicator.
 *   logits      A float32 copy and its gradient exist in addition to the plan's tensors: 10 bytes a logit.
 *               Megatron-Core writes the gradient over the float32 copy: 4 bytes.
 *   kept_outputs  DeepSpeed's pipe/engine.py has at least two buffers for a stage's outputs and frees none in the last
 *               stage (_exec_backward_pass). In BigScience's Megatron-DeepSpeed of 2021 these are float32 logits
 *               (gpt_model.py, float16_to_fp32), of which the loss makes the softmax in a clone and the gradient in its
 *               place (mpu/cross_entropy.py): 4 + 4 + 4 + 2 bytes a logit.
 *   allocator   PyTorch's allocator places a tensor when it is requested, so the gaps of a plan's layout do not apply
 *               to it: a plan's allocations are run through a simulation of it (caching_allocator.c). torchtitan's
 *               run_train.sh sets expandable_segments:True.
 *   workspace   These are the workspaces of cuBLAS and Transformer Engine from PyTorch's allocator: the bytes that
 *               Megatron-Core's tests use in addition to 18 bytes a parameter, 68 MiB on A100, 96 MiB on H100 and
 *               GB200.
 *   copies      DeepSpeed 0.19 (coalesced_collectives.py) interleaves the partitions of a bucket's gradients in a new
 *               tensor before it reduces them, so the bucket and its copy exist at the same time. ZeRO-2
 *               (stage_1_and_2.py) flattens gradients, and has two buckets with overlap_comm.
 *   step        The Trainer 4's default optimizer is PyTorch's AdamW with foreach; with PyTorch 2.8 and later it is
 *               the fused one from 4.57 on (training_args.py). The buffers from the first gradient through the
 *               optimizer phase are listed in step_buffers.def.
 *   host        Pinned buffers and their rounding are listed in host_buffers.def. A Python process with CUDA's
 *               libraries takes 3 to 5 GB (assumed: 4; a published run of 33 B on one node then takes 781 GB, and 750
 *               to 800 GB were reported).
 *   loads       DeepSpeed 0.19 (engine.py) copies a model that zero.Init did not partition to the device as a whole;
 *               partition_parameters.py then partitions one parameter after the other.
 *   host_reached  The figure is for DeepSpeedCPUAdam with the norm, scaling and casts around it: of the shares 0.17,
 *               0.2, 0.25 and 1 of the bandwidth of a node's memory, it is the one whose prediction is nearest to the
 *               three runs on H200 of stas-8b-z3off.
 *   expert_op_s Transformer Engine's GroupedLinear issues a cuBLAS product for each expert over several streams;
 *               DeepSpeed's experts are modules in a loop.
 *   expert_cast_s  For products in 8 bits, a quantizer is called from Python for each expert's input: of 33, 60, 90 and
 *               120 us, the figure is the one nearest to every other run with experts of Megatron-Bridge.
 *   route_s     If the host reads the number of tokens of each expert before it issues the expert's kernels
 *               (Megatron-Core's token_dispatcher.py), the device waits. Of 0, 0.5 and 1 ms a pass and layer, 0.5 was
 *               chosen by the same runs.
 *   routed_bytes  The bytes are counted from token_dispatcher.py and experts.py: received tokens are sorted by expert
 *               (read and written), and for products in 8 bits padded to whole tiles; results are sorted back, too.
 *   nemo-graphs Since release 26.06, recipes of Megatron-Bridge capture steps with MXFP8 in CUDA graphs
 *               (set_full_iter_cg_configs) and run experts as one kernel (use_transformer_engine_op_fuser), so the host
 *               is not a limit.
 *   keeps       The figures count what autograd saves (tools/autograd/derivatives.yaml) of LitGPT's model.py and
 *               lora.py: RMSNorm casts to float32 (4 bytes in place of the plan's 2); apply_rope and cat make new
 *               queries and keys while the values view the joined projection; silu(gate) is an operand of the product;
 *               index_copy keeps its source, what adapters add; dropout's mask is of bool. Logits leave the model in
 *               float32 (Fabric's convert_output() of bf16-true), and so does log_softmax, whose output is kept as
 *               well: 8 bytes, 2 of which are the plan's. bitsandbytes's MatMul4Bit keeps what enters it. LitGPT's
 *               load_checkpoint() summons full parameters next to FSDP's shards to write the file's into them.
 *               Transformers 5.24 (counted by a tracer of storages on a CPU, SDPA): RMSNorm keeps its input in float32
 *               and what it normalised in 16 bits, the gate's activation is an operand of the product; 12 bytes a
 *               logit at the peak of backward, as in every release from 4.38 on, 2 of which are the plan's. Nothing of
 *               its times is fitted: a Llama's layer is issued as fast as 60 us for each kernel of a plan are.
 *               Under autocast (Trainer's bf16 without DeepSpeed) float32 weights have a float32 residual and norms,
 *               and each projection casts its input: 8f + 30h + 4kv + 4H bytes a token and layer, counted alike.
 *               PEFT 0.21 makes adapters float32 and casts x for each (lora/layer.py, _cast_input_dtype), which
 *               autocast makes 16 bits again: a copy for each adapter; DeepSpeed makes adapters 16 bits, which share x.
 *               bitsandbytes's MatMul4Bit since 0.41 keeps no input. Liger's RMSNorm and SiLUMul keep their inputs.
 *               Transformers 4.38 to 4.57 (counted by the same tracer): repeat_kv() copies keys and values for each
 *               head of queries before SDPA, which keeps the copies: 8f + 24h + 4H bytes a token and layer (2h more in
 *               4.50). Eager attention keeps the softmax in float32 and its 16-bit copy, 6 bytes a score; in the
 *               softmax's derivative there are the float32 output, its gradient and the result: 12.
 *   widens_frozen  PEFT 0.21, utils/other.py: prepare_model_for_kbit_training() makes all 16-bit parameters that are
 *               not of a quantized linear layer float32. A float32 embedding makes the residual float32.
 *   loss_chunks  Liger's fused_linear_cross_entropy.py: parts of next_power_of_2(ceil(tokens / ceil(V / h))) tokens,
 *               gradients made in the forward pass. TRL 1.10's loss_type is chunked_nll (sft_trainer.py): 256 tokens.
 *   bucket_copies  DistributedDataParallel without gradient_as_bucket_view, as accelerate calls it.
 *   root_stays, gather_copies  FSDP does not reshard its root unit (embedding, norm, head) after forward; FSDP2 copies
 *               parameters out of what it gathered (_fsdp_collectives.py, foreach_all_gather_copy_out).
 *   late        torchtune's recipes set gradients to None after each step, as zero_grad() does since PyTorch 2.0. Its
 *               CEWithChunkedOutputLoss is given the logits of all tokens in 16 bits (transformer.py, chunked_output)
 *               and makes float32 of an eighth of them at a time, in a compiled kernel: 2 bytes a logit and a chunk.
 *   flat        LitGPT's finetune/lora.py accumulates in fabric.no_backward_sync(): FSDP's no_sync() does not reduce.
 *               With use_orig_params a flat parameter has trained and frozen parts; the derivative of split() makes
 *               zeros of undefined gradients and joins all of them.
 *   one_hot     DeepSpeed's MoE layer from 2021 on: einsum with masks of tokens x experts x capacity
 *               (sharded_moe.py).
 *   weighs_early  Megatron-Core since 0.12 multiplies what the activation of an expert makes by the token's weight
 *               (experts.py, TEGroupedMLP.forward with permuted_probs; weighted_bias_swiglu_impl keeps what enters it),
 *               so that combining is a sum and backward reads no output of an expert.
 *   keeps_gradients  Megatron-Core's core/distributed/param_and_grad_buffer.py allocates gradients once, before the
 *               first step.
 *   dispatch    DeepEP's normal kernels (its README, docs/legacy.md): 153 and 158 GB/s of an H800's 160 over NVLink
 *               among 8 ranks, 43 to 58 of 50 over RDMA among 16 to 64 ranks, where bytes inside nodes are counted too:
 *               51 and 50 among 64. Its low-latency kernels send each route by RDMA alone, 173 us for 7.6 MB and 314 us
 *               for
 *               14.7 MB among 64, which is 23 us and 50 GB/s. Megatron-Bridge's recipes of 2026 take HybridEP, those
 *               of 2025 and some of Qwen3-235B all-to-alls (moe_flex_dispatcher_backend, moe_token_dispatcher_type in
 *               scripts/performance/configs).
 *   products    cuBLAS of CUDA 12 on A100 reaches 0.92 of the peak, where the profile has 0.88 of CUDA 11's. The figure
 *               was chosen on every other run of llmfoundry, with the results of the other runs known; large products
 *               reach 238 TFLOP/s with it, and the best known shape 271.
 *   pytorch-2020  These are eager modules without the checks between them that Megatron and the Trainer have: an
 *               operation is issued in 15 us, as by PyTorch in fsdp-2022; no figure is fitted.
 *   bert-2020   In NVIDIA's BERT (DeepLearningExamples, PyTorch) at most 20 of 128 and 80 of 512 tokens are predicted
 *               (max_predictions_per_seq), and only these tokens reach the head. A report of BERT-large on 80 GB runs
 *               with 480 sequences of 128 tokens and not with 512.
 *   transformers-2021  gelu_new is eight kernels in the forward pass and fourteen in the backward pass; the optimizer
 *               is nine kernels over a shard, in addition to casts and a norm in float64 (transformers 4.12,
 *               DeepSpeed 0.5).
 *   curved      transformers 4.12's gelu_new (activations.py), x*0.5*(1+tanh(..(x+..pow(x,3)))), keeps x, half of it,
 *               tanh and 1 + tanh, where a plan has x: 3; its "gelu" is one kernel. NVIDIA's BERT of 2020 (bias_gelu in
 *               DeepSpeedExamples, BingBertSquad/turing/nvidia_modeling.py), x*0.5*(1+erf(x/1.41421)), keeps what
 *               enters erf, half of x and 1 + erf: 2.
 *   keeps_wide  torchao's matmul_with_hp_or_float8_args saves its operands in their original type; Transformer Engine
 *               saves them in 8 bits, as the weight's gradient reads them (the column-wise data of its Float8Tensor).
 *   cast_bytes  torchao's dynamic scaling reads the input of an fp8 product twice, and casts weights in each use; its
 *               row-wise recipe casts along rows and along columns: 16 bytes, from its two published rates. */
#define FLASH_2022 \
  { 0, 0, 0.38, 0.21, 0 }
#define FLASH_2 \
  { 0, 0, 0.44, 0.375, 0.58 }
#define FLASH_3 \
  { 0, 0, 0.44, 0.62, 0.58 }
#define CUDNN_9 \
  { 0, 0, 0.44, 0.5, 0.58 }
#define CUDNN_9_EARLY \
  { 0, 0, 0.44, 0.5, 0.48 }
/* Factors by which the profile's share of the peak is multiplied, for matrix products in 16 and in 8 bits. */
#define HOPPER_2024 .product_factor = {[TWS_GENERATION_HOPPER] = 1.09}, .narrow_factor = {[TWS_GENERATION_HOPPER] = 0.9}
#define BLACKWELL_EARLY                                                                  \
  .product_factor = {[TWS_GENERATION_HOPPER] = 1.09, [TWS_GENERATION_BLACKWELL] = 0.86}, \
  .narrow_factor = {[TWS_GENERATION_HOPPER] = 0.9, [TWS_GENERATION_BLACKWELL] = 0.86}
#define CUBLAS_12 \
  { 0, 0, 0.92, 0, 0 }
#define DEEPSPEED_HOST 0.2
#define DEEPEP \
  { 0.96, 1 }
#define ENGINE_WORKSPACE \
  { 0, 0, 68 * 1048576.0, 96 * 1048576.0, 96 * 1048576.0 }
/* Memory figures of PyTorch's processes in addition to tensors, and figures that all versions of a software have in
 * common. */
#define TORCH .context_bytes = 1.5 * 1073741824.0, .reserved_share = 0.06
#define COMMUNICATORS TORCH, .recomputes_whole = 1, .communicator_bytes = 1073741824.0
#define EAGER_ATTENTION(first, second) .attention = TWS_ATTENTION_UNFUSED, .score_bytes = {first, second}
/* NVIDIA's BERT in PyTorch of 2019 and 2020. */
#define PYTORCH_2020                                                                                            \
  EAGER, EAGER_ATTENTION(21, 19), .launch_s = 6e-6, MODULES_ISSUES(15e-6), .added_passes = TWS_PASSES_MEGATRON, \
                                  .overlaps_data = 1
#define EAGER COMMUNICATORS, .unfused = 1, .logit_bytes = 10
#define MEGATRON_LM \
  .measured = TWS_MEASURED_MEGATRON_LM, EAGER, .added_passes = TWS_PASSES_MEGATRON, EAGER_ATTENTION(8, 9)
#define MEGATRON_ISSUES .issues = TWS_ISSUES_MEGATRON, .host_op_s = 30e-6
#define ENGINE_ISSUES(seconds) .issues = TWS_ISSUES_ENGINE, .host_op_s = seconds
#define MODULES_ISSUES(seconds) .issues = TWS_ISSUES_MODULES, .host_op_s = seconds
#define EAGER_EXPERTS .expert_op_s = 170e-6, .one_hot_experts = 1
#define MEGATRON_LM_2021 MEGATRON_LM, .launch_s = 1.6e-6, MEGATRON_ISSUES, .hand_over_s = 60e-6, EAGER_EXPERTS
#define ENGINE                                                                                                    \
  .measured = TWS_MEASURED_MEGATRON_CORE, COMMUNICATORS, .unfused = 1, .products = CUBLAS_12, .overlaps_data = 1, \
  .logit_bytes = 4, .workspace_bytes = ENGINE_WORKSPACE, .weighs_early = 1, .narrow_inputs = 1, .keeps_gradients = 1
#define GROUPED_EXPERTS .expert_op_s = 7e-6, .expert_cast_s = 90e-6, .route_s = 0.5e-3, .routed_bytes = {4, 8}
#define MEGATRON_CORE_AT(seconds) ENGINE, ENGINE_ISSUES(seconds), GROUPED_EXPERTS
#define MEGATRON_CORE MEGATRON_CORE_AT(9e-6)
#define DEEPSPEED_ENGINE \
  .copies_buckets = 1, .step = TWS_STEP_DEEPSPEED, .host = TWS_HOST_DEEPSPEED, .host_process_bytes = 4e9
#define FLASH_ATTENTION(generation) .attention = TWS_ATTENTION_FLASH, .flash = generation
#define FSDP2                                                                                         \
  .measured = TWS_MEASURED_FSDP, .cast_bytes = {6, 8}, .keeps_wide = 1, .contends = 1, .by_block = 1, \
  FLASH_ATTENTION(FLASH_2), .unread_outputs = 1
/* Hugging Face's modules, and what autograd keeps of them. */
#define HUGGING_FACE_MODULES                                                                 \
  .launch_s = 6e-6, MODULES_ISSUES(10e-6), .unfused = 1, .products = CUBLAS_12,              \
  .added_passes = TWS_PASSES_EAGER | TWS_PASSES_LOSS | TWS_PASSES_NORMS, .overlaps_data = 1, \
  .host_reached = DEEPSPEED_HOST
#define HUGGING_FACE FLASH_ATTENTION(FLASH_2), HUGGING_FACE_MODULES
#define HUGGING_FACE_EAGER EAGER_ATTENTION(21, 19), .kept_score_bytes = {6, 6}, HUGGING_FACE_MODULES
#define HUGGING_FACE_DDP COMMUNICATORS, .float_gradients = 1, .bucket_copies = 1, .late_gradients = 1
#define HUGGING_FACE_FSDP TORCH, .recomputes_whole = 1, .contends = 1, .by_block = 1, .root_stays = 1
#define LIGER_KEEPS .dropout_mask = 1, .adapters_apart = 1
#define HUGGING_FACE_KEEPS .norm_input = 2, .normalized = 2, .gate_output = 2, LIGER_KEEPS
#define AUTOCAST(repeated)                                                                          \
  .casts_weights = 1, .widens_frozen = 1,                                                           \
  .keeps = {HUGGING_FACE_KEEPS, .adapter_input = 2, .repeated_keys = repeated},                     \
  .keeps_cast = {.norm_input = 2, .normalized = 4, .gate_output = 2, .cast_input = 2, LIGER_KEEPS, \
                 .repeated_keys = repeated}
#define LIGER_AUTOCAST                                                                 \
  .casts_weights = 1, .widens_frozen = 1, .keeps = {LIGER_KEEPS, .adapter_input = 2}, \
  .keeps_cast = {.norm_input = 2, .cast_input = 2, LIGER_KEEPS}
static const tws_runtime runtimes[] = {
    {.name = "twinspeed",
     .about = "this program's own engine",
     .measured = TWS_MEASURED_OWN,
     .allocator = TWS_ALLOCATOR_AHEAD,
     .flash = {[TWS_GENERATION_HOPPER] = 0.72},
     .products = {[TWS_GENERATION_HOPPER] = 0.90}},
    {.name = "megatron-2019",
     .about = "Megatron-LM of 2019 and 2020: mask, scaling and softmax of attention are kernels of their own",
     .measured = TWS_MEASURED_MEGATRON_LM,
     EAGER,
     EAGER_ATTENTION(21, 19),
     .launch_s = 1.6e-6,
     .issues = TWS_ISSUES_MEGATRON,
     .host_op_s = 27e-6,
     .hand_over_s = 60e-6,
     .added_passes = TWS_PASSES_MEGATRON,
     .gradient_copies = 1,
     .boundary_tensors = 2},
    {.name = "megatron-2021",
     .about = "Megatron-LM and Megatron-DeepSpeed of 2021 to 2023: fused masked softmax, no flash attention",
     MEGATRON_LM_2021,
     .part_s = 10e-6,
     .gradient_copies = 1,
     .boundary_tensors = 2,
     .kept_outputs = 2},
    {.name = "megatron-deepspeed-2021",
     .about = "Megatron-DeepSpeed of 2021: as megatron-2021, and its engine adds bf16's gradients to float32 ones",
     MEGATRON_LM_2021,
     .part_s = 10e-6,
     .accumulates_bytes = 16,
     .whole_gradients = 1,
     .gradient_copies = 1,
     .boundary_tensors = 2,
     .kept_outputs = 2},
    {.name = "megatron-deepspeed",
     .about = "Megatron-DeepSpeed since 2023 with FlashAttention 2: Ulysses and FPDT, logits in float32",
     .measured = TWS_MEASURED_MEGATRON_LM,
     COMMUNICATORS,
     .unfused = 1,
     .added_passes = TWS_PASSES_MEGATRON,
     .launch_s = 1.6e-6,
     MEGATRON_ISSUES,
     .hand_over_s = 60e-6,
     EAGER_EXPERTS,
     FLASH_ATTENTION(FLASH_2),
     DEEPSPEED_ENGINE,
     .logit_bytes = 12},
    {.name = "megatron-2022",
     .about = "megatron-2021 of 2022 and 2023: tensor ranks reduce overlapped with the weight's gradient",
     MEGATRON_LM_2021,
     .overlaps_tensor = 1,
     .gradient_copies = 1},
    {.name = "megatron-2021-blocking",
     .about = "megatron-2021 with CUDA_LAUNCH_BLOCKING=1: no kernel starts before the last has ended",
     MEGATRON_LM,
     .launch_s = 150e-6,
     .gradient_copies = 1,
     .boundary_tensors = 2,
     .kept_outputs = 2},
    {.name = "megatron",
     .about = "Megatron-Core, NeMo and Megatron-Bridge since 2023: Transformer Engine, flash attention",
     MEGATRON_CORE_AT(35e-6),
     FLASH_ATTENTION(CUDNN_9_EARLY),
     BLACKWELL_EARLY,
     .float_gradients = 1},
    {.name = "nemo-2024",
     .about = "NeMo of 2023 to July 2024: as nemo, with the attention and products of that time",
     MEGATRON_CORE,
     FLASH_ATTENTION(FLASH_2),
     .overlaps_tensor = 2},
    {.name = "nemo-2025",
     .about = "NeMo of September 2024 to May 2025: as nemo, and not yet its rates on Blackwell",
     MEGATRON_CORE,
     FLASH_ATTENTION(CUDNN_9_EARLY),
     BLACKWELL_EARLY,
     .overlaps_tensor = 2},
    {.name = "nemo",
     .about = "NeMo and Megatron-Bridge: as megatron, tensor ranks exchange tokens overlapped with products",
     MEGATRON_CORE,
     FLASH_ATTENTION(CUDNN_9),
     HOPPER_2024,
     .narrow_weights = 1,
     .overlaps_tensor = 2},
    {.name = "nemo-2026",
     .about = "Megatron-Bridge of 2026: as nemo, and tokens go to experts by DeepEP or HybridEP",
     MEGATRON_CORE,
     FLASH_ATTENTION(CUDNN_9),
     HOPPER_2024,
     .narrow_weights = 1,
     .sends_once = 1,
     .dispatch_reached = DEEPEP,
     .overlaps_tensor = 2},
    {.name = "nemo-graphs",
     .about = "as nemo-2026, and a step is one CUDA graph: MXFP8 on Blackwell since June 2026",
     ENGINE,
     FLASH_ATTENTION(CUDNN_9),
     HOPPER_2024,
     .narrow_weights = 1,
     .sends_once = 1,
     .dispatch_reached = DEEPEP,
     .overlaps_tensor = 2},
    {.name = "megatron-deepep",
     .about = "as megatron, and tokens go to experts by DeepEP (--moe-token-dispatcher-type flex)",
     MEGATRON_CORE_AT(35e-6),
     FLASH_ATTENTION(CUDNN_9_EARLY),
     BLACKWELL_EARLY,
     .sends_once = 1,
     .dispatch_reached = DEEPEP,
     .float_gradients = 1},
    {.name = "megatron-unfused",
     .about = "Megatron-Core with --attention-backend unfused: attention's scores in memory",
     ENGINE,
     GROUPED_EXPERTS,
     ENGINE_ISSUES(35e-6),
     EAGER_ATTENTION(8, 9),
     BLACKWELL_EARLY,
     .float_gradients = 1},
    {.name = "deepspeed",
     .about = "DeepSpeed under PyTorch's eager modules: every operation a kernel, attention's scores in memory",
     EAGER,
     EAGER_EXPERTS,
     EAGER_ATTENTION(21, 19),
     .launch_s = 6e-6,
     .issues = TWS_ISSUES_MEGATRON,
     .host_op_s = 27e-6,
     .added_passes = TWS_PASSES_MEGATRON,
     .overlaps_data = 1,
     DEEPSPEED_ENGINE},
    {.name = "transformers-2021",
     .about = "Hugging Face's Trainer with DeepSpeed, 2021: their modules operation by operation, nothing overlaps",
     EAGER,
     EAGER_ATTENTION(21, 19),
     .launch_s = 6e-6,
     .issues = TWS_ISSUES_MEGATRON,
     .host_op_s = 27e-6,
     .part_s = 10e-6,
     .added_passes = TWS_PASSES_MEGATRON | TWS_PASSES_TRANSFORMERS,
     .keeps = {.gelu_tensors = {3, 0}}},
    {.name = "transformers-2021-ddp",
     .about = "transformers-2021 without DeepSpeed: PyTorch's DDP, gradients in float32",
     EAGER,
     EAGER_ATTENTION(21, 19),
     .launch_s = 6e-6,
     .issues = TWS_ISSUES_MEGATRON,
     .host_op_s = 27e-6,
     .part_s = 10e-6,
     .added_passes = TWS_PASSES_MEGATRON | TWS_PASSES_TRANSFORMERS,
     .overlaps_data = 1,
     .float_reductions = 1,
     .keeps = {.gelu_tensors = {3, 0}}},
    {.name = "pytorch-2020",
     .about = "PyTorch of 2019 and 2020 without DeepSpeed: NVIDIA's BERT, operation by operation",
     .masked = "bert-2020",
     PYTORCH_2020,
     .keeps = {.gelu_tensors = {2, 2}}},
    {.name = "bert-2020",
     .about = "pytorch-2020 to pre-train BERT: one kernel for GELU and its bias, masked tokens alone are scored",
     PYTORCH_2020,
     .scored_share = 0.15625},
    {.name = "deepspeed-flash",
     .about = "DeepSpeed with flash attention and fused losses, 2024 and later",
     COMMUNICATORS,
     FLASH_ATTENTION(FLASH_2),
     MODULES_ISSUES(5e-6),
     .products = CUBLAS_12,
     .overlaps_data = 1,
     .host_reached = DEEPSPEED_HOST,
     DEEPSPEED_ENGINE},
    {.name = "deepspeed-whole",
     .about = "as deepspeed-flash of 2026 without zero.Init: stage 3 partitions what is whole on each device",
     COMMUNICATORS,
     FLASH_ATTENTION(FLASH_3),
     MODULES_ISSUES(5e-6),
     .products = CUBLAS_12,
     .overlaps_data = 1,
     .host_reached = DEEPSPEED_HOST,
     DEEPSPEED_ENGINE,
     .loads_whole = 1},
    {.name = "transformers",
     .about = "Hugging Face Transformers 5 with DeepSpeed: SDPA or flash attention, the ordinary loss, eager modules",
     HUGGING_FACE,
     COMMUNICATORS,
     .logit_bytes = 10,
     .keeps = {HUGGING_FACE_KEEPS},
     DEEPSPEED_ENGINE},
    {.name = "transformers-4",
     .about = "Hugging Face Transformers 4.38 to 4.57 with DeepSpeed: as transformers, SDPA of repeated keys",
     HUGGING_FACE,
     COMMUNICATORS,
     .logit_bytes = 10,
     .keeps = {HUGGING_FACE_KEEPS, .repeated_keys = 2},
     DEEPSPEED_ENGINE},
    {.name = "transformers-4-eager",
     .about = "transformers-4 with attn_implementation=\"eager\": attention's scores in memory, softmax in float32",
     HUGGING_FACE_EAGER,
     COMMUNICATORS,
     .logit_bytes = 10,
     .keeps = {HUGGING_FACE_KEEPS, .repeated_keys = 2},
     DEEPSPEED_ENGINE},
    {.name = "transformers-4-ddp",
     .about = "Hugging Face's Trainer 4.38 to 4.57 on one GPU or with DDP: as transformers-ddp, AdamW with foreach",
     HUGGING_FACE,
     HUGGING_FACE_DDP,
     .logit_bytes = 10,
     .step = TWS_STEP_FOREACH,
     AUTOCAST(2)},
    {.name = "transformers-4-ddp-eager",
     .about = "transformers-4-ddp with attn_implementation=\"eager\"",
     HUGGING_FACE_EAGER,
     HUGGING_FACE_DDP,
     .logit_bytes = 10,
     .step = TWS_STEP_FOREACH,
     AUTOCAST(2)},
    {.name = "transformers-4-fsdp",
     .about = "Hugging Face's Trainer 4.38 to 4.57 with FSDP 1: as transformers-fsdp, AdamW with foreach",
     HUGGING_FACE,
     HUGGING_FACE_FSDP,
     .logit_bytes = 10,
     .step = TWS_STEP_FOREACH,
     .keeps = {HUGGING_FACE_KEEPS, .adapter_input = 2, .repeated_keys = 2}},
    {.name = "transformers-liger",
     .about = "transformers with Liger's kernels (use_liger_kernel): no logits of all tokens, fused norms and gates",
     HUGGING_FACE,
     COMMUNICATORS,
     .loss_chunks = TWS_LOSS_BY_WIDTH,
     .keeps = {LIGER_KEEPS},
     DEEPSPEED_ENGINE},
    {.name = "transformers-ddp",
     .about = "Hugging Face's Trainer 5 on one GPU or with PyTorch's DDP: autocast, the ordinary loss, fused AdamW",
     HUGGING_FACE,
     HUGGING_FACE_DDP,
     .logit_bytes = 10,
     AUTOCAST(0)},
    {.name = "transformers-ddp-liger",
     .about = "transformers-ddp with Liger's kernels (use_liger_kernel)",
     HUGGING_FACE,
     HUGGING_FACE_DDP,
     .loss_chunks = TWS_LOSS_BY_WIDTH,
     LIGER_AUTOCAST},
    {.name = "transformers-fsdp",
     .about = "Hugging Face's Trainer 5 with FSDP 1: weights in float32 shards, layers gathered in 16 bits",
     HUGGING_FACE,
     HUGGING_FACE_FSDP,
     .logit_bytes = 10,
     .keeps = {HUGGING_FACE_KEEPS, .adapter_input = 2}},
    {.name = "transformers-fsdp2",
     .about = "Hugging Face's Trainer 5 with FSDP 2 (fsdp_version 2): as transformers-fsdp, gathers are copied out",
     HUGGING_FACE,
     HUGGING_FACE_FSDP,
     .logit_bytes = 10,
     .gather_copies = 1,
     .keeps = {HUGGING_FACE_KEEPS, .adapter_input = 2}},
    {.name = "transformers-fsdp2-liger",
     .about = "transformers-fsdp2 with Liger's kernels (use_liger_kernel)",
     HUGGING_FACE,
     HUGGING_FACE_FSDP,
     .gather_copies = 1,
     .loss_chunks = TWS_LOSS_BY_WIDTH,
     .keeps = {LIGER_KEEPS, .adapter_input = 2}},
    {.name = "trl",
     .about = "TRL's SFTTrainer 1.10 on one GPU or with DDP: as transformers-ddp, logits of 256 tokens at a time",
     HUGGING_FACE,
     HUGGING_FACE_DDP,
     .logit_bytes = 10,
     .loss_chunks = TWS_LOSS_BY_256_TOKENS,
     AUTOCAST(0)},
    {.name = "fsdp-2022",
     .about = "PyTorch FSDP of 2022 and 2023 with FlashAttention in Triton: gathers contend with kernels",
     .measured = TWS_MEASURED_FSDP,
     TORCH,
     FLASH_ATTENTION(FLASH_2022),
     .launch_s = 6e-6,
     MODULES_ISSUES(15e-6),
     .contends = 1,
     .by_block = 1,
     .unfused = 1,
     .added_passes = TWS_PASSES_LOSS,
     .products = CUBLAS_12,
     .logit_bytes = 4},
    {.name = "fsdp-2024",
     .about = "PyTorch FSDP2 of early 2024: as fsdp, with a kernel for RMSNorm",
     FSDP2,
     MODULES_ISSUES(5e-6),
     TORCH,
     .unfused = 1,
     .added_passes = TWS_PASSES_EAGER | TWS_PASSES_LOSS,
     .products = CUBLAS_12,
     .logit_bytes = 12},
    {.name = "fsdp",
     .about = "PyTorch FSDP2 since 2024 (torchtitan): flash attention, gathers contend with kernels",
     FSDP2,
     MODULES_ISSUES(5e-6),
     .allocator = TWS_ALLOCATOR_EXPANDABLE,
     TORCH,
     .unfused = 1,
     .added_passes = TWS_PASSES_EAGER | TWS_PASSES_LOSS | TWS_PASSES_NORMS,
     .products = CUBLAS_12,
     .logit_bytes = 12},
    {.name = "fsdp-compiled",
     .about = "fsdp with torch.compile: elementwise kernels are fused",
     FSDP2,
     .host_op_s = 33e-6,
     .allocator = TWS_ALLOCATOR_EXPANDABLE,
     .products = CUBLAS_12,
     .context_bytes = 1.5 * 1073741824.0,
     .logit_bytes = 12},
    {.name = "torchtune",
     .about = "torchtune of 2024 with torch.compile: logits of all tokens in 16 bits, their loss by chunks",
     FSDP2,
     .host_op_s = 33e-6,
     .products = CUBLAS_12,
     .context_bytes = 1.5 * 1073741824.0,
     .all_logit_bytes = 2,
     .late_gradients = 1},
    {.name = "litgpt",
     .about = "LitGPT since 2023: PyTorch's modules operation by operation, weights in bf16, flash attention",
     FSDP2,
     MODULES_ISSUES(5e-6),
     TORCH,
     .unfused = 1,
     .added_passes = TWS_PASSES_EAGER | TWS_PASSES_NORMS,
     .logit_bytes = 6,
     .loads_whole = 2,
     .flat_gradients = 1,
     .keeps = {.norm_input = 2,
               .rotated = 2,
               .gate_output = 2,
               .adapter_output = 2,
               .dropout_mask = 1,
               .quantized_input = 2}},
    {.name = "maxtext",
     .about = "MaxText on JAX: a step is one program that XLA compiled, cuDNN's attention, shards gathered by layer",
     FLASH_ATTENTION(CUDNN_9),
     .products = CUBLAS_12,
     .by_block = 1,
     .overlaps_data = 1,
     .context_bytes = 1.5 * 1073741824.0,
     .logit_bytes = 4},
    {.name = "llm.c",
     .about = "llm.c: C and CUDA without PyTorch, fused kernels, cuDNN's attention, gradients reduced by layer",
     FLASH_ATTENTION(FLASH_2),
     .products = CUBLAS_12,
     .overlaps_data = 1,
     .context_bytes = 1.5 * 1073741824.0},
    {.name = "automodel",
     .about = "NeMo AutoModel: PyTorch FSDP2 with Transformer Engine's layers, DeepEP for experts",
     .measured = TWS_MEASURED_FSDP,
     ENGINE_ISSUES(9e-6),
     GROUPED_EXPERTS,
     .sends_once = 1,
     .dispatch_reached = DEEPEP,
     .contends = 1,
     .by_block = 1,
     FLASH_ATTENTION(CUDNN_9),
     .products = CUBLAS_12,
     TORCH,
     .logit_bytes = 12},
    {.name = "fms-fsdp",
     .about = "fms-fsdp: PyTorch FSDP with torch.compile and SDPA's flash attention",
     FSDP2,
     .host_op_s = 33e-6,
     TORCH,
     .products = CUBLAS_12,
     .logit_bytes = 12},
    {.name = "nanotron",
     .about = "nanotron: PyTorch's modules in pipelines and tensor ranks, FlashAttention 2, float32 gradients",
     COMMUNICATORS,
     FLASH_ATTENTION(FLASH_2),
     MODULES_ISSUES(10e-6),
     .accumulates_bytes = 16,
     .unfused = 1,
     .added_passes = TWS_PASSES_EAGER | TWS_PASSES_LOSS,
     .products = CUBLAS_12,
     .overlaps_data = 1,
     .logit_bytes = 10,
     .float_gradients = 1},
};
enum { RUNTIMES = sizeof runtimes / sizeof *runtimes };

/* Bytes per element that each kind of software reads and writes in addition to this program's kernels
 * (docs/accuracy.md). Megatron: gradients of residual, dropout and bias are separate kernels, the loss is in float32,
 * the optimizer makes six passes. Eager: operations that PyTorch runs one after another and that are one kernel here:
 * RMSNorm in float32 by square, mean, product, cast and weight, as many backward; rotation in float32 with casts; silu
 * and its product separately; keys and values repeated for the heads that share them; logits cast to float32, their
 * softmax and its gradient separately. Biased experts (Megatron-Core's TEGroupedMLP and fused_bias_geglu.py since
 * 0.14): both halves of a gate's input are clamped and joined again (8 bytes each way for each of the two, 10
 * backward); each output of an expert gets its bias times the float32 weight of the token, expert by expert, and all
 * are joined in float32 and cast (28 bytes), and backward has the gradients of bias and weight from float32 products
 * (40). */
static const struct {
  tws_passes of;
  tws_kernel kernel;
  double bytes;
} added_passes[] = {{TWS_PASSES_MEGATRON, TWS_KERNEL_NORM_GRAD, 13},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_ADD, 1},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_LINEAR_GRAD_WEIGHT, 2},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_ATTENTION, 4},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_ATTENTION_GRAD, 16},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_CROSS_ENTROPY, 48},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_VOCABULARY_LOSS, 46},
                    {TWS_PASSES_MEGATRON, TWS_KERNEL_ADAMW, 30},
                    {TWS_PASSES_TRANSFORMERS, TWS_KERNEL_GELU, 32},
                    {TWS_PASSES_TRANSFORMERS, TWS_KERNEL_GELU_GRAD, 50},
                    {TWS_PASSES_TRANSFORMERS, TWS_KERNEL_ADAMW, 95},
                    {TWS_PASSES_NORMS, TWS_KERNEL_NORM, 32},
                    {TWS_PASSES_NORMS, TWS_KERNEL_NORM_GRAD, 60},
                    {TWS_PASSES_EAGER, TWS_KERNEL_ROPE, 18},
                    {TWS_PASSES_EAGER, TWS_KERNEL_ROPE_GRAD, 18},
                    {TWS_PASSES_EAGER, TWS_KERNEL_SWIGLU, 4},
                    {TWS_PASSES_EAGER, TWS_KERNEL_SWIGLU_GRAD, 8},
                    {TWS_PASSES_EAGER, TWS_KERNEL_ATTENTION, 4},
                    {TWS_PASSES_EAGER, TWS_KERNEL_ATTENTION_GRAD, 8},
                    {TWS_PASSES_LOSS, TWS_KERNEL_CROSS_ENTROPY, 22},
                    {TWS_PASSES_BIASED_EXPERTS, TWS_KERNEL_SWIGLU, 16},
                    {TWS_PASSES_BIASED_EXPERTS, TWS_KERNEL_SWIGLU_GRAD, 20},
                    {TWS_PASSES_BIASED_EXPERTS, TWS_KERNEL_COMBINE, 28},
                    {TWS_PASSES_BIASED_EXPERTS, TWS_KERNEL_COMBINE_GRAD, 40}};

const char *tws_generation_name(int generation) {
  static const char *const names[] = {"none", "volta", "ampere", "hopper", "blackwell"};
  return generation >= 0 && generation < TWS_GENERATION_COUNT ? names[generation] : names[0];
}

const char *const *tws_runtime_names(void) {
  static const char *names[RUNTIMES + 1];
  for (int i = 0; i < RUNTIMES; i++) names[i] = runtimes[i].name;
  return names;
}

const tws_runtime *tws_runtime_find(const char *name) {
  for (int i = 0; i < RUNTIMES; i++)
    if (strcmp(runtimes[i].name, name) == 0) return &runtimes[i];
  return NULL;
}

tws_code tws_runtime_parse(const char *name, const tws_runtime **out, tws_error *err) {
  char hint[sizeof err->hint];
  *out = tws_runtime_find(name);
  if (*out) return TWS_OK;
  tws_names_hint(name, tws_runtime_names(), RUNTIMES, "known:", "twinspeed convert list runtimes", hint, sizeof hint);
  return tws_fail(err, TWS_INVALID, hint, "unknown runtime \"%.60s\"", name);
}

/* Sets the rates of products and attention relative to the profile's rates, which contain the device's power limit. */
static void set_rates(tws_profile *p, const tws_runtime *runtime) {
  const double product = runtime->product_factor[p->generation], narrow = runtime->narrow_factor[p->generation];
  if (p->rates == TWS_RATES_MEASURED) return;
  if (narrow > 0) p->fp8_efficiency = narrow * (p->fp8_efficiency > 0 ? p->fp8_efficiency : p->matmul_efficiency);
  if (product > 0) p->matmul_efficiency *= product;
  p->product_factor = product;
}

static void set_attention(tws_profile *p, const tws_runtime *runtime) {
  if (runtime->attention == TWS_ATTENTION_UNFUSED && p->multiprocessors > 0) {
    p->attention_unfused = 1;
    p->score_bytes[0] = runtime->score_bytes[0];
    p->score_bytes[1] = runtime->score_bytes[1];
  }
  if (runtime->attention == TWS_ATTENTION_FLASH) p->attention_unfused = 0;
  if (runtime->flash[p->generation] > 0) p->attention_efficiency = runtime->flash[p->generation];
}

static void add_passes(tws_profile *profile, unsigned passes) {
  for (size_t i = 0; i < sizeof added_passes / sizeof *added_passes; i++)
    if (added_passes[i].of & passes) profile->added_bytes[added_passes[i].kernel] = added_passes[i].bytes;
}

tws_code tws_profile_set_runtime(tws_profile *profile, const tws_runtime *runtime, tws_error *err) {
  if (runtime != &runtimes[0] && profile->backend == TWS_BACKEND_HOST)
    return tws_fail(err, TWS_INVALID, "give a cluster or a profile of GPUs, or leave --runtime out",
                    "runtime %s runs on GPUs, and profile %s is of a host", runtime->name, profile->name);
  profile->runtime = runtime;
  profile->allocator = runtime->allocator;
  if (runtime->products[profile->generation] > 0 && profile->rates != TWS_RATES_MEASURED)
    profile->matmul_efficiency = runtime->products[profile->generation];
  set_rates(profile, runtime);
  set_attention(profile, runtime);
  if (runtime == &runtimes[0]) return TWS_OK;
  if (runtime->launch_s > 0) profile->launch_s = runtime->launch_s;
  if (runtime->contends) profile->serial_streams = 1;
  if (runtime->unfused) profile->unfused = 1;
  if (runtime->context_bytes > 0) profile->overhead_bytes = runtime->context_bytes;
  profile->host_op_s = runtime->host_op_s;
  profile->part_s = runtime->part_s;
  profile->accumulates_bytes = runtime->accumulates_bytes;
  profile->float_reductions = runtime->float_reductions;
  profile->hand_over_s = runtime->hand_over_s;
  profile->expert_op_s = runtime->expert_op_s;
  profile->one_hot_experts = runtime->one_hot_experts;
  add_passes(profile, runtime->added_passes);
  return TWS_OK;
}

void tws_profile_bias_experts(tws_profile *profile) {
  add_passes(profile, TWS_PASSES_BIASED_EXPERTS);
  profile->gate_s = tws_profile_runtime(profile)->route_s;
}

const tws_runtime *tws_profile_runtime(const tws_profile *profile) {
  return profile->runtime ? profile->runtime : &runtimes[0];
}

void tws_profile_overlap_experts(tws_profile *profile) {
  profile->experts_overlap = 1;
}

void tws_profile_issue_in_turns(tws_profile *profile) {
  profile->issued_in_turns = 1;
}

int tws_profile_issues_in_turns(const tws_profile *profile) {
  return profile->issued_in_turns;
}

void tws_profile_recompute_scores(tws_profile *profile) {
  profile->scores_recomputed = profile->attention_unfused;
}

void tws_profile_keep_masks(tws_profile *profile) {
  profile->masks_kept = 1;
}

int tws_profile_keeps_masks(const tws_profile *profile) {
  return profile->masks_kept || profile->attention_unfused;
}

double tws_profile_library_bytes(const tws_profile *profile) {
  return profile->runtime ? profile->runtime->workspace_bytes[profile->generation] : 0;
}

int tws_profile_recomputes_scores(const tws_profile *profile) {
  return profile->scores_recomputed;
}

/* Bytes per input element that casts before a matrix product read and write, by type of the product's inputs. */
static const struct {
  int narrow; /* a tws_narrow; below 0: the type is not narrow */
  double cast_bytes;
} matmuls[TWS_MATMUL_COUNT] = {[TWS_MATMUL_AUTO] = {-1, 0},
                               [TWS_MATMUL_FP8] = {TWS_NARROW_FP8, 4},
                               [TWS_MATMUL_FP8_ROWWISE] = {TWS_NARROW_FP8, 16},
                               [TWS_MATMUL_MXFP8] = {TWS_NARROW_FP8, 4},
                               [TWS_MATMUL_NVFP4] = {TWS_NARROW_FP4, 7.1}};

tws_code tws_profile_set_matmul(tws_profile *profile, tws_matmul_dtype dtype, tws_error *err) {
  static const char *const since[TWS_NARROW_COUNT] = {"Hopper", "Blackwell"};
  const int narrow = matmuls[dtype].narrow;
  char hint[160];
  const int planned = dtype == TWS_MATMUL_FP8 && tws_profile_plans_casts(profile);
  if (narrow >= 0 && !(profile->narrow_peak[narrow] > 0) && !(planned && profile->backend == TWS_BACKEND_HOST)) {
    snprintf(hint, sizeof hint, "%s and later have one; a profile says it as \"peak_flops\": {\"%s\": ...}",
             since[narrow], tws_narrow_name(narrow));
    return tws_fail(err, TWS_INVALID, hint, "twinspeed.matmul_dtype is %s, and profile %s has no rate of %s products",
                    tws_matmul_dtype_name(dtype), profile->name, tws_narrow_name(narrow));
  }
  /* AUTO: plans with casts state in each work whether the product has a narrow type */
  profile->matmul_dtype = planned ? TWS_MATMUL_AUTO : dtype;
  return TWS_OK;
}

int tws_profile_plans_casts(const tws_profile *profile) {
  return tws_profile_runtime(profile) == &runtimes[0];
}

double tws_profile_matmul_peak(const tws_profile *profile, const tws_work *work) {
  if (work->flags & TWS_FP8) { /* a host decodes the codes and computes in float32 */
    const double peak = profile->narrow_peak[TWS_NARROW_FP8];
    return peak > 0 ? peak : tws_profile_peak_flops(profile, TWS_F32);
  }
  const int narrow = work->dtype == TWS_F32 ? -1 : matmuls[profile->matmul_dtype].narrow;
  const double own = narrow == TWS_NARROW_FP4 ? profile->fp4_efficiency : profile->fp8_efficiency;
  const double share = own > 0 ? own / profile->matmul_efficiency : 1;
  return narrow < 0 ? 0 : share * profile->narrow_peak[narrow];
}

double tws_profile_cast_bytes(const tws_profile *profile, int weight) {
  const double *own = profile->runtime ? profile->runtime->cast_bytes : NULL;
  if (weight) return own ? own[1] : 0;
  const int usual = profile->matmul_dtype == TWS_MATMUL_FP8 || profile->matmul_dtype == TWS_MATMUL_MXFP8;
  return usual && own && own[0] > 0 ? own[0] : matmuls[profile->matmul_dtype].cast_bytes;
}
