"""DeepSpeed's memory estimators with its signatures and its print-out (0.19.6).

`compat="deepspeed-0.3"` gives stage 2 as DeepSpeed 0.3 had it, from which its manual still quotes. `model` is anything
with parameters() and modules(), such as a torch.nn.Module. The formulas leave out activations, buckets and libraries:
twinspeed.estimate() counts every byte."""
import ctypes as c

from ._library import ZeroRequest, lib


def _request(total, largest, gpus, nodes, factor, compat, offload=True, offload_params=True, zero_init=True):
    if compat not in (None, "deepspeed", "deepspeed-0.3"):
        raise ValueError("compat: use \"deepspeed\" or \"deepspeed-0.3\", not %r" % (compat,))
    for name, value in (("num_gpus_per_node", gpus), ("num_nodes", nodes)):
        if not 1 <= int(value) <= 1 << 20:
            raise ValueError("%s must be 1 to %d, not %r" % (name, 1 << 20, value))
    return c.byref(ZeroRequest(total, largest, int(gpus), int(nodes), bool(offload), bool(offload_params),
                               bool(zero_init), factor, compat == "deepspeed-0.3"))


def _numel(parameter):
    """Elements of a parameter; of one that ZeRO-3 has partitioned the whole, not the part that is here."""
    return getattr(parameter, "ds_numel", None) or parameter.numel()


def _count(model):
    """Elements of all parameters, shared ones once, and of the module with the most of its own."""
    own = {id(p) if not hasattr(p, "data_ptr") else p.data_ptr() or id(p): _numel(p) for p in model.parameters()}
    largest = max((sum(_numel(p) for p in m.parameters(recurse=False)) for m in model.modules()), default=0)
    return sum(own.values()), largest


def _print(stage, request):
    text = lib.twinspeed_zero_table(stage, request)
    if not text:
        raise MemoryError("no memory for the table")
    try:
        print(c.string_at(text).decode(), end="")
    finally:
        lib.twinspeed_free(text)


def estimate_zero2_model_states_mem_needs(total_params, num_gpus_per_node=1, num_nodes=1, cpu_offload=True,
                                          additional_buffer_factor=1.5, compat=None):
    """Returns bytes of the node's host and of a GPU."""
    m = lib.twinspeed_zero2(_request(total_params, 0, num_gpus_per_node, num_nodes, additional_buffer_factor, compat,
                                     cpu_offload))
    return int(m.cpu_bytes), int(m.gpu_bytes)


def estimate_zero2_model_states_mem_needs_all_cold(total_params, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5, compat=None):
    _print(2, _request(total_params, 0, num_gpus_per_node, num_nodes, additional_buffer_factor, compat))


def estimate_zero2_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5, compat=None):
    estimate_zero2_model_states_mem_needs_all_cold(_count(model)[0], num_gpus_per_node, num_nodes,
                                                   additional_buffer_factor, compat)


def estimate_zero3_model_states_mem_needs(total_params, largest_layer_params, num_gpus_per_node=1, num_nodes=1,
                                          cpu_offload=True, cpu_offload_params=True, zero_init=True,
                                          additional_buffer_factor=1.5, compat=None):
    """Returns bytes of the node's host, of a GPU and of the largest layer."""
    m = lib.twinspeed_zero3(_request(total_params, largest_layer_params, num_gpus_per_node, num_nodes,
                                     additional_buffer_factor, compat, cpu_offload, cpu_offload_params, zero_init))
    return int(m.cpu_bytes), int(m.gpu_bytes), int(m.largest_layer_bytes)


def estimate_zero3_model_states_mem_needs_all_cold(total_params, largest_layer_params, num_gpus_per_node=1,
                                                   num_nodes=1, additional_buffer_factor=1.5, compat=None):
    _print(3, _request(total_params, largest_layer_params, num_gpus_per_node, num_nodes, additional_buffer_factor,
                       compat))


def estimate_zero3_model_states_mem_needs_all_live(model, num_gpus_per_node=1, num_nodes=1,
                                                   additional_buffer_factor=1.5, compat=None):
    total, largest = _count(model)
    estimate_zero3_model_states_mem_needs_all_cold(total, largest, num_gpus_per_node, num_nodes,
                                                   additional_buffer_factor, compat)
