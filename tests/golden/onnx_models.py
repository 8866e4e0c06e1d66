"""Writes tests/golden/onnx/*.onnx and tests/golden/onnx.json: ten small models as torch.onnx.export writes them, with
the parameters, shapes and outputs of PyTorch. Run with PyTorch 2.15, onnx and onnxscript:

    python3 tests/golden/onnx_models.py [MODEL ...]
    python3 tests/golden/onnx_models.py tensors   # writes the names and shapes alone again
    python3 tests/golden/onnx_models.py seeds     # writes tests/fuzz/corpus/onnx

Weights and inputs are a function of the position alone (`numbers` below, which tests/test_onnx.c has for inputs), so
that running it again changes no number. The models are narrow variants of published ones."""
import json
import math
import os
import sys
import warnings

import onnx
import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = 2


def numbers(count, stream):
    """Numbers from -1 to 1: a hash of position and stream, in 24 bits."""
    x = torch.arange(count, dtype=torch.int64) + stream * 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    x = (x ^ x >> 16) >> 8
    return (x.to(torch.float64) / 2**23 - 1).to(torch.float32)


class Residual(nn.Module):
    """Two convolutions with a shortcut, which is a convolution where the form changes."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential()
        if stride > 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        blocks, inner = [], width
        for stage in range(4):
            outer = width * 2**stage
            blocks += [Residual(inner, outer, 2 if stage else 1), Residual(outer, outer, 1)]
            inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inner, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def vgg11():
    layers, inner = [], 3
    for width in (2, "pool", 4, "pool", 8, 8, "pool", 12, 12, "pool", 12, 12, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(inner, width, 3, padding=1), nn.ReLU()]
            inner = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inner, 24), nn.ReLU(), nn.Dropout(),
                         nn.Linear(24, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 10))


class Inverted(nn.Module):
    """A wider space between two convolutions of one pixel, with a convolution of each channel in it."""

    def __init__(self, inner, outer, stride, factor):
        super().__init__()
        wide = inner * factor
        layers = []
        if factor > 1:
            layers += [nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                                    nn.BatchNorm2d(wide), nn.ReLU6(), nn.Conv2d(wide, outer, 1, bias=False),
                                    nn.BatchNorm2d(outer))
        self.adds = stride == 1 and inner == outer

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


def mobilenet_v2():
    layers = [nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU6()]
    inner = 4
    for factor, width, count, stride in ((1, 2, 1, 1), (6, 4, 2, 2), (6, 4, 3, 2), (6, 6, 4, 2), (6, 8, 3, 1), (6, 8, 3, 2),
                                         (6, 12, 1, 1)):
        for i in range(count):
            layers.append(Inverted(inner, width, stride if i == 0 else 1, factor))
            inner = width
    layers += [nn.Conv2d(inner, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Dropout(0.2), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    def __init__(self, width, heads, joined, causal):
        super().__init__()
        self.heads, self.causal, self.joined = heads, causal, joined
        if joined:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).split(width, -1) if self.joined else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        if self.joined:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // self.heads), -1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Bert(nn.Module):
    """BertForMaskedLM: norms after the sums, and scores by the table of tokens; one kind of segments."""

    def __init__(self, vocabulary=40, positions=12, width=16, heads=2, layers=2):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.ModuleDict({
                "attention": Attention(width, heads, False, False), "norm1": nn.LayerNorm(width, eps=1e-12),
                "wide": nn.Linear(width, 4 * width), "narrow": nn.Linear(4 * width, width),
                "norm2": nn.LayerNorm(width, eps=1e-12)}))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=1e-12)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.words.weight

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer["norm1"](x + layer["attention"](x))
            x = layer["norm2"](x + layer["narrow"](nn.functional.gelu(layer["wide"](x))))
        return self.decoder(self.transform_norm(nn.functional.gelu(self.transform(x))))


class Gpt(nn.Module):
    """GPT-2's layers: norms before attention and MLP, the tanh approximation of GELU, learned positions."""

    def __init__(self, vocabulary=36, positions=10, width=16, heads=4, layers=2):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Parameter(torch.zeros(1, positions, width))
        self.h = nn.ModuleList()
        for _ in range(layers):
            self.h.append(nn.ModuleDict({
                "ln_1": nn.LayerNorm(width), "attn": Attention(width, heads, True, True), "ln_2": nn.LayerNorm(width),
                "fc": nn.Linear(width, 4 * width), "proj": nn.Linear(4 * width, width)}))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe
        for h in self.h:
            x = x + h["attn"](h["ln_1"](x))
            x = x + h["proj"](nn.functional.gelu(h["fc"](h["ln_2"](x)), approximate="tanh"))
        return self.head(self.ln_f(x))


class NextBlock(nn.Module):
    """ConvNeXt's block without the scales of layers: a convolution of each channel, and an MLP of each pixel."""

    def __init__(self, width):
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


def convnext():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), NextBlock(8), nn.Conv2d(8, 12, 2, 2), NextBlock(12),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 24), nn.ReLU(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 5), nn.Sigmoid(),
                         nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 4, 20), nn.Tanh(), nn.Linear(20, 10))


def alexnet():
    return nn.Sequential(nn.Conv2d(3, 8, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(8, 12, 5, padding=2),
                         nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(16, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(3, 2), nn.Flatten(), nn.Dropout(), nn.Linear(12, 16), nn.ReLU(), nn.Dropout(),
                         nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))


def discriminator():
    """DCGAN's discriminator with a transposed convolution more, and batch norms that are not folded."""
    return nn.Sequential(nn.Conv2d(3, 6, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.BatchNorm2d(6),
                         nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.BatchNorm2d(4),
                         nn.Conv2d(4, 8, 4, 2, 1, groups=2), nn.LeakyReLU(0.1), nn.Conv2d(8, 10, 8), nn.Flatten())


MODELS = {"mlp": (mlp, (3, 8, 8)), "lenet": (lenet, (1, 16, 16)), "alexnet": (alexnet, (3, 63, 63)),
          "vgg11": (vgg11, (3, 64, 64)), "resnet18": (ResNet18, (3, 32, 32)), "mobilenet_v2": (mobilenet_v2, (3, 32, 32)),
          "convnext": (convnext, (3, 16, 16)), "discriminator": (discriminator, (3, 16, 16)), "bert": (Bert, 12),
          "gpt": (Gpt, 10)}
WITH_NORMS = ("resnet18", "mobilenet_v2")


def set_weights(model):
    """Sets weights that keep the magnitude of activations, and statistics near 0 and 1."""
    for i, (name, tensor) in enumerate(model.state_dict().items()):
        if tensor.dtype != torch.float32:
            continue
        with torch.no_grad():
            values = numbers(tensor.numel(), 100 + i).reshape(tensor.shape)
            if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.copy_(1 + 0.3 * values)
            elif tensor.dim() <= 1:
                tensor.copy_(0.2 * values)
            else:
                tensor.copy_(values * math.sqrt(4 / (tensor.numel() / tensor.shape[0])))


def without_traces(path):
    """Takes the traces of Python's calls out of a file, which are longer than the graph."""
    model = onnx.load(path)
    graph = model.graph
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph, model):
        del part.metadata_props[:]
    del graph.value_info[:]
    onnx.save(model, path)


def short_names(path):
    """Gives values and nodes short names."""
    model, names = onnx.load(path), {}
    graph = model.graph

    def short(name):
        return names.setdefault(name, f"v{len(names)}") if name else name

    for node in graph.node:
        node.input[:], node.output[:] = [short(n) for n in node.input], [short(n) for n in node.output]
        node.name = ""
    for part in (*graph.initializer, *graph.input, *graph.output):
        part.name = short(part.name)
    onnx.save(model, path)


def seeds(folder):
    """Writes the first inputs of the fuzz target: a network of pictures with the operators of several models, and one
    layer of GPT-2."""
    os.makedirs(folder, exist_ok=True)
    pictures = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.MaxPool2d(2),
                             Inverted(4, 4, 1, 1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))
    tokens = Gpt(5, 3, 4, 2, 1)
    for name, model, x in (("pictures", pictures, torch.zeros(1, 2, 4, 4)),
                           ("tokens", tokens, torch.zeros(1, 3, dtype=torch.int64))):
        set_weights(model.eval())
        for optimize in (True, False):
            path = os.path.join(folder, f"{name}{'' if optimize else '_plain'}.onnx")
            torch.onnx.export(model, (x,), path, dynamo=True, external_data=False, verbose=False, optimize=optimize)
            without_traces(path)
            short_names(path)


def tensors_of(model):
    """Names and shapes of parameters; of one that has two names, both."""
    return {name: list(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def source():
    return (f"tests/golden/onnx_models.py with PyTorch {torch.__version__}: parameters with their names and shapes, and"
            " outputs of its models in evaluation, and the files of torch.onnx.export; inputs by the formula of the script")


def write(result):
    with open(os.path.join(HERE, "onnx.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=None, separators=(",", ":"))
        file.write("\n")


def write_tensors():
    with open(os.path.join(HERE, "onnx.json"), encoding="utf-8") as file:
        result = json.load(file)
    result["source"] = source()
    for name, (make, _) in MODELS.items():
        result[name]["tensors"] = tensors_of(make())
    write(result)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = {"source": source()}
    only = sys.argv[1:]
    if only == ["seeds"]:
        seeds(os.path.join(HERE, "..", "fuzz", "corpus", "onnx"))
        return
    if only == ["tensors"]:
        write_tensors()
        return
    for stream, (name, (make, form)) in enumerate(MODELS.items()):
        if only and name not in only:
            continue
        model = make().eval()
        set_weights(model)
        if isinstance(form, tuple):
            x = numbers(BATCH * math.prod(form), stream).reshape(BATCH, *form)
        else:
            rows = next(iter(model.children())).num_embeddings
            x = ((numbers(BATCH * form, stream).to(torch.float64) + 1) / 2 * rows).to(torch.int64).reshape(BATCH, form)
        y = model(x)
        exact = model.double()(x.double() if isinstance(form, tuple) else x)
        model.float()
        path = os.path.join(HERE, "onnx", name + ".onnx")
        # the optimizer would fold norms of batches into convolutions, which are fewer parameters than PyTorch's
        torch.onnx.export(model, (x,), path, dynamo=True, external_data=False, verbose=False, optimize=name not in WITH_NORMS)
        without_traces(path)
        result[name] = {"parameters": sum(p.numel() for p in model.parameters()), "tensors": tensors_of(model),
                        "input": list(x.shape),
                        "output": list(y.shape), "rows": rows if not isinstance(form, tuple) else 0,
                        "own_error": float((y.double() - exact).abs().max()),
                        "values": [float(v) for v in exact.flatten()]}
        print(name, result[name]["parameters"], os.path.getsize(path), float(exact.abs().max()), result[name]["own_error"])
    if not only:
        write(result)


if __name__ == "__main__":
    main()
